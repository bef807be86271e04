"""The repository extension over connections in memory: which answer each request gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import INVALID_ARGUMENT, OK, UNIMPLEMENTED
from tests.support.http_client import request_bytes
from tests.support.memory_server import MemoryServer, memory_server, write_models

CONFIG = json.dumps(
    {
        "backend": "identity",
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT64", "dims": [2]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT64", "dims": [2]}],
    }
)
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step {
  model_name: "plain"
  model_version: -1
  input_map { key: "INPUT0" value: "IN" }
  output_map { key: "OUTPUT0" value: "OUT" }
} }
"""
LOAD = "/v2/repository/models/plain/load"
UNLOAD = "/v2/repository/models/plain/unload"
LOADED: dict[str, Any] = {"model_control": "explicit", "startup_models": ("plain",)}
VALUE = pb.ModelRepositoryParameter


async def ask(server: MemoryServer, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON of one answer."""
    client = server.http()
    client.send(request_bytes(path, body))
    response = await client.response()
    return response.status, response.json if response.body else None


async def state(server: MemoryServer) -> str:
    """What the index says of the model `plain`, once nothing moves any more."""
    await wait_all_tasks_blocked()
    _, index = await ask(server, "/v2/repository/index", b"")
    [entry] = [entry for entry in index if entry["name"] == "plain"]
    return str(entry.get("state", "UNKNOWN"))


async def call(server: MemoryServer, method: str, request: Any) -> tuple[int, str]:
    """Status and text of one call."""
    made = server.grpc().call(method, request, response_type=getattr(pb, f"{method}Response"))
    return await made.done(), made.text


async def test_models_come_and_go_over_http(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models, model_control="explicit") as server:
        assert await state(server) == "UNKNOWN"
        assert await ask(server, LOAD, b"") == (200, None)
        assert await state(server) == "READY"
        assert await ask(server, UNLOAD, b"{}") == (200, None)
        assert await state(server) == "UNAVAILABLE"


async def test_models_come_and_go_over_grpc(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models, model_control="explicit") as server:
        load = pb.RepositoryModelLoadRequest(model_name="plain")
        assert (await call(server, "RepositoryModelLoad", load))[0] == OK
        assert await state(server) == "READY"
        dependents = {"unload_dependents": VALUE(bool_param=True)}
        unload = pb.RepositoryModelUnloadRequest(model_name="plain", parameters=dependents)
        assert (await call(server, "RepositoryModelUnload", unload))[0] == OK
        assert await state(server) == "UNAVAILABLE"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_what_an_ensemble_needs_is_unloaded_with_it_if_that_is_asked_for(
    autojump_clock: MockClock, tmp_path: Path, protocol: str
) -> None:
    write_models(tmp_path, only=("plain",))
    (tmp_path / "whole" / "1").mkdir(parents=True)
    (tmp_path / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    async with memory_server(tmp_path, model_control="explicit") as server:
        for dependents, left in ((False, "READY"), (True, "UNAVAILABLE")):
            assert await ask(server, "/v2/repository/models/whole/load", b"") == (200, None)
            assert await state(server) == "READY"
            if protocol == "http":
                body = json.dumps({"parameters": {"unload_dependents": dependents}}).encode()
                assert await ask(server, "/v2/repository/models/whole/unload", body) == (200, None)
            else:
                request = pb.RepositoryModelUnloadRequest(
                    model_name="whole",
                    parameters={"unload_dependents": VALUE(bool_param=dependents)},
                )
                assert (await call(server, "RepositoryModelUnload", request))[0] == OK
            assert await state(server) == left


async def test_a_load_brings_its_configuration(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models, model_control="explicit") as server:
        body = json.dumps({"parameters": {"config": CONFIG}}).encode()
        assert await ask(server, LOAD, body) == (200, None)
        _, metadata = await ask(server, "/v2/models/plain")
        assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "INT64", "shape": [2]}]
        load = pb.RepositoryModelLoadRequest(model_name="plain")
        assert (await call(server, "RepositoryModelLoad", load))[0] == OK
        _, metadata = await ask(server, "/v2/models/plain")
        assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "INT32", "shape": [-1, -1]}]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (LOAD, b"{", 400, "not valid JSON"),
        (LOAD, b'{"parameters":{"config":{}}}', 400, "as JSON text into a string"),
        (LOAD, b'{"parameters":{"confg":"{}"}}', 400, "'confg'"),
        (LOAD, b'{"parameters":{"config":"{}","file:../x":""}}', 400, "inside of the model's"),
        ("/v2/repository/models/..%2Fplain/load", b"", 400, "'../plain'"),
        ("/v2/repository/models/%20/load", b"", 400, "empty"),
        ("/v2/repository/mine/models/plain/load", b"", 501, "'mine'"),
        ("/v2/repository/mine/models/plain/unload", b"", 501, "'mine'"),
        (UNLOAD, b'{"parameters":{"unload_dependents":"true"}}', 400, "'unload_dependents'"),
        ("/v2/repository/index", b'{"ready":1}', 400, "'ready'"),
    ],
)
async def test_what_is_refused_over_http_changes_nothing(
    autojump_clock: MockClock, models: Path, *, path: str, body: bytes, status: int, words: str
) -> None:
    async with memory_server(models, **LOADED) as server:
        got, answer = await ask(server, path, body)
        assert (got, words in answer["error"]) == (status, True), answer
        assert await state(server) == "READY"


@pytest.mark.parametrize(
    ("method", "options", "status", "words"),
    [
        ("Load", {"repository_name": "mine"}, UNIMPLEMENTED, "'mine'"),
        ("Unload", {"repository_name": "mine"}, UNIMPLEMENTED, "'mine'"),
        ("Load", {"parameters": {"x": VALUE()}}, INVALID_ARGUMENT, "'x'"),
        ("Load", {"parameters": {"config": VALUE(bytes_param=b"")}}, INVALID_ARGUMENT, "'config'"),
        ("Load", {"model_name": "../plain"}, INVALID_ARGUMENT, "'../plain'"),
        (
            "Unload",
            {"parameters": {"unload_dependents": VALUE(int64_param=1)}},
            INVALID_ARGUMENT,
            "'unload_dependents'",
        ),
    ],
)
async def test_what_is_refused_over_grpc_changes_nothing(
    autojump_clock: MockClock,
    models: Path,
    *,
    method: str,
    options: dict[str, Any],
    status: int,
    words: str,
) -> None:
    async with memory_server(models, **LOADED) as server:
        kind = getattr(pb, f"RepositoryModel{method}Request")
        request = kind(**{"model_name": "plain", **options})
        got, text = await call(server, f"RepositoryModel{method}", request)
        assert (got, words in text) == (status, True), text
        assert await state(server) == "READY"


async def test_the_index_of_a_named_repository_is_refused_over_grpc(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        request = pb.RepositoryIndexRequest(repository_name="mine")
        assert (await call(server, "RepositoryIndex", request))[0] == UNIMPLEMENTED


@pytest.mark.parametrize("header", ["Inference-Header-Content-Length: 1", "X: y"])
async def test_a_body_beyond_the_limit_is_refused_however_it_comes(
    autojump_clock: MockClock, models: Path, header: str
) -> None:
    options: dict[str, Any] = {"model_control": "explicit", "http_input_bytes_max": 1000}
    async with memory_server(models, **options) as server:
        client = server.http()
        client.send(request_bytes(LOAD, b" " * 1001, headers=[header]))
        response = await client.response()
        assert response.status == 400
        assert "1000 bytes (--http-max-input-size), got 1001" in response.json["error"]
        assert await state(server) == "UNKNOWN"


async def test_loads_that_have_begun_go_on_when_their_client_leaves(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, model_control="explicit") as server:
        client = server.http()
        client.send(request_bytes(LOAD, b"") * 3)
        await wait_all_tasks_blocked()
        client.end.close()
        assert await state(server) == "READY"
