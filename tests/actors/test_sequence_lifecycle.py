"""Backlog timeouts, iterative sequences, lost instances and the stop, on virtual time."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.limits import TICK_S
from tests.support.sequences import (
    Strategy,
    answered,
    direct,
    history,
    oldest,
    sequence_config,
    sequences,
)
from tritrio.actors.reply import Reply
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.requests import InferResponse

BOTH = pytest.mark.parametrize("strategy", [direct, oldest])


def error_of(response: InferResponse) -> RequestError:
    assert response.error is not None
    return response.error


async def test_a_backlogged_sequence_times_out_as_a_whole_at_its_earliest_timeout(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(direct(), max_batch_size=1, idle_ticks=4096)
    async with sequences(config) as served:
        await served.ask(1, 1, ">")
        waiting = [
            served.submit(2, 2, ">", timeout_us=1_000_000),
            served.submit(3, 2, timeout_us=250_000),
            served.submit(4, 2),
        ]
        patient = served.submit(5, 3, ">.")
        for reply in waiting:
            error = error_of(await reply.receive())
            assert error.code is ErrorCode.UNAVAILABLE
            assert error.reason is FailureReason.REJECTED
            assert "sequence 2" in error.message
            assert "timed out" in error.message
        assert served.elapsed_s() == 0.25
        assert error_of(await served.ask(6, 2)).code is ErrorCode.INVALID_ARG
        assert answered(await served.ask(7, 1, ".")) == history(1, 7)
        assert answered(await patient.receive()) == history(5)
    assert served.model.ends == [(0, 1, "end"), (0, 3, "end")]


@BOTH
async def test_a_timeout_does_not_count_once_a_sequence_has_its_slot(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy(), max_batch_size=1), seconds=1.0) as served:
        replies = [
            served.submit(1, 1, ">", timeout_us=250_000),
            served.submit(2, 1, ".", timeout_us=250_000),
        ]
        assert answered(await replies[1].receive()) == history(1, 2)


@pytest.mark.parametrize(
    ("flags", "order"),
    [(">", [">1.", ">4.", ">3."]), (">.", [">1.", ">3.", ">4."])],
    ids=["restarted", "ended"],
)
async def test_what_restarts_a_backlogged_sequence_takes_its_place_and_else_there_is_no_way_past(
    autojump_clock: MockClock, flags: str, order: list[str]
) -> None:
    config = sequence_config(direct(), max_batch_size=1)
    async with sequences(config, seconds=1.0) as served:
        replies = [
            served.submit(1, 1, ">."),
            served.submit(2, 2, flags, timeout_us=250_000),
            served.submit(3, 3, ">."),
            served.submit(4, 2, ">.", timeout_us=10_000_000),
        ]
        assert error_of(await replies[1].receive()).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 0.25
        for reply in (replies[0], replies[2], replies[3]):
            await reply.receive()
        assert served.model.batches == [[row] for row in order]


async def test_a_sequence_whose_turn_comes_before_the_end_of_one_with_its_id_waits_for_that(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(oldest(1), count=2, max_batch_size=1)
    async with sequences(config, seconds=0.25) as served:
        replies = [
            served.submit(1, 1, ">."),
            served.submit(2, 2, ">"),
            served.submit(3, 2),
            served.submit(4, 2, "."),
            served.submit(5, 3, ">."),
            served.submit(6, 2, ">."),
            served.submit(7, 4, ">."),
        ]
        for reply in replies:
            await reply.receive()
        # The turn of the sixth comes at 0.5 s; the seventh goes on in the other slot meanwhile.
        rows = [
            [row for _, instance, (row,) in served.model.executed if instance == index]
            for index in (0, 1)
        ]
        assert rows == [[">1.", ">5.", ">7."], [">2", "3", "4.", ">6."]]


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


@BOTH
async def test_a_lost_instance_ends_its_sequences_and_spares_the_others(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2, max_batch_size=1)
    async with sequences(config, seconds=0.25) as served:
        await served.ask(1, 1, ">")
        await served.ask(2, 2, ">")
        served.devices.deadly.add("11")
        lost = [served.submit(11, 1), served.submit(21, 1), served.submit(31, 1)]
        backlogged = served.submit(3, 3, ">.")
        for reply in lost:
            error = error_of(await reply.receive())
            assert error.code is ErrorCode.UNAVAILABLE
            assert "sequence 1" in error.message
        assert served.elapsed_s() == 0.75
        assert answered(await served.ask(12, 2)) == history(2, 12)
        assert answered(await backlogged.receive()) == history(3)
        assert error_of(await served.ask(41, 1)).code is ErrorCode.INVALID_ARG
        assert (0, 1, "error") in served.model.ends


@BOTH
async def test_no_new_sequence_goes_to_a_lost_instance_before_it_is_back(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2, max_batch_size=1, idle_ticks=4096)
    async with sequences(config) as served:
        served.restarts_after_s = 1.0
        served.devices.deadly.add("1")
        assert error_of(await served.ask(1, 1, ">")).code is ErrorCode.UNAVAILABLE
        replies = [served.submit(number, number, ">") for number in (2, 3)]
        assert answered(await replies[0].receive()) == history(2)
        assert served.elapsed_s() == 0
        assert answered(await replies[1].receive()) == history(3)
        assert served.elapsed_s() == 1.0
        assert [instance for _, instance, _ in served.model.executed] == [1, 0]


@BOTH
async def test_what_waits_for_the_id_of_a_lost_sequence_goes_on_elsewhere(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2)
    async with sequences(config, seconds=0.25) as served:
        served.restarts_after_s = 100.0
        served.devices.deadly.add("1")
        lost, later = served.submit(1, 1, ">."), served.submit(2, 1, ">.")
        assert error_of(await lost.receive()).code is ErrorCode.UNAVAILABLE
        assert answered(await later.receive()) == history(2)
        assert served.elapsed_s() == 0.5
        assert [instance for _, instance, _ in served.model.executed] == [1]


@BOTH
async def test_while_a_model_stops_sequences_under_way_continue_and_none_starts(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), max_batch_size=2)
    async with sequences(config, seconds=0.25) as served:
        replies = [served.submit(number, number, ">") for number in (1, 2, 3)]
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.stop, 60.0)
            await wait_all_tasks_blocked()
            refused = error_of(await served.ask(4, 4, ">"))
            assert refused.code is ErrorCode.UNAVAILABLE
            assert "may continue" in refused.message
            assert served.elapsed_s() == 0
            ends = [served.submit(11, 1, "."), served.submit(12, 2, ".")]
            for number, reply in enumerate(ends, 1):
                assert answered(await reply.receive()) == history(number, 10 + number)
            for number, reply in enumerate(replies, 1):
                assert answered(await reply.receive()) == history(number)
        # The third came from the backlog; that it is not over does not hold up the stop.
        assert served.elapsed_s() == 0.75
    assert (0, 3, "unload") in served.model.ends


@pytest.mark.parametrize(
    "strategy",
    [partial(direct, 2048, 1.0), partial(oldest, delay_ticks=2048)],
    ids=["direct", "oldest"],
)
async def test_a_stop_does_not_wait_for_company_or_for_idle_sequences(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), idle_ticks=102400, implicit=False)
    async with sequences(config) as served:
        reply = served.submit(1, 1, ">")
        await trio.sleep(TICK_S)
        await served.stop(60.0)
        assert answered(await reply.receive()) == history(1)
        assert served.elapsed_s() == TICK_S
    assert served.model.ends == [(0, 1, "unload")]


@BOTH
async def test_a_finished_sequence_and_a_stop_at_once_leave_nothing(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:
        assert answered(await served.ask(1, 7, ">")) == history(1)
        last = served.submit(2, 7, ".")
        await served.stop(60.0)
        assert answered(await last.receive()) == history(1, 2)
    assert served.model.ends == [(0, 7, "end")]


@BOTH
async def test_at_the_deadline_of_a_stop_everything_left_is_answered(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), max_batch_size=1)
    async with sequences(config, seconds=1.0) as served:
        replies = [
            served.submit(1, 1, ">"),
            served.submit(2, 1),
            served.submit(3, 1, ">"),
            served.submit(4, 4, ">"),
        ]
        await wait_all_tasks_blocked()
        await served.stop(0.5)
        for reply in replies:
            assert error_of(await reply.receive()).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() >= 0.5


@BOTH
async def test_a_stop_without_any_instance_left_refuses_what_waits(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy(), max_batch_size=1)) as served:
        served.restarts_after_s = None
        served.devices.deadly.add("1")
        replies = [served.submit(1, 1, ">"), served.submit(2, 2, ">")]
        await wait_all_tasks_blocked()
        await served.stop(60.0)
        assert [error_of(await reply.receive()).code for reply in replies] == [
            ErrorCode.UNAVAILABLE
        ] * 2
        assert served.elapsed_s() == 0


async def test_a_model_that_does_not_listen_is_told_nothing(autojump_clock: MockClock) -> None:
    async with sequences(sequence_config(direct())) as served:
        served.batcher._hears_ends = lambda _: False
        await served.ask(1, 1, ">.")
        await served.ask(2, 2, ">")
        assert served.policy.take_ends(0) == []
    assert served.model.ends == []
