"""The log settings that clients change, and the line that every call leaves while it is verbose."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import INTERNAL, INVALID_ARGUMENT, OK, UNIMPLEMENTED, infer_message
from tests.support.http_client import request_bytes
from tests.support.memory_server import memory_server
from tritrio.actors.http_asgi import HttpApplication
from tritrio.protocol.log_settings import LogSettings

VERBOSE = LogSettings(verbose_level=1)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tritrio.calls"]


async def test_every_http_request_leaves_a_line(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    async with memory_server(models, seconds={"plain": 0.5}, log=VERBOSE) as server:
        client = server.http()
        client.get("/v2/health/ready?x")
        await client.response()
        assert (await client.ask("plain", [[1]], request_id="r1")).status == 200
        client.get("/no/such/path")
        await client.response()
        assert (await client.ask("nobody", [[1]])).status == 404
    assert lines(caplog) == [
        "HTTP GET /v2/health/ready 200, 0.000 ms",
        "HTTP POST /v2/models/plain/infer 200, 500.000 ms",
        "HTTP GET /no/such/path 404, 0.000 ms",
        "HTTP POST /v2/models/nobody/infer 404, 0.000 ms",
    ]
    about = [getattr(record, "request_id", None) for record in caplog.records]
    assert about == [None, "r1", None, None]
    assert getattr(caplog.records[1], "model", None) == "plain"


async def test_of_a_long_id_a_line_has_the_beginning(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    name = "ab" * 100_000
    async with memory_server(models, log=VERBOSE) as server:
        answer = await server.http().ask("plain", [[1]], request_id=name)
        assert orjson.loads(answer.body)["id"] == name
    (record,) = (record for record in caplog.records if record.name == "tritrio.calls")
    assert getattr(record, "request_id", None) == "ab" * 128


async def test_a_streamed_answer_leaves_its_line_at_its_end(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    async with memory_server(models, seconds={"plain": 0.5}, log=VERBOSE) as server:
        client = server.http()
        body = orjson.dumps({"INPUT0": [1]})
        client.send(request_bytes("/v2/models/plain/generate_stream", body))
        assert (await client.response()).status == 200
        await wait_all_tasks_blocked()
    assert lines(caplog) == ["HTTP POST /v2/models/plain/generate_stream 200, 500.000 ms"]


async def test_a_fault_of_the_server_names_the_request(
    autojump_clock: MockClock,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("tritrio.actors.http_api.HttpApi.finish", fail)
    monkeypatch.setattr("tritrio.actors.grpc_service.ModelInfer.finish", fail)
    async with memory_server(models) as server:
        assert (await server.http().ask("plain", [[1]], request_id="r1")).status == 500
        assert await server.grpc().infer("plain", [[1]], request_id="r2").done() == INTERNAL
    about = [getattr(record, "request_id", None) for record in caplog.records]
    assert about == ["r1", "r2"]


async def test_every_grpc_call_leaves_a_line(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    async with memory_server(models, seconds={"plain": 0.5}, log=VERBOSE) as server:
        client = server.grpc()
        assert await client.infer("plain", [[1]], request_id="r1").done() == OK
        assert await client.infer("plain", [[1]], timeout="250m").done() == 4
        assert (
            await client.call("ServerLive", b"", response_type=pb.ServerLiveResponse).done() == OK
        )
        assert await client.call("/no/Method", b"", response_type=bytes).done() == UNIMPLEMENTED
        stream = client.stream()
        stream.send(infer_message("plain", [[1]]))
        stream.half_close()
        assert await stream.done() == OK
    service = "gRPC /inference.GRPCInferenceService"
    assert lines(caplog) == [
        f"{service}/ModelInfer OK, 500.000 ms",
        f"{service}/ModelInfer DEADLINE_EXCEEDED, 250.000 ms",
        f"{service}/ServerLive OK, 0.000 ms",
        "gRPC /no/Method UNIMPLEMENTED, 0.000 ms",
        f"{service}/ModelStreamInfer OK, 750.000 ms",
    ]
    assert getattr(caplog.records[0], "request_id", None) == "r1"


async def test_nothing_is_logged_until_a_client_switches_it_on(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    async with memory_server(models) as server:
        client, grpc = server.http(), server.grpc()

        async def post(settings: dict[str, Any]) -> Any:
            client.send(request_bytes("/v2/logging", orjson.dumps(settings)))
            return (await client.response()).json

        async def call_all() -> None:
            await client.ask("plain", [[1]])
            await grpc.infer("plain", [[1]]).done()
            await grpc.infer("nobody", [[1]]).done()
            await grpc.call("ServerLive", b"", response_type=pb.ServerLiveResponse).done()
            await grpc.call("/no/Method", b"", response_type=bytes).done()

        await call_all()
        assert lines(caplog) == []
        assert (await post({"log_verbose_level": 1}))["log_verbose_level"] == 1
        await call_all()
        assert len(lines(caplog)) == 5
        await post({"log_verbose_level": 0})
        caplog.clear()
        await call_all()
        assert lines(caplog) == []


async def test_both_protocols_change_the_same_settings(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, log=LogSettings(file="log")) as server:
        client, grpc = server.http(), server.grpc()
        request = pb.LogSettingsRequest()
        request.settings["log_info"].bool_param = False
        request.settings["log_format"].string_param = "json"
        call = grpc.call("LogSettings", request, response_type=pb.LogSettingsResponse)
        assert await call.done() == OK
        assert not call.messages[0].settings["log_info"].bool_param
        client.get("/v2/logging")
        assert (await client.response()).json == {
            "log_file": "log",
            "log_info": False,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "json",
        }
        request.settings["log_warning"].uint32_param = 0
        request.settings["log_info"].bool_param = True
        call = grpc.call("LogSettings", request, response_type=pb.LogSettingsResponse)
        assert await call.done() == INVALID_ARGUMENT
        client.get("/v2/logging")
        assert (await client.response()).json["log_info"] is False  # nothing has changed


async def test_the_asgi_application_logs_its_requests_too(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")

    events = [{"type": "http.request"}]

    async def receive() -> dict[str, Any]:
        return events.pop() if events else await trio.sleep_forever()

    async def send(_: dict[str, Any]) -> None:
        pass

    async with memory_server(models, log=VERBOSE) as server:
        parts = server.parts
        app = HttpApplication(api=parts.http_api, budget=parts.budget, calls=parts.calls)
        await app({"type": "http", "method": "GET", "path": "/v2", "headers": []}, receive, send)
    assert lines(caplog) == ["HTTP GET /v2 200, 0.000 ms"]
