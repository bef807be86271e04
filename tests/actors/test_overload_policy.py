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
    worse,
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
    memory = memory_policy().memory
    assert memory.observe(0.75) is NORMAL
    state = memory.observe(0.751)
    assert state.admitted_share == 1 - 1 / 16
    assert not state.optional_work


def test_more_is_shed_the_more_memory_is_used_and_at_the_end_all_but_the_highest_level() -> None:
    memory = memory_policy().memory
    shares = [memory.observe(used).admitted_share for used in (0.8125, 0.875, 1.0, 1.5)]
    assert shares == [0.75, 0.5, 0.0, 0.0]


def test_what_is_shed_is_taken_again_only_below_the_low_watermark() -> None:
    memory = memory_policy().memory
    measured = (0.875, 0.751, 0.625, 0.5625, 0.625, 0.501)
    shares = [memory.observe(used).admitted_share for used in measured]
    assert shares == [0.5, 0.5, 0.5, 0.75, 0.75, 1 - 1 / 16]
    assert memory.observe(0.5) is NORMAL
    assert memory.observe(0.75) is NORMAL


def test_load_around_the_watermark_changes_the_state_once() -> None:
    memory = memory_policy().memory
    states: list[OverloadState] = []
    for step in range(100):
        state = memory.observe(0.74 + 0.02 * (step % 2))
        if not states or state is not states[-1]:
            states.append(state)
    assert len(states) == 2


def test_each_queue_has_a_pressure_of_its_own() -> None:
    policy = OverloadPolicy(queue_age_high_s=2.0)
    assert policy.watches_age
    one, other = policy.queue_age(), policy.queue_age()
    assert one.observe(2.0) is NORMAL
    assert one.observe(3.0).admitted_share == 0.5
    assert other.observe(2.0) is NORMAL
    assert one.observe(2.0).admitted_share == 0.5
    assert one.observe(1.0) is NORMAL


def test_the_worse_of_two_states_admits_less() -> None:
    states = [NORMAL, OverloadState(0.5, False), OverloadState(0.0, False)]
    for index, better in enumerate(states):
        for bad in states[index:]:
            assert worse(better, bad) is worse(bad, better) is bad


def test_without_a_limit_the_age_does_not_count() -> None:
    assert not memory_policy().watches_age


class Member:
    """A scheduler that notes what it hears."""

    def __init__(self) -> None:
        self.due_s = inf
        self.heard: list[tuple[float, float]] = []

    def oldest_due_s(self) -> float:
        return self.due_s

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


def aged(*due_s: float) -> tuple[ByteBudget, Overload, list[Member]]:
    """Two seconds of age are too many, for members whose requests are due since then."""
    members = [Member() for _ in due_s]
    budget = ByteBudget(1000)
    policy = OverloadPolicy(memory_high=0.75, memory_low=0.5, queue_age_high_s=2.0)
    overload = Overload(budget, policy)
    for member, due in zip(members, due_s, strict=True):
        member.due_s = due
        overload.join(member, 0.0)
    return budget, overload, members


def test_an_old_queue_sheds_requests_of_its_own_scheduler_alone() -> None:
    _, overload, (young, old) = aged(9.0, inf)
    overload.check(10.0)
    assert overload.state is NORMAL
    old.due_s = 7.0
    overload.check(10.0 + AGE_INTERVAL_S / 2)  # not looked at again so soon
    assert (old.heard, overload.state) == ([], NORMAL)
    overload.check(10.0 + AGE_INTERVAL_S)
    assert old.heard == [(10.0 + AGE_INTERVAL_S, 1 - 9 / 16)]
    assert overload.state.admitted_share == 1 - 9 / 16
    old.due_s = inf
    overload.check(11.0)
    assert old.heard[1:] == [(11.0, 1.0)]
    assert overload.state is NORMAL
    assert young.heard == []


def test_a_request_that_may_still_wait_for_company_has_no_age() -> None:
    _, overload, (member,) = aged(10.0)
    overload.check(1.0)
    overload.check(12.0)
    assert member.heard == []
    overload.check(13.0)
    assert member.heard == [(13.0, 0.5)]


def test_memory_is_everybodys_and_the_worse_counts() -> None:
    budget, overload, (young, old) = aged(inf, 7.0)
    budget.try_take(812)
    overload.check(10.0)
    assert (young.heard, old.heard) == ([(10.0, 0.75)], [(10.0, 0.5)])
    budget.try_take(188)  # heard of at once, whenever ages were looked at
    overload.check(10.0 + AGE_INTERVAL_S / 2)
    late = Member()
    overload.join(late, 10.25)
    for member in (young, old, late):
        assert member.heard[-1][1] == 0.0
    budget.give_back(1000)
    overload.check(10.5)
    assert [member.heard[-1] for member in (young, late)] == [(10.5, 1.0)] * 2
    assert old.heard[-1][1] < 0.5
    overload.leave(old)
    overload.check(11.0)
    assert overload.state is NORMAL


def test_who_joins_does_not_shed_for_the_age_of_another_queue() -> None:
    _, overload, (old,) = aged(7.0)
    overload.check(10.0)
    late = Member()
    overload.join(late, 10.0)
    assert (len(old.heard), late.heard) == (1, [])


def test_a_server_without_a_budget_is_not_overloaded() -> None:
    overload = Overload(ByteBudget(0), memory_policy())
    overload.check(0.0)
    assert overload.state is NORMAL
