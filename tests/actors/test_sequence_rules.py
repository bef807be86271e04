"""What clients of a sequence may do, and how a sequence ends, on virtual time."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.limits import TICK_S
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
from tritrio.backends.base import Batch
from tritrio.protocol.errors import ErrorCode, FailureReason


@BOTH
async def test_each_request_gets_the_state_that_the_one_before_it_left(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:
        assert answered(await served.ask(1, 7, ">")) == history(1)
        assert answered(await served.ask(2, 8, ">")) == history(2)
        assert answered(await served.ask(3, 7)) == history(1, 3)
        assert answered(await served.ask(4, 8, ".")) == history(2, 4)
        assert answered(await served.ask(5, 7, ".")) == history(1, 3, 5)
    assert served.model.ends == [(0, 8, "end"), (0, 7, "end")]


@BOTH
async def test_requests_sent_at_once_are_executed_one_after_the_other(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy()), seconds=0.25) as served:
        replies = [
            served.submit(number, 7, flags) for number, flags in enumerate([">", "", "."], 1)
        ]
        answers = [answered(await reply.receive()) for reply in replies]
        assert answers == [history(1), history(1, 2), history(1, 2, 3)]
        assert served.left_s() == [0.25, 0.5, 0.75]


@BOTH
async def test_an_unknown_sequence_needs_the_start_flag(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:
        cases: list[tuple[int, int | str, str]] = [(1, 7, ""), (2, 7, "."), (3, "seven", "")]
        for number, sequence_id, flags in cases:
            error = error_of(await served.ask(number, sequence_id, flags))
            assert error.code is ErrorCode.INVALID_ARG
            shown = "'seven'" if sequence_id == "seven" else "7"
            assert f"sequence {shown} of model 'model'" in error.message
            assert "START" in error.message
        assert served.model.batches == []


@BOTH
async def test_after_its_end_a_sequence_needs_the_start_flag_again(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:
        assert answered(await served.ask(1, 7, ">.")) == history(1)
        assert error_of(await served.ask(2, 7, ".")).code is ErrorCode.INVALID_ARG
        assert answered(await served.ask(3, 7, ">")) == history(3)


async def test_a_second_end_is_refused_while_the_first_one_waits(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(oldest()), seconds=1.0) as served:
        replies = [served.submit(1, 7, ">"), served.submit(2, 7, "."), served.submit(3, 7, ".")]
        assert error_of(await replies[2].receive()).code is ErrorCode.INVALID_ARG
        assert served.elapsed_s() == 0
        assert answered(await replies[1].receive()) == history(1, 2)


@BOTH
async def test_a_number_and_its_text_are_different_sequences(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:
        assert answered(await served.ask(1, 1, ">")) == history(1)
        assert answered(await served.ask(2, "1", ">")) == history(2)
        assert answered(await served.ask(3, 1)) == history(1, 3)
        assert answered(await served.ask(4, "1")) == history(2, 4)
        assert served.policy.snapshot().slots_used == 2


async def test_every_id_is_told_to_the_model_as_it_came(autojump_clock: MockClock) -> None:
    ids: list[int | str] = [2**64 - 1, "x" * 200, 2**63]
    async with sequences(sequence_config(direct())) as served:
        for number, sequence_id in enumerate(ids, 1):
            assert answered(await served.ask(number, sequence_id, ">.")) == history(number)
    assert [sequence_id for _, sequence_id, _ in served.model.ends] == ids


@BOTH
@pytest.mark.parametrize("waits_s", [0.0, 0.5])
async def test_a_second_start_ends_the_sequence_and_begins_another_in_its_slot(
    autojump_clock: MockClock, strategy: Strategy, waits_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with sequences(sequence_config(strategy()), seconds=0.25) as served:
        with caplog.at_level(logging.WARNING):
            replies = [served.submit(1, 9, ">"), served.submit(2, 7, ">"), served.submit(3, 7)]
            await trio.sleep(waits_s)  # 0: the earlier requests still wait
            replies += [served.submit(4, 7, ">"), served.submit(5, 7)]
            answers = [answered(await reply.receive()) for reply in replies]
        assert answers == [history(1), history(2), history(2, 3), history(4), history(4, 5)]
        assert served.policy.snapshot().slots_used == 2
        if strategy is direct:
            assert served.model.batches == [[">1", ">2"], ["-", "3"], ["-", ">4"], ["-", "5"]]
    assert served.model.ends == [(0, 7, "restarted"), (0, 9, "unload"), (0, 7, "unload")]
    (record,) = caplog.records
    assert record.getMessage() == (
        "sequence 7 of model 'model' starts again before its end (such starts: 1)"
    )


@BOTH
async def test_a_sequence_waits_for_the_end_of_an_earlier_one_with_its_id(
    autojump_clock: MockClock, strategy: Strategy, caplog: pytest.LogCaptureFixture
) -> None:
    """So that a model that keeps something by id is never asked to do both at once."""
    async with sequences(sequence_config(strategy(), count=2), seconds=0.25) as served:
        replies = [served.submit(1, 7, ">"), served.submit(2, 7, "."), served.submit(3, 7, ">.")]
        answers = [answered(await reply.receive()) for reply in replies]
        assert answers == [history(1), history(1, 2), history(3)]
        assert served.left_s() == [0.25, 0.5, 0.75]
    assert {instance for _, instance, _ in served.model.executed} == {0}
    assert served.model.ends == [(0, 7, "end"), (0, 7, "end")]
    assert caplog.records == []


@BOTH
async def test_an_idle_sequence_ends_exactly_at_its_limit(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy(), idle_ticks=256)) as served:
        assert answered(await served.ask(1, 7, ">")) == history(1)
        await trio.sleep(255 * TICK_S)
        assert answered(await served.ask(2, 7)) == history(1, 2)
        await trio.sleep(255 * TICK_S)
        assert served.policy.snapshot().slots_used == 1
        await trio.sleep(2 * TICK_S)
        assert served.policy.snapshot().slots_used == 0
        assert served.model.ends == [(0, 7, "idle")]
        assert error_of(await served.ask(3, 7)).code is ErrorCode.INVALID_ARG


@BOTH
async def test_a_request_in_the_turn_of_the_idle_limit_leaves_no_slot_behind(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy(), idle_ticks=256)) as served:
        await served.ask(1, 7, ">")
        await trio.sleep(256 * TICK_S)
        await served.ask(2, 7)  # is refused or goes on, as the turn has it
        await trio.sleep(257 * TICK_S)
        assert served.policy.snapshot().slots_used == 0


@BOTH
async def test_a_sequence_is_not_idle_while_it_executes_and_gets_its_time_afterwards(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), idle_ticks=256)
    async with sequences(config, seconds=1.0) as served:
        replies = [served.submit(1, 7, ">"), served.submit(2, 7)]
        assert answered(await replies[0].receive()) == history(1)
        assert answered(await replies[1].receive()) == history(1, 2)
        assert served.elapsed_s() == 2.0
        await trio.sleep(255 * TICK_S)
        assert answered(await served.ask(3, 7)) == history(1, 2, 3)
        await trio.sleep(257 * TICK_S)
        assert served.model.ends == [(0, 7, "idle")]


async def test_the_slot_of_an_idle_sequence_goes_to_the_backlog(autojump_clock: MockClock) -> None:
    config = sequence_config(direct(), max_batch_size=1, idle_ticks=256)
    async with sequences(config) as served:
        assert answered(await served.ask(1, 7, ">")) == history(1)
        assert answered(await served.ask(2, 8, ">")) == history(2)
        assert served.elapsed_s() == 0.25
        await trio.sleep(0.125)
        assert answered(await served.ask(3, 8, ".")) == history(2, 3)


@BOTH
async def test_cancelling_one_waiting_request_ends_the_sequence_and_frees_its_slot(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), max_batch_size=1)
    async with sequences(config, seconds=0.25) as served:
        running = served.submit(1, 7, ">")
        waiting = [served.submit(2, 7), served.submit(3, 7), served.submit(4, 7, ".")]
        other = served.submit(5, 8, ">")
        await wait_all_tasks_blocked()
        waiting[1].close()
        error = error_of(await waiting[2].receive())
        assert error.code is ErrorCode.CANCELLED
        assert error.reason is FailureReason.CANCELED
        assert error_of(await served.ask(6, 7)).code is ErrorCode.INVALID_ARG
        assert served.elapsed_s() == 0
        assert answered(await running.receive()) == history(1)
        assert answered(await waiting[0].receive()) == history(1, 2)  # was ahead of it
        assert served.elapsed_s() == 0.5
        assert answered(await other.receive()) == history(5)
        assert served.elapsed_s() == 0.75
        assert served.statistics.failures[FailureReason.CANCELED] == 2
        assert served.model.ends == [(0, 7, "cancelled")]


@BOTH
async def test_a_request_cancelled_while_it_executes_still_counts_for_its_sequence(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy()), seconds=0.25) as served:
        running = served.submit(1, 7, ">")
        waiting = served.submit(2, 7, ".")
        await wait_all_tasks_blocked()
        running.close()
        assert answered(await waiting.receive()) == history(1, 2)
        assert served.elapsed_s() == 0.5
        assert served.statistics.failures[FailureReason.CANCELED] == 1
    assert served.model.ends == [(0, 7, "end")]


@BOTH
async def test_a_sequence_cancelled_before_the_model_saw_it_is_not_told_to_it(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:
        served.submit(1, 7, ">").close()  # in the turn of its arrival
        await wait_all_tasks_blocked()
        assert served.policy.snapshot().slots_used == 0
        assert served.statistics.failures[FailureReason.CANCELED] == 1
    assert (served.model.batches, served.model.ends) == ([], [])


@BOTH
async def test_cancelling_a_sequence_that_waits_for_its_id_spares_both_neighbours(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy()), seconds=0.25) as served:
        first = [served.submit(1, 7, ">"), served.submit(2, 7, ".")]
        second = [served.submit(3, 7, ">"), served.submit(4, 7, ".")]
        third = [served.submit(5, 7, ">"), served.submit(6, 7, ".")]
        await wait_all_tasks_blocked()
        second[1].close()
        assert error_of(await second[0].receive()).code is ErrorCode.CANCELLED
        assert answered(await first[1].receive()) == history(1, 2)
        assert answered(await third[0].receive()) == history(5)
        assert answered(await third[1].receive()) == history(5, 6)


@BOTH
async def test_after_a_cancelled_successor_the_id_still_waits_for_the_first_sequence(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy(), count=2), seconds=0.25) as served:
        first = [served.submit(1, 7, ">"), served.submit(2, 7, ".")]
        second = served.submit(3, 7, ">.")
        await wait_all_tasks_blocked()
        second.close()
        await wait_all_tasks_blocked()
        assert answered(await served.ask(4, 7, ">.")) == history(4)
        assert served.elapsed_s() == 0.75
        assert answered(await first[1].receive()) == history(1, 2)


@BOTH
async def test_a_fault_of_the_model_leaves_the_state_and_the_sequence_as_they_were(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:

        def fail_the_second(batch: Batch) -> None:
            if batch.requests[0].id == "2":
                raise ValueError("bad luck")

        served.model.before = fail_the_second
        assert answered(await served.ask(1, 7, ">")) == history(1)
        assert error_of(await served.ask(2, 7)).code is ErrorCode.INTERNAL
        assert answered(await served.ask(3, 7)) == history(1, 3)


@BOTH
async def test_a_state_of_the_wrong_shape_fails_its_request_and_the_sequence(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy()), seconds=0.25) as served:
        served.model.state_shape = (1, 1, 1)
        replies = [served.submit(1, 7, ">"), served.submit(2, 7)]
        for reply in replies:
            error = error_of(await reply.receive())
            assert error.code is ErrorCode.INTERNAL
            assert "HISTORY" in error.message
        assert served.elapsed_s() == 0.25
    assert served.model.ends == [(0, 7, "error")]


async def test_the_number_of_requests_is_bounded(autojump_clock: MockClock) -> None:
    async with sequences(sequence_config(oldest()), seconds=1.0) as served:
        served.policy._requests_max = 3
        replies = [served.submit(1, 7, ">")] + [served.submit(number, 7) for number in range(2, 5)]
        error = error_of(await replies[3].receive())
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.reason is FailureReason.REJECTED
        assert answered(await replies[2].receive()) == history(1, 2, 3)


@BOTH
async def test_a_cancellation_that_the_full_inbox_had_no_room_for_is_found(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy()), seconds=1.0, inbox=2) as served:
        running = served.submit(1, 7, ">")
        await wait_all_tasks_blocked()
        waiting = served.submit(2, 7)
        await wait_all_tasks_blocked()
        # The batcher waits, so the next message passes the buffer.
        others = [served.submit(number, number, ">.") for number in (3, 4, 5)]
        waiting.close()
        await wait_all_tasks_blocked()
        assert served.statistics.failures[FailureReason.CANCELED] == 1
        for number, reply in enumerate([running, *others]):
            assert answered(await reply.receive()) == history(max(1, number + 2 * (number > 0)))
