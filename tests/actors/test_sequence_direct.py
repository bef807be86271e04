"""Batches of the strategy `direct` on virtual time: rows are slots."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.limits import TICK_S
from tests.support.remembering import answered, direct, history, sequence_config
from tests.support.sequences import sequences


async def test_a_new_sequence_takes_the_lowest_slot_of_the_first_instance_that_has_it(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(direct(), max_batch_size=2, count=2)) as served:
        for number in range(1, 5):
            await served.ask(number, number, ">")
        assert [(instance, rows) for _, instance, rows in served.model.executed] == [
            (0, [">1"]),
            (1, [">2"]),
            (0, ["-", ">3"]),
            (1, ["-", ">4"]),
        ]
        await served.ask(11, 1, ".")
        await served.ask(14, 4, ".")
        await served.ask(5, 5, ">")
        await served.ask(6, 6, ">")
        assert [(instance, rows) for _, instance, rows in served.model.executed[6:]] == [
            (0, [">5"]),
            (1, ["-", ">6"]),
        ]


async def test_slots_without_a_request_below_the_highest_ready_one_are_filled(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(direct())) as served:
        replies = [served.submit(number, number, ">") for number in range(1, 5)]
        for reply in replies:
            await reply.receive()
        replies = [served.submit(14, 4), served.submit(12, 2)]
        assert answered(await replies[0].receive()) == history(4, 14)
        assert answered(await replies[1].receive()) == history(2, 12)
        await served.ask(22, 2)
        assert served.model.batches == [
            [">1", ">2", ">3", ">4"],
            ["-", "12", "-", "14"],
            ["-", "22"],
        ]


async def test_the_next_batch_of_an_instance_waits_for_the_one_before(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(direct()), seconds=0.25) as served:
        first = served.submit(1, 1, ">")
        await trio.sleep(TICK_S)
        others = [served.submit(2, 2, ">"), served.submit(11, 1)]
        for reply in (first, *others):
            await reply.receive()
        assert served.model.batches == [[">1"], ["11", ">2"]]
        assert served.left_s() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("delay_ticks", "utilization", "left_ticks"),
    [(0, 1.0, 0), (256, 0.0, 0), (256, 0.25, 0), (256, 0.5, 256), (256, 1.0, 256)],
)
async def test_a_lone_sequence_waits_for_company_as_long_as_the_configuration_says(
    autojump_clock: MockClock, delay_ticks: int, utilization: float, left_ticks: int
) -> None:
    async with sequences(sequence_config(direct(delay_ticks, utilization))) as served:
        await served.ask(1, 1, ">")
        assert served.elapsed_s() == left_ticks * TICK_S


@pytest.mark.parametrize(("slots", "utilization", "ready"), [(4, 0.75, 3), (10, 0.3, 3)])
async def test_a_batch_leaves_once_enough_slots_are_ready(
    autojump_clock: MockClock, slots: int, utilization: float, ready: int
) -> None:
    config = sequence_config(direct(256, utilization), max_batch_size=slots)
    async with sequences(config) as served:
        replies = []
        for number in range(1, ready + 1):
            await trio.sleep(16 * TICK_S)
            replies.append(served.submit(number, number, ">"))
        for reply in replies:
            await reply.receive()
        assert served.left_s() == [ready * 16 * TICK_S]


async def test_the_delay_counts_for_the_request_that_waits_longest(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(direct(256, 1.0))
    async with sequences(config) as served:
        first = served.submit(1, 1, ">")
        await trio.sleep(64 * TICK_S)
        second = served.submit(2, 2, ">")
        await first.receive()
        await second.receive()
        assert served.model.batches == [[">1", ">2"]]
        assert served.left_s() == [256 * TICK_S]


async def test_a_cancelled_request_does_not_count_for_the_delay_of_others(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(direct(256, 0.5))) as served:
        first = served.submit(1, 1, ">")
        await trio.sleep(64 * TICK_S)
        first.close()
        await wait_all_tasks_blocked()
        await served.ask(2, 2, ">")
        assert served.model.batches == [[">2"]]
        assert served.left_s() == [320 * TICK_S]


async def test_slots_with_other_shapes_are_filled_and_get_the_next_batch(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(direct(), dims=(-1,)), seconds=0.25) as served:
        replies = [
            served.submit(number, number, ">", width=width)
            for number, width in enumerate([2, 3, 2, 3], 1)
        ]
        assert [answered(await reply.receive()) for reply in replies] == [[1], [2], [3], [4]]
        assert served.model.batches == [[">1", "-", ">3"], ["-", ">2", "-", ">4"]]


async def test_a_slot_with_other_shapes_does_not_wait_for_ever(autojump_clock: MockClock) -> None:
    """The request that waits longest decides the shapes, however busy the others are."""
    async with sequences(sequence_config(direct(), dims=(-1,)), seconds=0.25) as served:
        busy = [served.submit(1, 1, ">", width=2)]
        await trio.sleep(TICK_S)
        other = served.submit(50, 2, ">", width=3)
        await trio.sleep(TICK_S)
        busy += [served.submit(number, 1, width=2) for number in range(2, 6)]
        assert answered(await other.receive()) == history(50)
        assert served.elapsed_s() == 0.5
        assert answered(await busy[4].receive()) == history(1, 2, 3, 4, 5)


async def test_a_model_that_does_not_batch_has_one_slot(autojump_clock: MockClock) -> None:
    config = sequence_config(direct(), max_batch_size=0, implicit=False)
    async with sequences(config) as served:
        assert served.policy.snapshot().slots == 1
        first = served.submit(1, 1, ">")
        second = served.submit(2, 2, ">")
        await first.receive()
        assert served.policy.snapshot().backlog == 1
        await served.ask(11, 1, ".")
        assert answered(await second.receive()) == history(2)


async def test_the_backlog_is_served_in_order_as_slots_become_free(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(direct(), max_batch_size=2)
    async with sequences(config, seconds=0.25) as served:
        replies = [served.submit(number, number, ">") for number in range(1, 6)]
        await replies[1].receive()
        assert served.policy.snapshot().backlog == 3
        assert served.policy.snapshot().slots_used == 2
        ends = [served.submit(12, 2, "."), served.submit(11, 1, ".")]
        for reply in (*replies, *ends):
            if reply not in (replies[1], replies[4]):
                await reply.receive()
        assert served.model.batches == [[">1", ">2"], ["11.", "12."], [">3", ">4"]]
        assert served.policy.snapshot().backlog == 1
        await served.ask(13, 3, ".")
        assert answered(await replies[4].receive()) == history(5)
