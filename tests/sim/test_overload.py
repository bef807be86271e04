"""Load beyond what fits: who is refused, what the refusal says, and that it ends by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import Served, model_config, serving
from tests.support.grpc_client import UNAVAILABLE, infer_message
from tests.support.limits import TICK_S
from tests.support.memory_server import DELAY_S, memory_server
from tritrio.actors._overload_policy import OverloadPolicy
from tritrio.actors.overload import Overload
from tritrio.actors.reply import Reply
from tritrio.memory.budget import ByteBudget
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferResponse


@asynccontextmanager
async def overloadable(
    budget: ByteBudget, policy: OverloadPolicy, *, levels: int = 3
) -> AsyncIterator[Served]:
    """Serve a model with priority levels, whose batches take a second, below a watch for load."""
    batching = pb.ModelDynamicBatching(
        priority_levels=levels, default_priority_level=min(levels, 2)
    )
    config = model_config(max_batch_size=1, batching=batching)
    overload = Overload(budget, policy)
    async with trio.open_nursery() as nursery:
        await nursery.start(overload.run)
        async with serving(config, seconds=1.0, overload=overload) as served:
            yield served
        assert not overload._members
        nursery.cancel_scope.cancel()


def queue_all(served: Served) -> list[Reply]:
    """One request that runs, and one in each of three levels."""
    return [served.submit(number, priority=number or 1) for number in range(4)]


def error_of(reply: Reply) -> RequestError:
    return error_of_answer(reply.receive_nowait())


def error_of_answer(response: InferResponse) -> RequestError:
    error = response.error
    assert error is not None
    return error


async def test_the_lower_the_priority_the_sooner_a_request_is_refused(
    autojump_clock: MockClock,
) -> None:
    budget = ByteBudget(1000)
    policy = OverloadPolicy(memory_high=0.75, memory_low=0.5)
    async with overloadable(budget, policy) as served:
        replies = queue_all(served)
        await wait_all_tasks_blocked()
        budget.try_take(800)
        newcomers = [served.submit(10 + level, priority=level) for level in (3, 2)]
        await wait_all_tasks_blocked()
        for refused in (replies[3], newcomers[0]):
            error = error_of(refused)
            assert (error.code, error.reason) == (ErrorCode.UNAVAILABLE, FailureReason.REJECTED)
            assert error.retry_after_s == 1.0
        budget.try_take(150)
        newcomers += [served.submit(20 + level, priority=level) for level in (0, 1)]
        await wait_all_tasks_blocked()
        for refused in (replies[2], newcomers[1], newcomers[2]):
            assert error_of(refused).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 0.0
        assert served.version.statistics.failures[FailureReason.REJECTED] == 5
        assert served.version.statistics.pending_count == 2
        for reply in (replies[0], replies[1], newcomers[3]):
            assert (await reply.receive()).error is None
        assert served.backend.batches == [["0"], ["1"], ["21"]]
        budget.give_back(950)
        assert (await served.ask(30, priority=3)).error is None


async def test_a_model_without_levels_is_served_until_the_budget_is_full(
    autojump_clock: MockClock,
) -> None:
    budget = ByteBudget(1000)
    async with overloadable(budget, OverloadPolicy(), levels=0) as served:
        budget.try_take(1000)
        replies = [served.submit(number, priority=number) for number in range(3)]
        assert [(await reply.receive()).error for reply in replies] == [None] * 3


async def test_optional_work_pauses_while_there_is_an_overload(autojump_clock: MockClock) -> None:
    budget = ByteBudget(1000)
    async with overloadable(budget, OverloadPolicy()) as served:
        batcher: Any = served.model._scheduler
        await served.ask(1)
        budget.try_take(900)
        await served.ask(2, priority=1)
        assert len(batcher.explain()["decisions"]) == 1
        budget.give_back(900)
        await served.ask(3)
        assert len(batcher.explain()["decisions"]) == 2


async def test_requests_that_wait_for_too_long_shed_the_lowest_levels(
    autojump_clock: MockClock,
) -> None:
    policy = OverloadPolicy(queue_age_high_s=2.0)
    async with overloadable(ByteBudget(1000), policy) as served:
        replies = [served.submit(number, priority=1) for number in range(8)]
        low = served.submit(8, priority=3)
        start_s = served.start_s
        await low.receive()
        assert trio.current_time() == start_s + 3.0  # the first turn above 2 s
        for reply in replies:
            assert (await reply.receive()).error is None
        await trio.sleep(1.0)
        assert (await served.ask(9, priority=3)).error is None


async def test_requests_that_wait_for_company_are_no_overload(autojump_clock: MockClock) -> None:
    batching = pb.ModelDynamicBatching(
        priority_levels=2, default_priority_level=2, max_queue_delay_microseconds=4_000_000
    )
    config = model_config(max_batch_size=4, batching=batching)
    overload = Overload(ByteBudget(1000), OverloadPolicy(queue_age_high_s=0.25))
    async with serving(config, seconds=1.0, overload=overload) as served:
        replies = [served.submit(0)]
        for number in range(1, 3):
            await trio.sleep(1.0)
            replies.append(served.submit(number))
        assert [(await reply.receive()).error for reply in replies] == [None] * 3
        assert served.elapsed_s() == 5.0
        assert served.backend.batches == [["0", "1", "2"]]


async def test_a_slow_model_sheds_nothing_of_an_idle_one(autojump_clock: MockClock) -> None:
    overload = Overload(ByteBudget(1000), OverloadPolicy(queue_age_high_s=2.0))
    batching = pb.ModelDynamicBatching(priority_levels=3, default_priority_level=2)
    config = model_config(max_batch_size=1, batching=batching)
    async with (
        serving(config, seconds=1.0, overload=overload) as slow,
        serving(config, overload=overload) as idle,
    ):
        replies = [slow.submit(number, priority=1) for number in range(6)]
        low = slow.submit(6, priority=3)
        assert error_of_answer(await low.receive()).code is ErrorCode.UNAVAILABLE
        assert slow.elapsed_s() == 3.0
        assert (await idle.ask(7, priority=3)).error is None
        assert idle.elapsed_s() == 3.0
        assert overload.state.admitted_share < 1.0
        for reply in replies:
            assert (await reply.receive()).error is None


@pytest.mark.parametrize("waited_ticks", [0, 8])
async def test_a_full_queue_says_on_both_protocols_when_to_come_back(
    autojump_clock: MockClock, models: Path, waited_ticks: int
) -> None:
    async with memory_server(models) as server:
        waiting = [server.http() for _ in range(2)]
        for client in waiting:
            client.infer("limited", [[1]])
        await wait_all_tasks_blocked()
        await trio.sleep(waited_ticks * TICK_S)
        refused = await server.http().ask("limited", [[2]])
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        call = server.grpc().infer("limited", [[3]])
        assert await call.done() == UNAVAILABLE
        assert call.trailers["grpc-retry-pushback-ms"] == "125"
        assert server.elapsed_s() == waited_ticks * TICK_S
        stream = server.grpc().stream(metadata=[("triton_grpc_error", "true")])
        stream.send(infer_message("limited", [[4]]))
        assert await stream.done() == UNAVAILABLE
        assert stream.trailers["grpc-retry-pushback-ms"] == "125"
        for client in waiting:
            answer = await client.response()
            assert "retry-after" not in answer.headers
        assert server.elapsed_s() == DELAY_S


async def test_a_model_tells_over_http_how_it_batches(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        assert (await client.ask("batched", [[1]])).status == 200
        for path in ("/v2/models/batched/batching", "/v2/models/batched/versions/1/batching"):
            client.get(path)
            response = await client.response()
            assert response.status == 200
            assert response.headers["content-type"] == "application/json"
            told = response.json
            assert (told["name"], told["version"], told["scheduler"]) == ("batched", "1", "dynamic")
            assert told["rules"]["preferred_batch_size"] == [4]
            assert [decision["reason"] for decision in told["decisions"]] == ["delay over"]
        client.get("/v2/models/plain/batching")
        assert (await client.response()).json["scheduler"] == "default"
        for path, status in (
            ("/v2/models/unknown/batching", 404),
            ("/v2/models/batched/versions/7/batching", 404),
            ("/v2/models/batched/versions/x/batching", 400),
        ):
            client.get(path)
            assert (await client.response()).status == status
