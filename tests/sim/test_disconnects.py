"""A client that leaves: its requests are cancelled in the same instant, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.grpc_client import OK, GrpcClient, rows_of
from tests.support.http_client import HttpClient
from tests.support.memory_server import DELAY_S, MemoryServer, memory_server
from tritrio.protocol.errors import FailureReason

Client = HttpClient | GrpcClient
Connect = Callable[[MemoryServer], Client]

HTTP_AND_GRPC = pytest.mark.parametrize(
    "connect", [MemoryServer.http, MemoryServer.grpc], ids=["http", "grpc"]
)
WAYS_TO_LEAVE = pytest.mark.parametrize(
    "leave",
    [
        lambda client: client.end.close(),
        lambda client: client.end.half_close(),
        lambda client: client.end.reset(),
    ],
    ids=["close", "eof", "reset"],
)
Leave = Callable[[Client], None]


@HTTP_AND_GRPC
@WAYS_TO_LEAVE
async def test_queued_request_of_a_client_that_leaves_is_gone_at_that_instant(
    autojump_clock: MockClock, models: Path, connect: Connect, leave: Leave
) -> None:
    async with memory_server(models) as server:
        client = connect(server)
        client.infer("batched", [[1]], request_id="gone")
        await wait_all_tasks_blocked()
        assert server.counts("batched") == (0, 0, 1)
        assert server.used_bytes > 0
        leave(client)
        await wait_all_tasks_blocked()
        assert server.elapsed_s() == 0.0
        assert server.counts("batched") == (0, 1, 0)
        assert server.statistics("batched").failures[FailureReason.CANCELED] == 1
        assert server.used_bytes == 0
        await trio.sleep(10 * DELAY_S)
        assert server.executions == []
        assert server.counts("batched") == (0, 1, 0)


@HTTP_AND_GRPC
@WAYS_TO_LEAVE
async def test_queue_slot_of_a_client_that_leaves_is_free_at_that_instant(
    autojump_clock: MockClock, models: Path, connect: Connect, leave: Leave
) -> None:
    async with memory_server(models) as server:
        leaver, stayer, late = connect(server), server.http(), server.http()
        leaver.infer("limited", [[1]])
        stayer.infer("limited", [[2]])
        await wait_all_tasks_blocked()
        late.infer("limited", [[3]])
        assert (await late.response()).status == 503
        leave(leaver)
        await wait_all_tasks_blocked()
        late.infer("limited", [[4]])
        assert [(await client.response()).rows for client in (stayer, late)] == [[[2]], [[4]]]
        assert server.elapsed_s() == DELAY_S
        assert server.counts("limited") == (2, 2, 0)


@HTTP_AND_GRPC
@WAYS_TO_LEAVE
async def test_executing_request_of_a_client_that_leaves_is_cancelled_and_counted_once(
    autojump_clock: MockClock, models: Path, connect: Connect, leave: Leave
) -> None:
    async with memory_server(models, seconds={"batched": 2.0}) as server:
        client, neighbour = connect(server), server.http()
        client.infer("batched", [[1], [2]], request_id="gone")
        neighbour.infer("batched", [[3], [4]], request_id="stays")
        await wait_all_tasks_blocked()
        assert set(server.executions[0].ids) == {"gone", "stays"}
        leave(client)
        await wait_all_tasks_blocked()
        connections = server.parts.http.connection_count + server.parts.grpc.connection_count
        assert connections == 1
        response = await neighbour.response()
        assert response.rows == [[3], [4]]
        assert server.elapsed_s() == 2.0
        assert server.counts("batched") == (1, 1, 0)
        assert server.statistics("batched").failures[FailureReason.CANCELED] == 1


@HTTP_AND_GRPC
async def test_request_that_waits_behind_a_busy_instance_never_reaches_the_backend(
    autojump_clock: MockClock, models: Path, connect: Connect
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        busy, leaver = server.http(), connect(server)
        busy.infer("plain", [[1]], request_id="busy")
        await wait_all_tasks_blocked()
        leaver.infer("plain", [[2]], request_id="gone")
        await trio.sleep(0.5)
        leaver.end.close()
        assert (await busy.response()).rows == [[1]]
        await trio.sleep(5.0)
        assert [execution.ids for execution in server.executions] == [("busy",)]
        assert server.counts("plain") == (1, 1, 0)


async def test_rst_stream_cancels_one_of_several_calls_only(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        calls = [client.infer("batched", [[n]], request_id=str(n)) for n in range(3)]
        await wait_all_tasks_blocked()
        used_bytes = server.used_bytes
        calls[1].cancel()
        await wait_all_tasks_blocked()
        assert server.used_bytes * 3 == used_bytes * 2
        assert server.counts("batched") == (0, 1, 2)
        assert [await calls[n].done() for n in (0, 2)] == [OK, OK]
        assert [rows_of(calls[n].messages[0]) for n in (0, 2)] == [[[0]], [[2]]]
        assert [execution.ids for execution in server.executions] == [("0", "2")]
        assert server.statistics("batched").failures[FailureReason.CANCELED] == 1
        assert server.counts("batched") == (2, 1, 0)


@pytest.mark.parametrize("count", [1, 2])
async def test_http_half_close_is_answered_if_the_server_is_told_so(
    autojump_clock: MockClock, models: Path, count: int
) -> None:
    async with memory_server(models, http_half_close=True) as server:
        client = server.http()
        for number in range(count):
            client.infer("batched", [[number]])
        await wait_all_tasks_blocked()
        client.end.half_close()
        for number in range(count):
            assert (await client.response()).rows == [[number]]
        assert await client.closed() - server.start_s == DELAY_S
        assert server.counts("batched") == (count, 0, 0)


async def test_reset_cancels_even_if_half_closes_are_answered(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, http_half_close=True) as server:
        client = server.http()
        client.infer("batched", [[1]])
        await wait_all_tasks_blocked()
        client.end.reset()
        await wait_all_tasks_blocked()
        assert server.counts("batched") == (0, 1, 0)


async def test_pipelined_requests_of_a_client_that_leaves_are_all_cancelled(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.http()
        for number in range(5):
            client.infer("plain", [[number]])
        await wait_all_tasks_blocked()
        client.end.close()
        await wait_all_tasks_blocked()
        assert server.counts("plain") == (0, 4, 0)  # the first is still on its device
        await trio.sleep(1.0)
        await wait_all_tasks_blocked()
        assert server.counts("plain") == (0, 5, 0)
        assert server.statistics("plain").failures[FailureReason.CANCELED] == 5
