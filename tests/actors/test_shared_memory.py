"""Regions and tensors in them, over connections in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.grpc_client import (
    INTERNAL,
    OK,
    GrpcClient,
)
from tests.support.http_client import HttpClient, request_bytes
from tests.support.regions import (
    INFER,
    ROW,
    SYSTEM,
    grpc_message,
    http_body,
    post,
    register,
    server_with,
    status,
)
from tests.support.shared_memory import PAGE, read_at, shared_object, size_of, write_at
from tritrio.actors.region_access import INLINE_BYTES_MAX
from tritrio.memory.budget import BUDGET_USED_UP

LARGE = np.arange(INLINE_BYTES_MAX // 4 + 1, dtype=np.int32)[None]


@pytest.fixture
def item() -> Iterator[Path]:
    """An object with room for two large tensors."""
    with shared_object(4 * INLINE_BYTES_MAX) as path:
        yield path


@pytest.mark.parametrize("array", [ROW, LARGE], ids=["small", "large"])
async def test_http_reads_inputs_from_and_writes_outputs_to_a_region(
    models: Path, item: Path, array: Any
) -> None:
    size, half = array.nbytes, 2 * INLINE_BYTES_MAX
    write_at(item, array.tobytes(), 4)
    async with server_with(models, item) as server:
        client = server.http()
        for _ in range(2):
            answer = await post(client, INFER, http_body(array, ("r", 4, size), ("r", half, size)))
            assert (answer.status, answer.json["outputs"]) == (
                200,
                [{"name": "OUTPUT0", "datatype": "INT32", "shape": list(array.shape)}],
            )
            assert read_at(item, size, half) == array.tobytes()
            write_at(item, bytes(size), half)
        answer = await post(client, INFER, http_body(array, None, ("r", half, size)))
        assert (answer.status, read_at(item, size, half)) == (200, array.tobytes())
        assert server.counts("plain") == (3, 0, 0)


async def test_data_of_a_region_can_be_asked_for_as_json(models: Path, item: Path) -> None:
    write_at(item, ROW.tobytes())
    async with server_with(models, item) as server:
        answer = await post(server.http(), INFER, http_body(ROW, ("r", 0, 12), None))
        assert answer.rows == [[3, 1, 4]]


@pytest.mark.parametrize("array", [ROW, LARGE], ids=["small", "large"])
async def test_grpc_reads_inputs_from_and_writes_outputs_to_a_region(
    models: Path, item: Path, array: Any
) -> None:
    size, half = array.nbytes, 2 * INLINE_BYTES_MAX
    write_at(item, array.tobytes(), 4)
    async with server_with(models, item) as server:
        message = grpc_message(array, ("r", 4, size), ("r", half, size))
        call = server.grpc().call("ModelInfer", message)
        assert await call.done() == OK
        (reply,) = call.messages
        assert [(one.name, list(one.shape)) for one in reply.outputs] == [
            ("OUTPUT0", list(array.shape))
        ]
        assert list(reply.raw_output_contents) == [b""]
        assert read_at(item, size, half) == array.tobytes()


async def test_a_stream_writes_every_response_into_its_region(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    rows = np.array([[7, 1], [9, 2]], np.int32)
    write_at(item, rows.tobytes())
    async with server_with(models, item) as server:
        stream = server.grpc().stream()
        stream.send(grpc_message(ROW, ("no", 0, 12), None, name="1"))
        stream.send(grpc_message(rows, ("r", 0, 16), ("r", 64, 16), name="2"))
        stream.send(grpc_message(rows, ("r", 0, 16), ("r", 80, 15), name="3"))
        decoupled = grpc_message(rows, ("r", 0, 16), ("r", 96, 8), model="repeat", name="4")
        stream.send(decoupled, end=True)
        assert await stream.done() == OK
        answers = {
            message.infer_response.id: (
                message.error_message,
                [list(output.shape) for output in message.infer_response.outputs],
                list(message.infer_response.raw_output_contents),
            )
            for message in stream.messages
        }
        assert answers == {
            "1": ("shared memory region 'no' is not registered", [], []),
            "2": ("", [[2, 2]], [b""]),
            "3": ("output 'OUTPUT0' was given 15 bytes of shared memory, but needs 16", [], []),
            "4": ("", [[1, 2]], [b""]),
        }
        assert read_at(item, 40, 64) == rows.tobytes() + bytes(16) + b"\t\0\0\0\t\0\0\0"


async def test_an_output_larger_than_its_place_harms_nothing(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with server_with(models, item) as server:
        client = server.http()
        for body in (http_body(ROW, None, ("r", 0, 11)), http_body(ROW, None, ("r", 0, 0))):
            answer = await post(client, INFER, body)
            assert answer.status == 500
            assert "'OUTPUT0'" in answer.json["error"]
            assert "needs 12" in answer.json["error"]
        call = server.grpc().call("ModelInfer", grpc_message(ROW, None, ("r", 0, 11)))
        assert await call.done() == INTERNAL
        assert read_at(item, 12) == bytes(12)
        assert (await post(client, INFER, http_body(ROW, None, ("r", 0, 12)))).status == 200
        assert read_at(item, 12) == ROW.tobytes()


async def test_a_region_in_use_is_unregistered_when_its_requests_have_ended(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    write_at(item, ROW.tobytes())
    async with server_with(models, item, seconds={"plain": 1.0}) as server:
        http, other = server.http(), server.http()
        http.send(request_bytes(INFER, orjson.dumps(http_body(ROW, ("r", 0, 12), ("r", 64, 12)))))
        call = server.grpc().call("ModelInfer", grpc_message(ROW, ("r", 0, 12), ("r", 128, 12)))
        await wait_all_tasks_blocked()
        assert (await post(other, f"{SYSTEM}/region/r/unregister")).status == 200
        assert await status(other) == ["r"]
        assert (await register(other, item)).status == 400
        assert (await post(other, INFER, http_body(ROW, ("r", 0, 12), None))).status == 404
        assert (await http.response()).status == 200
        assert await call.done() == OK
        assert read_at(item, 12, 64) == read_at(item, 12, 128) == ROW.tobytes()
        assert await status(other) == []
        assert (await register(other, item)).status == 200


@pytest.mark.parametrize("transport", ["http", "grpc", "grpc stream"])
async def test_a_client_that_leaves_lets_its_region_go(
    autojump_clock: MockClock, models: Path, item: Path, transport: str
) -> None:
    async with server_with(models, item, seconds={"plain": 1.0}) as server:
        other = server.http()
        client: HttpClient | GrpcClient
        if transport == "http":
            http = client = server.http()
            body = http_body(ROW, ("r", 0, 12), ("r", 64, 12))
            http.send(request_bytes(INFER, orjson.dumps(body)))
        else:
            grpc = client = server.grpc()
            message = grpc_message(ROW, ("r", 0, 12), ("r", 64, 12))
            if transport == "grpc stream":
                grpc.stream().send(message)
            else:
                grpc.call("ModelInfer", message)
        await wait_all_tasks_blocked()
        assert (await post(other, f"{SYSTEM}/unregister")).status == 200
        assert await status(other) == ["r"]
        client.end.close()
        await wait_all_tasks_blocked()
        assert await status(other) == []


async def test_a_call_that_is_reset_while_it_has_a_task_leaves_nothing(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with server_with(models, item, seconds={"plain": 1.0}) as server:
        client = server.grpc()
        message = grpc_message(ROW, ("r", 0, 12), None)
        reset = client.call("ModelInfer", message)
        late = client.call("ModelInfer", message, timeout="100m")
        await wait_all_tasks_blocked()
        reset.cancel()
        assert await late.done() == 4
        other = server.http()
        await post(other, f"{SYSTEM}/unregister")
        assert await status(other) == []
        assert server.counts("plain") == (0, 1, 0)  # the other one executes


async def test_a_graceful_stop_waits_for_calls_with_a_task(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with server_with(models, item, seconds={"plain": 1.0}) as server:
        message = grpc_message(ROW, None, ("r", 0, 12))
        call = server.grpc().call("ModelInfer", message)
        http = server.http()
        http.send(request_bytes(INFER, orjson.dumps(http_body(ROW, None, ("r", 64, 12)))))
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        assert await call.done() == OK
        assert (await http.response()).status == 200
        assert read_at(item, 12) == read_at(item, 12, 64) == ROW.tobytes()


async def test_inputs_count_in_the_budget_until_the_answer(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with server_with(models, item, seconds={"plain": 1.0}, byte_budget=100_000) as server:
        size = 4 * 20_000
        array = np.zeros((1, 20_000), np.int32)
        call = server.grpc().call("ModelInfer", grpc_message(array, ("r", 0, size), ("r", 0, size)))
        await wait_all_tasks_blocked()
        assert size <= server.used_bytes < size + 1000
        answer = await post(server.http(), INFER, http_body(array, ("r", 0, size), None))
        assert (answer.status, answer.json["error"]) == (503, BUDGET_USED_UP)
        assert await call.done() == OK
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0
        assert server.counts("plain") == (1, 1, 0)


async def test_an_object_that_has_become_shorter_is_the_clients_fault(
    models: Path, item: Path
) -> None:
    async with server_with(models, item) as server:
        client = server.http()
        os.truncate(item, PAGE)
        size = LARGE.nbytes
        for body in (
            http_body(LARGE, ("r", 0, size), None),
            http_body(ROW, ("r", PAGE, 12), None),
            http_body(ROW, None, ("r", PAGE - 4, 12)),
        ):
            answer = await post(client, INFER, body)
            assert answer.status == 400
            assert "shorter" in answer.json["error"]
        assert size_of(item) == PAGE
        assert (await post(client, INFER, http_body(ROW, ("r", 0, 12), None))).status == 200


async def test_requests_that_do_not_fit_let_their_region_go(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with server_with(models, item) as server:
        client = server.http()
        for body, code in (
            (http_body(ROW, ("r", 0, 8), None), 400),
            (http_body(ROW, ("r", 0, 12), ("no", 0, 12)), 404),
            (http_body(np.zeros((9, 1), np.int32), ("r", 0, 36), None), 400),
        ):
            assert (await post(client, INFER, body)).status == code
        await post(client, f"{SYSTEM}/unregister")
        assert await status(client) == []
        assert server.counts("plain") == (0, 3, 0)
