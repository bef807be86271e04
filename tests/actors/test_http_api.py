"""The REST handler over connections in memory: which answer each route gives."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.http_client import infer_body, request_bytes
from tests.support.memory_server import memory_server
from tritrio.actors.http_api import CODEC_THREADS_MAX, OFFLOAD_BYTES_MIN
from tritrio.memory.budget import BUDGET_USED_UP
from tritrio.protocol.errors import FailureReason
from tritrio.protocol.http_response import HttpResponse
from tritrio.protocol.json_codec import PRINTED_BYTES_MAX
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Tensor

INFER = "/v2/models/plain/infer"


async def ask(
    models: Path, path: str, body: bytes | None = None, *, method: str = "", **options: Any
) -> tuple[int, Any]:
    """Status and JSON of one answer."""
    headers = options.pop("headers", ())
    async with memory_server(models, **options) as server:
        client = server.http()
        client.send(request_bytes(path, body, method=method, headers=headers))
        response = await client.response()
        return response.status, response.json if response.body else None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2/health/live", (200, None)),
        ("/v2/health/ready", (200, None)),
        ("/v2/models/plain/ready", (200, None)),
        ("/v2/models/plain/versions/1/ready", (200, None)),
    ],
)
async def test_health_is_an_empty_200(
    autojump_clock: MockClock, models: Path, path: str, expected: tuple[int, Any]
) -> None:
    assert await ask(models, path) == expected


async def test_metadata(autojump_clock: MockClock, models: Path) -> None:
    status, server = await ask(models, "/v2", server_id="mine")
    assert (status, server["name"]) == (200, "mine")
    status, model = await ask(models, "/v2/models/plain")
    assert status == 200
    assert (model["name"], model["versions"]) == ("plain", ["1"])
    assert model["inputs"] == [{"name": "INPUT0", "datatype": "INT32", "shape": [-1, -1]}]
    assert model["outputs"] == [{"name": "OUTPUT0", "datatype": "INT32", "shape": [-1, -1]}]


async def test_index_lists_every_model(autojump_clock: MockClock, models: Path) -> None:
    status, index = await ask(models, "/v2/repository/index", b"")
    assert status == 200
    assert sorted((entry["name"], entry["state"]) for entry in index) == [
        (name, "READY") for name in ("batched", "limited", "plain", "repeat")
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v2/models/missing", None, 404, "expected the name of a known model, got 'missing'"),
        ("/v2/models/plain/versions/7", None, 404, "7"),
        (INFER, b"", 400, "expected an inference request as JSON, got an empty body"),
        (INFER, b"[1", 400, ""),
        ("/v2/models/repeat/infer", infer_body([[1, 1]]), 501, "decoupled"),
        ("/v2/repository/models/plain/load", b"", 503, "explicit"),
        ("/v2/repository/mine/models/plain/load", b"", 501, "repository by name"),
    ],
)
async def test_refusals_say_why(
    autojump_clock: MockClock,
    models: Path,
    *,
    path: str,
    body: bytes | None,
    status: int,
    text: str,
) -> None:
    got, answer = await ask(models, path, body)
    assert got == status, answer
    assert text in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("DELETE", "/v2/health/live", 405), ("GET", INFER, 405)],
)
async def test_unknown_paths_and_methods(
    autojump_clock: MockClock, models: Path, method: str, path: str, status: int
) -> None:
    got, _ = await ask(models, path, method=method)
    assert got == status


async def test_binary_tensors_in_and_out(autojump_clock: MockClock, models: Path) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = {
        "name": "INPUT0",
        "datatype": "INT32",
        "shape": [2, 3],
        "parameters": {"binary_data_size": array.nbytes},
    }
    head = orjson.dumps(
        {
            "inputs": [tensor],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    )
    async with memory_server(models) as server:
        client = server.http()
        length = f"Inference-Header-Content-Length: {len(head)}"
        client.send(request_bytes(INFER, head + array.tobytes(), headers=[length]))
        response = await client.response()
        assert response.headers["content-type"] == "application/octet-stream"
        size = int(response.headers["inference-header-content-length"])
        assert response.body[size:] == array.tobytes()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compressed_body_is_expanded(models: Path, coding: str) -> None:
    """Real time: it is expanded on a thread."""
    body = infer_body([[1, 2]])
    body = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    status, answer = await ask(models, INFER, body, headers=[f"Content-Encoding: {coding}"])
    assert (status, answer["outputs"][0]["data"]) == (200, [1, 2])


async def test_compressed_body_that_expands_too_far_is_refused_and_counted(models: Path) -> None:
    async with memory_server(models, http_input_bytes_max=1000) as server:
        client = server.http()
        body = gzip.compress(b" " * 100_000)
        client.send(request_bytes(INFER, body, headers=["Content-Encoding: gzip"]))
        response = await client.response()
        assert response.status == 400
        assert "1000" in response.json["error"]
        assert server.counts("plain") == (0, 1, 0)


async def test_compressed_body_counts_with_what_it_expands_to(models: Path) -> None:
    """Real time: it is expanded on a thread."""
    async with memory_server(models, seconds={"plain": 0.05}) as server:
        client = server.http()
        body = infer_body([[1]]) + b" " * 100_000
        packed = gzip.compress(body)
        client.send(request_bytes(INFER, packed, headers=["Content-Encoding: gzip"]))
        with trio.fail_after(10):
            while not server.executions:
                await wait_all_tasks_blocked()
        assert server.used_bytes == len(packed) + len(body)
        assert (await client.response()).rows == [[1]]
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


@pytest.mark.parametrize("filler", [b" ", b"x"])
async def test_compressed_body_that_expands_beyond_the_budget_is_refused_and_counted(
    models: Path, filler: bytes
) -> None:
    async with memory_server(models, byte_budget=10_000) as server:
        client = server.http()
        body = gzip.compress(infer_body([[1]]) + filler * 100_000)
        client.send(request_bytes(INFER, body, headers=["Content-Encoding: gzip"]))
        response = await client.response()
        assert (response.status, response.json) == (503, {"error": BUDGET_USED_UP})
        assert server.counts("plain") == (0, 1, 0)
        assert server.used_bytes == 0


def binary_request(rows: np.ndarray[Any, Any]) -> bytes:
    """An inference with binary data in and JSON out."""
    tensor = {
        "name": "INPUT0",
        "datatype": "INT32",
        "shape": list(rows.shape),
        "parameters": {"binary_data_size": rows.nbytes},
    }
    head = orjson.dumps({"inputs": [tensor]})
    length = f"Inference-Header-Content-Length: {len(head)}"
    return request_bytes(INFER, head + rows.tobytes(), headers=[length])


LARGE = np.arange(2 * PRINTED_BYTES_MAX // 4, dtype=np.int32).reshape(1, -1)


async def test_large_json_answer_is_left_to_a_thread_and_a_small_one_is_not(models: Path) -> None:
    async with memory_server(models) as server:
        for rows, at_once in ((LARGE[:, :-1], False), (LARGE[:, :1000], True)):
            request = InferRequest("plain")
            tensor = Tensor("OUTPUT0", "INT32", rows.shape, array=rows)
            answer = server.parts.http_api.finish(
                request, InferResponse("plain", "1", "", [tensor])
            )
            assert isinstance(answer, HttpResponse) is at_once
            response = answer if isinstance(answer, HttpResponse) else await answer
            assert not isinstance(response.body, bytes)
            assert orjson.loads(b"".join(response.body))["outputs"][0]["data"] == rows[0].tolist()


async def test_large_json_answers_come_in_their_turn(models: Path) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.send(binary_request(LARGE))
        client.infer("plain", [[1]])
        assert (await client.response()).rows == LARGE.tolist()
        assert (await client.response()).rows == [[1]]
        client.send(binary_request(LARGE))  # alone, and the connection goes on
        assert (await client.response()).rows == LARGE.tolist()
        assert (await client.ask("plain", [[2]])).rows == [[2]]
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_clients_that_leave_during_the_encoding_cost_nothing(models: Path) -> None:
    async with memory_server(models) as server:
        clients = [server.http() for _ in range(3 * CODEC_THREADS_MAX)]
        for client in clients:
            client.send(binary_request(LARGE))
        await wait_all_tasks_blocked()
        for client in clients:
            client.end.close()
        with trio.fail_after(10):
            while server.parts.http.connection_count:
                await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_large_json_is_decoded_on_a_thread_and_answered_in_its_turn(models: Path) -> None:
    rows = [list(range(100_000, 100_000 + OFFLOAD_BYTES_MIN // 7))]
    async with memory_server(models) as server:
        client = server.http()
        client.infer("plain", rows)
        client.infer("plain", [[1]])
        assert (await client.response()).rows == rows
        assert (await client.response()).rows == [[1]]


async def test_clients_that_leave_during_the_decoding_cost_nothing(models: Path) -> None:
    rows = [list(range(100_000, 100_000 + OFFLOAD_BYTES_MIN // 7))]
    async with memory_server(models) as server:
        clients = [server.http() for _ in range(3 * CODEC_THREADS_MAX)]
        for client in clients:
            client.infer("plain", rows)
        await wait_all_tasks_blocked()  # the threads decode
        assert server.parts.http.connection_count == len(clients)
        for client in clients:
            client.end.close()
        with trio.fail_after(10):
            while server.parts.http.connection_count:
                await wait_all_tasks_blocked()
        assert server.used_bytes == 0
        success, fail, pending = server.counts("plain")
        assert (success + fail, pending) == (len(clients), 0)
        assert success < len(clients)  # the threads were quicker than we with some
        assert server.statistics("plain").failures[FailureReason.CANCELED] == fail


async def test_refused_requests_are_counted_by_their_model(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.send(request_bytes(INFER, b"{"))
        client.infer("plain", [[1]] * 5)
        client.infer("repeat", [[1, 1]])
        client.infer("missing", [[1]])
        assert [(await client.response()).status for _ in range(4)] == [400, 400, 501, 404]
        assert server.counts("plain") == (0, 2, 0)
