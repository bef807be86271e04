"""Iterative sequences on virtual time: a request that is executed until it is answered."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.remembering import (
    BOTH,
    Strategy,
    answered,
    direct,
    error_of,
    history,
    oldest,
    sequence_config,
)
from tests.support.sequences import sequences
from tritrio.actors.reply import Reply
from tritrio.protocol.errors import ErrorCode, FailureReason

ROWS = {direct: ["1", "-", ">3"], oldest: [">3", "1"]}


@BOTH
async def test_an_iterative_request_is_a_sequence_and_is_executed_until_it_is_answered(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), iterative=True, implicit=False)
    async with sequences(config, seconds=0.25) as served:
        served.model.again = {1: 3, 2: 1}
        first, second = served.submit(1, 0), served.submit(2, 0)
        await trio.sleep(0.375)
        third = served.submit(3, 0)
        answers = [answered(await reply.receive()) for reply in (first, second, third)]
        assert answers == [history(1, 1, 1, 1), history(2, 2), history(3)]
        assert served.model.batches == [[">1", ">2"], ["1", "2"], ROWS[strategy], ["1"]]
        assert served.policy.snapshot().slots_used == 0
        assert served.statistics.success.count == 3
    assert served.model.ends == [(0, 2, "end"), (0, 3, "end"), (0, 1, "end")]


@BOTH
async def test_an_internal_id_is_none_that_a_client_uses(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), iterative=True, implicit=False)
    async with sequences(config, seconds=0.25) as served:
        replies = [served.submit(1, 1, ">"), served.submit(2, 0)]
        for reply in replies:
            await reply.receive()
        assert served.model.batches == [[">1", ">2"]]
    assert served.model.ends == [(0, 1, "end"), (0, 2, "end")]


@BOTH
async def test_an_iterative_request_with_the_id_of_another_one_waits_for_it(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), iterative=True, implicit=False)
    async with sequences(config) as served:
        served.model.again = {1: 1}
        replies = [served.submit(1, 9, ">"), served.submit(2, 9, ">.")]
        for reply in replies:
            assert (await reply.receive()).error is None
        assert served.model.batches == [[">1"], ["1"], [">2."]]


@BOTH
async def test_an_iterative_request_with_an_id_of_its_client_needs_the_start_flag(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), iterative=True, implicit=False)
    async with sequences(config) as served:
        assert error_of(await served.ask(1, 9)).code is ErrorCode.INVALID_ARG
        assert error_of(await served.ask(2, 9, ".")).code is ErrorCode.INVALID_ARG


@BOTH
async def test_an_iterative_request_is_never_idle(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), iterative=True, implicit=False, idle_ticks=256)
    async with sequences(config, seconds=1.0) as served:
        served.model.again = {1: 2}
        assert (await served.ask(1, 0)).error is None
        assert served.elapsed_s() == 3.0


@BOTH
@pytest.mark.parametrize("leaves_s", [0.125, 0.375])
async def test_a_cancelled_iterative_request_is_executed_no_more(
    autojump_clock: MockClock, strategy: Strategy, leaves_s: float
) -> None:
    config = sequence_config(strategy(), iterative=True, implicit=False)
    async with sequences(config, seconds=0.25) as served:
        served.model.again = {1: 100}
        reply = served.submit(1, 0)
        await trio.sleep(leaves_s)
        reply.close()
        await trio.sleep(1.0)
        assert len(served.model.batches) == (1 if leaves_s < 0.25 else 2)
        assert served.policy.snapshot().slots_used == 0
        assert served.statistics.failures[FailureReason.CANCELED] == 1
        assert served.model.ends == [(0, 1, "cancelled")]


async def test_a_cancelled_iterative_request_that_waits_for_its_turn_ends_at_once(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(oldest(2), max_batch_size=1, iterative=True, implicit=False)
    async with sequences(config, seconds=0.25) as served:
        served.model.again = {1: 1, 2: 1}
        replies = [served.submit(1, 0), served.submit(2, 0)]
        await trio.sleep(0.375)
        replies[0].close()
        await wait_all_tasks_blocked()
        assert served.statistics.failures[FailureReason.CANCELED] == 1
        assert answered(await replies[1].receive()) == history(2, 2)
        assert served.model.batches == [[">1"], [">2"], ["2"]]


async def test_preserved_order_holds_for_iterative_requests(autojump_clock: MockClock) -> None:
    config = sequence_config(oldest(preserve_ordering=True), iterative=True, implicit=False)
    order: list[str] = []
    async with sequences(config, seconds=0.25) as served:
        served.model.again = {1: 2}

        async def ask(reply: Reply) -> None:
            order.append((await reply.receive()).id)

        async with trio.open_nursery() as nursery:
            replies = [served.submit(1, 0), served.submit(2, 0)]
            for reply in replies:
                nursery.start_soon(ask, reply)
            await trio.sleep(0.625)
            assert order == []
        assert sorted(order) == ["1", "2"]
        assert served.elapsed_s() == 0.75


async def test_an_iterative_request_cancelled_while_it_executes_takes_no_row_any_more(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(direct(), iterative=True, implicit=False)
    async with sequences(config, seconds=0.25) as served:
        served.model.again = {2: 100}
        replies = [served.submit(1, 0), served.submit(2, 0)]
        await trio.sleep(0.125)
        replies[1].close()
        assert answered(await replies[0].receive()) == history(1)
        await trio.sleep(1.0)
        assert served.model.batches == [[">1", ">2"]]


async def test_each_execution_of_an_iterative_request_waits_for_company_anew(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(direct(256, 1.0), iterative=True, implicit=False)
    async with sequences(config) as served:
        served.model.again = {1: 2}
        assert answered(await served.ask(1, 0)) == history(1, 1, 1)
        assert served.left_s() == [0.25, 0.5, 0.75]
