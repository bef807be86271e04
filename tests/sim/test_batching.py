"""When requests leave the batcher, seen by clients of both protocols."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from tests.support.grpc_client import OK, rows_of
from tests.support.memory_server import DELAY_S, Execution, memory_server


async def test_lone_http_request_leaves_exactly_at_its_deadline(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        response = await server.http().ask("batched", [[1, 2]], request_id="a")
        assert response.status == 200
        assert response.rows == [[1, 2]]
        assert server.executions == [Execution(DELAY_S, "batched", ("a",))]
        assert response.at_s - server.start_s == DELAY_S


async def test_lone_grpc_request_leaves_exactly_at_its_deadline(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        call = server.grpc().infer("batched", [[1, 2]], request_id="a")
        assert await call.done() == OK
        assert rows_of(call.messages[0]) == [[1, 2]]
        assert server.executions == [Execution(DELAY_S, "batched", ("a",))]
        assert call.ended_s - server.start_s == DELAY_S


async def test_full_batch_of_both_protocols_leaves_at_once(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        http = [server.http() for _ in range(2)]
        grpc = server.grpc()
        for number, client in enumerate(http):
            client.infer("batched", [[number]])
        calls = [grpc.infer("batched", [[number]]) for number in (2, 3)]
        assert [(await client.response()).rows for client in http] == [[[0]], [[1]]]
        assert [await call.done() for call in calls] == [OK, OK]
        assert [rows_of(call.messages[0]) for call in calls] == [[[2]], [[3]]]
        assert server.elapsed_s() == 0.0
        assert [execution.at_s for execution in server.executions] == [0.0]
        assert server.counts("batched") == (4, 0, 0)
