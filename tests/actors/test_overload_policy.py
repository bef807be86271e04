"""How much is admitted, with lists of numbers for load and time."""

from __future__ import annotations

import logging
from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tritrio.actors._overload_policy import (
    NORMAL,
    OverloadPolicy,
    OverloadState,
    levels_admitted,
)
from tritrio.actors.overload import AGE_INTERVAL_S, CHECK_INTERVAL_S, Overload
from tritrio.memory.budget import ByteBudget


def memory_policy() -> OverloadPolicy:
    return OverloadPolicy(memory_high=0.75, memory_low=0.5)


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        (1, 0.0, 1),  # a model without levels is never shed
        (2, 1.0, 2),
        (2, 0.99, 1),  # the lowest level goes first, at once
        (10, 0.99, 9),
        (10, 0.5, 5),
        (10, 0.0, 1),  # the highest never goes
        (1024, 0.5, 512),
    ],
)
def test_levels_are_admitted_from_the_highest(count: int, share: float, expected: int) -> None:
    assert levels_admitted(count, share) == expected


def test_nothing_is_shed_up_to_the_watermark_and_something_just_above_it() -> None:
    policy = memory_policy()
    assert policy.observe(0.75, 0.0, 1.0) is NORMAL
    state = policy.observe(0.751, 0.0, 2.0)
    assert state.admitted_share == 1 - 1 / 16
    assert not state.optional_work


def test_more_is_shed_the_more_memory_is_used_and_at_the_end_all_but_the_highest_level() -> None:
    policy = memory_policy()
    shares = [policy.observe(used, 0.0, 0.0).admitted_share for used in (0.8125, 0.875, 1.0, 1.5)]
    assert shares == [0.75, 0.5, 0.0, 0.0]


def test_what_is_shed_is_taken_again_only_below_the_low_watermark() -> None:
    policy = memory_policy()
    assert policy.observe(0.875, 0.0, 0.0).admitted_share == 0.5
    assert policy.observe(0.751, 0.0, 1.0).admitted_share == 0.5
    assert policy.observe(0.625, 0.0, 1.0).admitted_share == 0.5
    assert policy.observe(0.5625, 0.0, 2.0).admitted_share == 0.75
    assert policy.observe(0.625, 0.0, 3.0).admitted_share == 0.75
    assert policy.observe(0.501, 0.0, 4.0).admitted_share == 1 - 1 / 16
    assert policy.overloaded_for_s(4.0) == 4.0
    assert policy.observe(0.5, 0.0, 5.0) is NORMAL
    assert policy.observe(0.75, 0.0, 6.0) is NORMAL


def test_load_around_the_watermark_changes_the_state_once() -> None:
    policy = memory_policy()
    states: list[OverloadState] = []
    for step in range(100):
        state = policy.observe(0.74 + 0.02 * (step % 2), 0.0, float(step))
        if not states or state is not states[-1]:
            states.append(state)
    assert len(states) == 2


def test_the_age_of_a_queue_sheds_alone_and_with_memory_whichever_is_worse() -> None:
    policy = OverloadPolicy(memory_high=0.75, memory_low=0.5, queue_age_high_s=2.0)
    assert policy.watches_age
    assert policy.observe(0.0, 2.0, 0.0) is NORMAL
    assert policy.observe(0.0, 3.0, 0.0).admitted_share == 0.5
    assert policy.observe(0.8125, 3.0, 0.0).admitted_share == 0.5
    assert policy.observe(0.9375, 3.0, 0.0).admitted_share == 0.25
    assert policy.observe(0.0, 2.0, 0.0).admitted_share == 0.5
    assert policy.observe(0.0, 1.0, 0.0) is NORMAL


def test_without_a_limit_the_age_does_not_count() -> None:
    policy = memory_policy()
    assert not policy.watches_age
    assert policy.observe(0.0, 1e9, 0.0) is NORMAL


class Member:
    """A scheduler that notes what it hears."""

    def __init__(self) -> None:
        self.queued_s = inf
        self.heard: list[tuple[float, float]] = []

    def oldest_queued_s(self) -> float:
        return self.queued_s

    def heed(self, state: OverloadState, now_s: float) -> None:
        self.heard.append((now_s, state.admitted_share))


async def test_an_overload_ends_without_any_arrival(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    budget, member = ByteBudget(1000), Member()
    overload = Overload(budget, memory_policy())
    async with trio.open_nursery() as nursery:
        await nursery.start(overload.run)
        start_s = trio.current_time()
        overload.join(member, start_s)
        budget.try_take(875)
        overload.check(start_s)
        assert member.heard == [(start_s, 0.5)]
        late = Member()
        overload.join(late, start_s)
        assert late.heard == [(start_s, 0.5)]
        overload.leave(late)
        await trio.sleep(10.5 * CHECK_INTERVAL_S)
        budget.give_back(875)
        await trio.sleep(CHECK_INTERVAL_S)
        await wait_all_tasks_blocked()
        assert overload.state is NORMAL
        assert member.heard == [(start_s, 0.5), (start_s + 11 * CHECK_INTERVAL_S, 1.0)]
        assert len(late.heard) == 1
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        await trio.sleep(1000.0)
        assert len(member.heard) == 2
        nursery.cancel_scope.cancel()


async def test_the_oldest_request_of_any_scheduler_counts(autojump_clock: MockClock) -> None:
    members = [Member(), Member()]
    overload = Overload(ByteBudget(1000), OverloadPolicy(queue_age_high_s=2.0))
    for member in members:
        overload.join(member, 0.0)
    overload.check(10.0)
    assert overload.state is NORMAL
    members[1].queued_s = 7.0
    overload.check(10.0 + AGE_INTERVAL_S / 2)  # not looked at again so soon
    assert overload.state is NORMAL
    overload.check(10.0 + AGE_INTERVAL_S)
    assert [len(member.heard) for member in members] == [1, 1]


def test_a_server_without_a_budget_is_not_overloaded() -> None:
    overload = Overload(ByteBudget(0), memory_policy())
    overload.check(0.0)
    assert overload.state is NORMAL
