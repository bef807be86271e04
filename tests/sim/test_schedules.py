"""Random schedules: whatever clients do and whichever task runs first, nobody else notices.

Every client that stays gets exactly its own rows, exactly once; at the end nothing is left, and
every request that was sent is counted once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st

from tests.support.grpc_client import DEADLINE_EXCEEDED, OK, Call, infer_message, rows_of
from tests.support.memory_server import MemoryServer, memory_server, write_models
from tests.support.schedules import run_virtually

TICK_S = 1 / 64
"""Everything happens at multiples of it, and clients leave half way between two."""

LEAVES = ("close", "half_close", "reset")


@dataclass(frozen=True)
class Ask:
    """One request: when it is sent, in ticks, and what it asks.

    Attributes:
      deadline: Ticks the client gives it, None for no deadline (unary gRPC only).
      cancel: Ticks after which, and a half, the client resets it (unary gRPC only).
    """

    at: int
    model: str
    rows: int
    deadline: int | None
    cancel: int | None


@dataclass(frozen=True)
class Plan:
    """One client: its protocol, its requests in order, and how and when it leaves, if it does."""

    kind: str
    asks: tuple[Ask, ...]
    leave: tuple[int, str] | None


def plans() -> st.SearchStrategy[Plan]:
    ask = st.builds(
        Ask,
        at=st.integers(0, 12),
        model=st.sampled_from(["batched", "plain"]),
        rows=st.integers(1, 3),
        deadline=st.none() | st.integers(1, 12),
        cancel=st.none() | st.integers(0, 8),
    )
    return st.builds(
        Plan,
        kind=st.sampled_from(["http", "grpc", "stream"]),
        asks=st.lists(ask, min_size=1, max_size=4).map(
            lambda asks: tuple(sorted(asks, key=lambda ask: ask.at))
        ),
        leave=st.none() | st.tuples(st.integers(0, 12), st.sampled_from(LEAVES)),
    )


class _Run:
    """One scenario in progress."""

    def __init__(self, server: MemoryServer, plans: list[Plan]) -> None:
        self._server = server
        self._plans = plans
        self.sent = 0
        self.answered: list[str] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for number, plan in enumerate(self._plans):
                serve = {"http": self._http, "grpc": self._grpc, "stream": self._stream}
                nursery.start_soon(serve[plan.kind], number, plan)

    async def _until(self, ticks: float) -> None:
        await trio.sleep_until(self._server.start_s + ticks * TICK_S)

    def _rows(self, client: int, index: int, ask: Ask) -> list[list[int]]:
        return [[client, index, row] for row in range(ask.rows)]

    def _asks(self, plan: Plan) -> list[Ask]:
        """What a client gets to ask before it leaves."""
        leave = float("inf") if plan.leave is None else plan.leave[0]
        return [ask for ask in plan.asks if ask.at <= leave]

    async def _leave(self, plan: Plan, client: Any) -> None:
        if plan.leave is not None:
            await self._until(plan.leave[0] + 0.5)
            getattr(client.end, plan.leave[1])()

    async def _http(self, number: int, plan: Plan) -> None:
        client = self._server.http()
        asks = self._asks(plan)

        async def read() -> None:
            for index, ask in enumerate(asks):
                response = await client.response()
                assert response.status == 200
                assert response.json["id"] == f"{number}.{index}"
                assert response.rows == self._rows(number, index, ask)
                self.answered.append(response.json["id"])

        async with trio.open_nursery() as nursery:
            if plan.leave is None:
                nursery.start_soon(read)
            for index, ask in enumerate(asks):
                await self._until(ask.at)
                rows = self._rows(number, index, ask)
                client.infer(ask.model, rows, request_id=f"{number}.{index}")
                self.sent += 1
            await self._leave(plan, client)

    async def _grpc(self, number: int, plan: Plan) -> None:
        client = self._server.grpc()
        async with trio.open_nursery() as nursery:
            for index, ask in enumerate(self._asks(plan)):
                await self._until(ask.at)
                call = client.infer(
                    ask.model,
                    self._rows(number, index, ask),
                    request_id=f"{number}.{index}",
                    timeout="" if ask.deadline is None else f"{ask.deadline * 15_625}u",
                )
                self.sent += 1
                if plan.leave is None:
                    nursery.start_soon(self._one_call, call, number, index, ask)
            await self._leave(plan, client)

    async def _one_call(self, call: Call, number: int, index: int, ask: Ask) -> None:
        start_s = trio.current_time()
        if ask.cancel is not None:
            with trio.move_on_after((ask.cancel + 0.5) * TICK_S) as scope:
                await call.done()
            if scope.cancelled_caught:
                call.cancel()
                return
        status = await call.done()
        if status == DEADLINE_EXCEEDED:
            assert ask.deadline is not None
            assert call.ended_s == start_s + ask.deadline * TICK_S
            assert call.messages == []
            return
        assert status == OK
        assert ask.deadline is None or call.ended_s <= start_s + ask.deadline * TICK_S
        (message,) = call.messages
        assert message.id == f"{number}.{index}"
        assert rows_of(message) == self._rows(number, index, ask)
        self.answered.append(message.id)

    async def _stream(self, number: int, plan: Plan) -> None:
        client = self._server.grpc()
        stream = client.stream()
        asks = self._asks(plan)
        for index, ask in enumerate(asks):
            await self._until(ask.at)
            rows = self._rows(number, index, ask)
            stream.send(infer_message(ask.model, rows, request_id=f"{number}.{index}"))
            self.sent += 1
        if plan.leave is not None:
            await self._leave(plan, client)
            return
        stream.half_close()
        assert await stream.done() == OK
        responses = [message.infer_response for message in stream.messages]
        assert [response.id for response in responses] == [
            f"{number}.{index}" for index in range(len(asks))
        ]
        assert [rows_of(response) for response in responses] == [
            self._rows(number, index, ask) for index, ask in enumerate(asks)
        ]
        self.answered += [response.id for response in responses]


async def scenario(models: Path, planned: list[Plan], batched: int, plain: int) -> None:
    seconds = {"batched": batched * TICK_S, "plain": plain * TICK_S}
    async with memory_server(models, seconds=seconds) as server:
        run = _Run(server, planned)
        await run.run()
        await trio.sleep(100 * TICK_S)
        executed = [request_id for batch in server.executions for request_id in batch.ids]
        assert len(set(executed)) == len(executed)
        assert len(set(run.answered)) == len(run.answered)
        assert set(run.answered) <= set(executed)
        counts = [server.counts(model) for model in ("batched", "plain")]
        assert sum(success + failure for success, failure, _ in counts) == run.sent
        assert sum(success for success, _, _ in counts) >= len(run.answered)
        assert [pending for _, _, pending in counts] == [0, 0]
        assert server.used_bytes == 0


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("two"), only=("batched", "plain"))


@pytest.mark.slow
@settings(max_examples=1000, derandomize=True, deadline=None)
@given(
    planned=st.lists(plans(), min_size=1, max_size=4),
    batched=st.sampled_from([0, 1, 7]),
    plain=st.sampled_from([0, 1, 4]),
    random=st.random_module(),
)
def test_random_schedules(
    two_models: Path, planned: list[Plan], batched: int, plain: int, random: object
) -> None:
    run_virtually(partial(scenario, two_models, planned, batched, plain))
