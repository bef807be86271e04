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
UNKNOWN = "expected the name of a known model, got 'nobody'"


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
        assert (await client.ask("nobody", [[1]], request_id="r2")).status == 404
    assert lines(caplog) == [
        "HTTP GET /v2/health/ready 200, 0.000 ms",
        "HTTP POST /v2/models/plain/infer 200, 500.000 ms",
        "HTTP GET /no/such/path 404, 0.000 ms: Not Found",
        f"HTTP POST /v2/models/nobody/infer 404, 0.000 ms: {UNKNOWN}",
    ]
    about = [getattr(record, "request_id", None) for record in caplog.records]
    assert about == ["", "r1", "", "r2"]
    assert getattr(caplog.records[1], "model", None) == "plain"
    assert getattr(caplog.records[3], "reason", "").endswith("got 'nobody'")


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


async def test_a_streamed_answer_that_fails_leaves_the_reason(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    async with memory_server(models, log=VERBOSE) as server:
        client = server.http()
        body = orjson.dumps({"INPUT0": [1], "id": "r1"})  # the model needs two numbers a row
        client.send(request_bytes("/v2/models/repeat/generate_stream", body))
        assert (await client.head()).status == 500
        await wait_all_tasks_blocked()
    (line,) = lines(caplog)
    assert line.startswith("HTTP POST /v2/models/repeat/generate_stream 500, 0.000 ms: model ")
    assert "execute raised" in line
    (record,) = (record for record in caplog.records if record.name == "tritrio.calls")
    assert getattr(record, "request_id", None) == "r1"


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
        stream.send(infer_message("plain", [[1]], request_id="r2"))
        stream.send(infer_message("nobody", [[1]], request_id="r3"))
        stream.half_close()
        assert await stream.done() == OK
    service = "gRPC /inference.GRPCInferenceService"
    assert lines(caplog) == [
        f"{service}/ModelInfer OK, 500.000 ms",
        f"{service}/ModelInfer DEADLINE_EXCEEDED, 250.000 ms: the call's deadline has passed",
        f"{service}/ServerLive OK, 0.000 ms",
        "gRPC /no/Method UNIMPLEMENTED, 0.000 ms: no method is served at /no/Method",
        f"{service}/ModelStreamInfer: request OK, 750.000 ms",
        f"{service}/ModelStreamInfer: request NOT_FOUND, 750.000 ms: {UNKNOWN}",
        f"{service}/ModelStreamInfer OK, 750.000 ms",
    ]
    about = [getattr(record, "request_id", None) for record in caplog.records]
    assert about == ["r1", "", None, None, "r2", "r3", None]


async def test_a_refused_grpc_call_says_why_and_which_request_it_was(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    restricted = ("health:key=secret",)
    async with memory_server(models, log=VERBOSE, grpc_restricted_protocols=restricted) as server:
        client = server.grpc()
        await client.infer("nobody", [[1]], request_id="r1").done()
        live = client.call("ServerLive", b"", response_type=pb.ServerLiveResponse)
        assert await live.done() == 14
    first, second = lines(caplog)
    assert first.endswith(f"/ModelInfer NOT_FOUND, 0.000 ms: {UNKNOWN}")
    assert getattr(caplog.records[0], "request_id", None) == "r1"
    assert "/ServerLive UNAVAILABLE, 0.000 ms: " in second
    assert getattr(caplog.records[1], "reason", None) == second.partition("ms: ")[2] == live.text


async def test_a_client_that_leaves_before_its_answer_leaves_a_line(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    async with memory_server(models, seconds={"plain": 0.5}, log=VERBOSE) as server:
        http, grpc, cut = server.http(), server.grpc(), server.grpc()
        http.infer("plain", [[1]], request_id="r1")
        reset = grpc.infer("plain", [[1]], request_id="r2")
        cut.infer("plain", [[1]], request_id="r3")
        stream = grpc.stream()
        stream.send(infer_message("plain", [[1]], request_id="r4"))
        await trio.sleep(0.1)
        http.end.close()
        await wait_all_tasks_blocked()
        reset.cancel()
        await wait_all_tasks_blocked()
        cut.end.close()
        await wait_all_tasks_blocked()
        stream.cancel()
        await wait_all_tasks_blocked()
    gone = "CANCELLED, 100.000 ms: the connection ended before the answer"
    reset_line = "CANCELLED, 100.000 ms: The client reset the stream."
    service = "gRPC /inference.GRPCInferenceService"
    assert lines(caplog) == [
        f"HTTP POST /v2/models/plain/infer {gone}",
        f"{service}/ModelInfer {reset_line}",
        f"{service}/ModelInfer {gone}",
        f"{service}/ModelStreamInfer: request {gone}",
        f"{service}/ModelStreamInfer {reset_line}",
    ]
    about = [getattr(record, "request_id", None) for record in caplog.records]
    assert about == ["r1", "r2", "r3", "r4", None]


async def test_a_request_that_is_refused_before_it_is_read_leaves_a_line(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    async with memory_server(models, log=VERBOSE) as server:
        client = server.http()
        client.send(b"GET /v2 HTTP/1.1\r\n\r\n")
        reason = (await client.response()).json["error"]
    assert lines(caplog) == [f"HTTP request, not read 400, 0.000 ms: {reason}"]


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

    events: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return events.pop(0) if events else await trio.sleep_forever()

    async def send(_: dict[str, Any]) -> None:
        pass

    async with memory_server(models, log=VERBOSE) as server:
        parts = server.parts
        app = HttpApplication(api=parts.http_api, budget=parts.budget, calls=parts.calls)
        scope = {"type": "http", "method": "GET", "path": "/v2", "headers": []}
        events += [{"type": "http.request"}]
        await app(scope, receive, send)
        events += [{"type": "http.disconnect"}]
        await app(scope, receive, send)
        path = "/v2/models/plain/generate_stream"
        events += [{"type": "http.request", "body": b'{"INPUT0": [1], "id": "r1"}'}]
        await app({**scope, "method": "POST", "path": path}, receive, send)
    assert lines(caplog) == [
        "HTTP GET /v2 200, 0.000 ms",
        "HTTP GET /v2 CANCELLED, 0.000 ms: the connection ended before the answer",
        f"HTTP POST {path} 200, 0.000 ms",
    ]
    assert getattr(caplog.records[2], "request_id", None) == "r1"
