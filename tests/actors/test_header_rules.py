"""Keys and forwarded headers over connections in memory: HTTP, unary gRPC, streams, ensembles."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from trio.testing import MockClock
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import INVALID_ARGUMENT, OK, UNAVAILABLE
from tests.support.http_client import infer_body, request_bytes
from tests.support.memory_server import MemoryServer, memory_server, write_models
from tritrio.options import ServerOptions
from tritrio.protocol.header_forwarding import GRPC_ERROR_KEY
from tritrio.protocol.http_request import HEAD_BYTES_MAX
from tritrio.protocol.restricted_apis import DROPPED_BODY_BYTES_MAX
from tritrio.server import Server, StartError

INFER = "/v2/models/plain/infer"
HTTP_KEY = "admin: secret"
GRPC_KEY = ("triton-grpc-protocol-admin", "secret")
EVERY_API = (
    "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
)
RESTRICTED: dict[str, Any] = {
    "http_restricted_apis": (f"{EVERY_API}:admin=secret",),
    "grpc_restricted_protocols": (f"{EVERY_API}:admin=secret",),
}
FORWARDING: dict[str, Any] = {
    "http_header_forward_pattern": "(x_.*)|priority|(triton_.*)",
    "grpc_header_forward_pattern": "(x_.*)|(x-.*)|(triton_.*)",
}

_FACTS = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with the parameters of the request, its own or those of a call it makes."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = json.dumps(json.loads(request.parameters() or "{}"), sort_keys=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("FACTS", np.array([text], object))])
'''
_ENSEMBLE = """
platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "FACTS" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "facts" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "FACTS" value: "FACTS" }
} ] }
"""
_CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "FACTS" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    repository = write_models(tmp_path / "models", only=("plain", "repeat"))
    for name, config in (("facts", _CONFIG), ("chain", _ENSEMBLE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "facts" / "1" / "model.py").write_text(_FACTS)
    return repository


# Keys.

ROUTES = [
    ("GET", "/v2", 200),
    ("GET", "/v2/health/live", 200),
    ("GET", "/v2/health/ready", 200),
    ("GET", "/v2/models/plain", 200),
    ("GET", "/v2/models/plain/ready", 200),
    ("GET", "/v2/models/plain/versions/1/ready", 200),
    ("GET", "/v2/models/plain/config", 200),
    ("GET", "/v2/models/plain/stats", 200),
    ("GET", "/v2/models/plain/batching", 200),
    ("GET", "/v2/models/stats", 200),
    ("POST", "/v2/repository/index", 200),
    ("POST", "/v2/repository/models/plain/load", 503),
    ("GET", "/v2/models/nobody", 404),
    ("PUT", "/v2/health/live", 405),
    ("OPTIONS", INFER, 405),
]


async def test_every_http_call_is_refused_without_its_key_and_the_connection_goes_on(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **RESTRICTED) as server:
        client = server.http()
        for method, path, status in ROUTES:
            body = b"" if method == "POST" else None
            client.send(request_bytes(path, body, method=method))
            refused = await client.response()
            assert refused.status == 403, path
            assert refused.headers["content-type"] == "application/json"
            assert list(refused.json) == ["error"]
            assert "'admin'" in refused.json["error"]
            assert "secret" not in refused.json["error"]
            client.send(request_bytes(path, body, method=method, headers=[HTTP_KEY]))
            assert (await client.response()).status == status, path


async def test_inference_is_refused_without_its_key_and_nothing_runs(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **RESTRICTED) as server:
        client = server.http()
        client.infer("plain", [[1]])
        assert (await client.response()).status == 403
        assert server.executions == []
        assert server.counts("plain") == (0, 0, 0)
        client.send(request_bytes(INFER, infer_body([[1]]), headers=[HTTP_KEY]))
        assert (await client.response()).rows == [[1]]


async def test_unknown_paths_are_not_found_with_or_without_a_key(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **RESTRICTED) as server:
        client = server.http()
        client.get("/v2/nothing")
        assert (await client.response()).status == 404


async def test_a_large_body_is_refused_before_it_is_sent(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **RESTRICTED) as server:
        client = server.http()
        size = DROPPED_BODY_BYTES_MAX + 1
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n"
        client.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
        refused = await client.response()
        assert refused.status == 403
        assert "'admin'" in refused.json["error"]
        await client.closed()


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("ServerLive", pb.ServerLiveResponse),
        ("ServerReady", pb.ServerReadyResponse),
        ("ServerMetadata", pb.ServerMetadataResponse),
        ("ModelStatistics", pb.ModelStatisticsResponse),
        ("RepositoryIndex", pb.RepositoryIndexResponse),
        ("/grpc.health.v1.Health/Check", pb.ServerLiveResponse),
    ],
)
async def test_every_grpc_call_is_refused_without_its_key(
    autojump_clock: MockClock, models: Path, path: str, reply: Any
) -> None:
    async with memory_server(models, **RESTRICTED) as server:
        client = server.grpc()
        for metadata, status in (
            ((), UNAVAILABLE),
            (((GRPC_KEY[0], "wrong"),), UNAVAILABLE),
            ((GRPC_KEY, (GRPC_KEY[0], "wrong")), UNAVAILABLE),
            ((GRPC_KEY,), OK),
            ((GRPC_KEY, GRPC_KEY), OK),
        ):
            call = client.call(path, b"", response_type=reply, metadata=metadata)
            assert await call.done() == status, metadata
            if status == UNAVAILABLE:
                assert f"'{GRPC_KEY[0]}'" in call.text
                assert "secret" not in call.text
                assert call.messages == []


async def test_unary_inference_is_refused_without_its_key_and_nothing_runs(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **RESTRICTED) as server:
        client = server.grpc()
        assert await client.infer("plain", [[1]]).done() == UNAVAILABLE
        assert server.executions == []
        assert await client.infer("plain", [[1]], metadata=(GRPC_KEY,)).done() == OK


async def test_a_stream_without_its_key_is_ended_and_its_messages_are_dropped(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **RESTRICTED) as server:
        client = server.grpc()
        stream = client.call("ModelStreamInfer", b"rubbish", response_type=pb.ModelInferResponse)
        assert await stream.done() == UNAVAILABLE
        assert stream.messages == []
        right = client.stream(metadata=(GRPC_KEY,))
        right.half_close()
        assert await right.done() == OK
        assert server.executions == []


async def test_a_faulty_option_ends_the_start_before_models_load(tmp_path: Path) -> None:
    for fault in (
        {"http_restricted_apis": ("helth:a=b",)},
        {"grpc_restricted_protocols": ("health:a=b", "health:c=d")},
        {"http_header_forward_pattern": "("},
        {"grpc_header_forward_pattern": "(?=a)"},
    ):
        options: dict[str, Any] = {"model_repositories": (tmp_path / "not there",), **fault}
        (name,) = fault
        flag = "--" + name.removesuffix("s").replace("_", "-")
        with pytest.raises(StartError, match=flag):
            await Server(ServerOptions(**options)).run()


# Forwarding.


async def facts(server: MemoryServer, headers: Sequence[str], **more: Any) -> Any:
    """The parameters that a model sees of an HTTP request, or the error."""
    model = more.pop("model", "facts")
    one = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [7]}
    body = orjson.dumps({"inputs": [one], **more})
    client = server.http()
    client.send(request_bytes(f"/v2/models/{model}/infer", body, headers=headers))
    response = await client.response()
    if response.status != 200:
        return response.status, response.json["error"]
    return json.loads(response.json["outputs"][0]["data"][0])


def message(model: str = "facts", **parameters: str) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1]).contents.int_contents.append(7)
    for key, value in parameters.items():
        request.parameters[key].string_param = value
    return request


def seen(response: Any) -> Any:
    """The parameters in the answer of the model `facts`."""
    return json.loads(response.raw_output_contents[0][4:])


async def test_http_headers_reach_the_model_in_the_case_they_were_sent_in(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        headers = ["X_User: Ann", "x_user: Bob", "Other: 1"]
        assert await facts(server, headers) == {"X_User": "Ann", "x_user": "Bob"}
        assert await facts(server, []) == {}


async def test_headers_reach_the_steps_of_an_ensemble(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        assert await facts(server, ["x_user: Ann"], model="chain") == {"x_user": "Ann"}
        call = server.grpc().call("ModelInfer", message("chain"), metadata=[("x_user", "Ann")])
        assert await call.done() == OK
        assert seen(call.messages[0]) == {"x_user": "Ann"}


async def test_a_header_counts_over_a_parameter_of_its_name(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        given = {"x_user": 5, "other": True}
        expected = {"x_user": "Ann", "other": True}
        assert await facts(server, ["x_user: Ann"], parameters=given) == expected
        assert await facts(server, [], parameters=given) == given  # nothing of it is kept


async def test_reserved_headers_are_refused_and_counted(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        for header in ("priority: 1", "Triton_x: 1"):
            status, text = await facts(server, [header])
            assert status == 400
            assert f"'{header[:-3]}'" in text
        assert server.counts("facts") == (0, 2, 0)


async def test_a_value_may_be_as_long_as_a_head_may_be(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        long = "y" * (HEAD_BYTES_MAX - 1000)
        assert await facts(server, [f"x_user: {long}"]) == {"x_user": long}
        status, _ = await facts(server, [f"x_user: {long * 2}"])
        assert status == 431
        call = server.grpc().call("ModelInfer", message(), metadata=[("x_user", "y" * 7000)])
        assert await call.done() == OK
        assert seen(call.messages[0]) == {"x_user": "y" * 7000}


async def test_headers_of_compressed_requests_are_forwarded_too(models: Path) -> None:
    """Real time: the body is expanded on a thread."""
    async with memory_server(models, **FORWARDING) as server:
        one = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [7]}
        body = gzip.compress(orjson.dumps({"inputs": [one]}))
        client = server.http()
        headers = ["Content-Encoding: gzip", "x_user: Ann"]
        client.send(request_bytes("/v2/models/facts/infer", body, headers=headers))
        data = (await client.response()).json["outputs"][0]["data"]
        assert json.loads(data[0]) == {"x_user": "Ann"}


async def test_headers_of_generate_calls_are_forwarded_too(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        client = server.http()
        body = orjson.dumps({"INPUT0": [7], "parameters": {"more": 1}})
        client.send(
            request_bytes("/v2/models/facts/generate", body, headers=["X_User: Ann", "Other: 1"])
        )
        answer = (await client.response()).json
        assert json.loads(answer["FACTS"]) == {"X_User": "Ann", "more": 1}
        client.send(
            request_bytes("/v2/models/facts/generate_stream", body, headers=["X_User: Ann"])
        )
        assert (await client.head()).status == 200
        event = orjson.loads((await client.chunk()).removeprefix(b"data: "))
        assert json.loads(event["FACTS"]) == {"X_User": "Ann", "more": 1}
        client = server.http()
        client.send(request_bytes("/v2/models/facts/generate", body, headers=["triton_x: 1"]))
        refused = await client.response()
        assert refused.status == 400
        assert "'triton_x'" in refused.json["error"]


async def test_metadata_reach_the_model(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models, **FORWARDING) as server:
        client = server.grpc()
        metadata = [("x_user", "Ann"), ("x_user", "Bob"), ("x-raw-bin", "AP8B"), ("other", "1")]
        call = client.call("ModelInfer", message(x_user="body", more="1"), metadata=metadata)
        assert await call.done() == OK
        assert seen(call.messages[0]) == {"more": "1", "x-raw-bin": "AP8B", "x_user": "Bob"}
        plain = client.call("ModelInfer", message(more="1"))
        assert await plain.done() == OK
        assert seen(plain.messages[0]) == {"more": "1"}
        reserved = client.call("ModelInfer", message(), metadata=[("triton_x", "1")])
        assert await reserved.done() == INVALID_ARGUMENT
        assert "'triton_x'" in reserved.text


async def test_metadata_of_a_stream_reach_the_model_with_each_request(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        metadata = [("x_user", "Ann"), (GRPC_ERROR_KEY, "true")]
        stream = server.grpc().stream(metadata=metadata)
        for number in range(3):
            stream.send(message(number=str(number)))
        stream.half_close()
        assert await stream.done() == OK
        assert [seen(answer.infer_response) for answer in stream.messages] == [
            {"number": str(number), "x_user": "Ann"} for number in range(3)
        ]


async def test_reserved_metadata_of_a_stream_are_refused_with_each_request(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, **FORWARDING) as server:
        stream = server.grpc().stream(metadata=[("triton_x", "1")])
        for number in range(2):
            request = message()
            request.id = str(number)
            stream.send(request)
        stream.half_close()
        assert await stream.done() == OK
        assert [answer.infer_response.id for answer in stream.messages] == ["0", "1"]
        assert all("'triton_x'" in answer.error_message for answer in stream.messages)
