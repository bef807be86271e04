"""Slots, the backlog and the slot actor, one by one."""

from __future__ import annotations

from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import infer
from tests.support.limits import TICK_S
from tritrio.actors._sequence_backlog import Backlog
from tritrio.actors._sequence_slots import Sequence, Slot, SlotPool
from tritrio.actors.messages import SchedulerMessage, SlotIdle
from tritrio.actors.sequence_slot import SequenceSlot


def taken(pool: SlotPool) -> tuple[int, int] | None:
    slot = pool.take()
    return None if slot is None else (slot.instance, slot.index)


def waiting(sequence_id: int) -> Sequence:
    sequence = Sequence(sequence_id, sequence_id, {})
    sequence.queue.append(infer(sequence_id))
    return sequence


def test_slots_are_taken_by_index_first_and_then_by_instance() -> None:
    pool = SlotPool(2, 2)
    assert [taken(pool) for _ in range(5)] == [(0, 0), (1, 0), (0, 1), (1, 1), None]
    assert (len(pool), pool.used) == (4, 4)


def test_a_slot_that_was_given_back_is_taken_before_higher_ones() -> None:
    pool = SlotPool(2, 3)
    slots = [pool.take() for _ in range(4)]
    for slot in (slots[3], slots[0]):
        assert slot is not None
        pool.give_back(slot)
    assert [taken(pool) for _ in range(3)] == [(0, 0), (1, 1), (0, 2)]
    assert pool.take() is pool.find(5)


def test_no_slot_of_a_lost_instance_is_taken() -> None:
    pool = SlotPool(2, 2)
    pool.lose(0)
    assert [taken(pool) for _ in range(3)] == [(1, 0), (1, 1), None]
    assert pool.restore(0)
    assert not pool.restore(0)
    assert taken(pool) == (0, 0)
    assert [slot.index for slot in pool.of_instance(0)] == [0]


def test_many_slots_cost_nothing_before_they_are_used() -> None:
    pool = SlotPool(1, 10**9)
    assert taken(pool) == (0, 0)
    assert len(pool._slots) == 1


def test_the_backlog_is_first_in_first_out_and_a_follower_takes_the_place() -> None:
    backlog = Backlog()
    first, second, third, later = [waiting(number) for number in range(1, 5)]
    for sequence in (first, second, third):
        backlog.append(sequence)
    second.successor, later.follows = later, True
    backlog.remove(second)
    backlog.remove(waiting(9))  # was not there
    assert len(backlog) == 3
    assert [backlog.pop() for _ in range(3)] == [first, later, third]


def test_what_is_put_back_comes_first() -> None:
    backlog = Backlog()
    first, second = waiting(1), waiting(2)
    backlog.append(second)
    backlog.put_back(first)
    assert [backlog.pop(), backlog.pop()] == [first, second]


def test_a_deadline_counts_only_while_its_sequence_waits() -> None:
    backlog = Backlog()
    early, late = waiting(1), waiting(2)
    backlog.add_deadline(early, 1.0)
    backlog.add_deadline(late, 2.0)
    backlog.add_deadline(late, 3.0)
    assert backlog.timeout_at_s() == 1.0
    assert backlog.next_expired(0.5) is None
    assert backlog.next_expired(1.0) is early
    early.slot = Slot(0, 0, 0)
    assert backlog.timeout_at_s() == 2.0
    assert backlog.next_expired(2.0) is late
    late.queue.clear()
    assert backlog.timeout_at_s() == inf
    assert backlog.next_expired(10.0) is None


def test_deadlines_of_sequences_that_are_gone_do_not_pile_up() -> None:
    backlog = Backlog()
    patient = waiting(1)
    backlog.add_deadline(patient, 1e9)
    for number in range(10_000):
        sequence = waiting(number)
        backlog.add_deadline(sequence, 1e6 + number)
        sequence.queue.clear()
    assert len(backlog._deadlines) < 200
    assert backlog.timeout_at_s() == 1e9


async def test_a_slot_reports_its_sequence_exactly_when_it_is_idle(
    autojump_clock: MockClock,
) -> None:
    send, receive = trio.open_memory_channel[SchedulerMessage](8)
    slot = SequenceSlot(3, send)
    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slot.run)
        slot.watch(1, start_s + 1.0)
        await trio.sleep(0.5)
        slot.watch(2, start_s + 2.0)
        message = await receive.receive()
        assert trio.current_time() == start_s + 2.0
        assert isinstance(message, SlotIdle)
        assert (message.slot, message.generation) == (3, 2)
        await trio.sleep(50.0)
        with pytest.raises(trio.WouldBlock):
            receive.receive_nowait()
        slot.watch(3, inf)
        await trio.sleep(50.0)
        slot.watch(4, trio.current_time() + TICK_S)
        assert (await receive.receive()).generation == 4  # type: ignore[union-attr]
        assert trio.current_time() == start_s + 102.0 + TICK_S
        nursery.cancel_scope.cancel()


async def test_a_deadline_that_moves_in_the_turn_in_which_it_passes_is_not_lost(
    autojump_clock: MockClock,
) -> None:
    send, receive = trio.open_memory_channel[SchedulerMessage](8)
    slot = SequenceSlot(3, send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slot.run)
        await wait_all_tasks_blocked()
        now_s = trio.current_time()
        slot.watch(1, now_s)
        slot._scope.cancel()  # as the clock does it, before the task runs
        slot.watch(2, now_s + 1.0)
        assert (await receive.receive()).generation == 2  # type: ignore[union-attr]
        assert trio.current_time() == now_s + 1.0
        nursery.cancel_scope.cancel()
