from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from tritrio.memory.budget import ByteBudget, Lease


def test_bytes_are_taken_up_to_the_limit_and_not_one_more() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(4)
    assert budget.try_take(6)
    assert not budget.try_take(1)
    assert budget.try_take(0)
    assert repr(budget) == "<ByteBudget 10 of 10, peak 10>"


def test_a_refused_take_changes_nothing() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(3)
    assert not budget.try_take(8)
    assert (budget.used_bytes, budget.peak_bytes) == (3, 3)
    assert budget.try_take(7)


def test_bytes_given_back_can_be_taken_again_and_the_peak_stays() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(9)
    budget.give_back(9)
    assert budget.try_take(2)
    assert (budget.used_bytes, budget.peak_bytes) == (2, 9)


def test_giving_back_more_than_was_taken_is_a_programmer_error() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(1)
    with pytest.raises(AssertionError, match="more than was taken"):
        budget.give_back(2)


@settings(max_examples=50, derandomize=True)
@given(limit=st.integers(0, 50), sizes=st.lists(st.integers(0, 30), max_size=30))
def test_used_bytes_are_the_sum_of_what_was_taken_and_within_the_limit(
    limit: int, sizes: list[int]
) -> None:
    budget = ByteBudget(limit)
    taken = [size for size in sizes if budget.try_take(size)]
    assert budget.used_bytes == budget.peak_bytes == sum(taken) <= limit
    for size in taken:
        budget.give_back(size)
    assert budget.used_bytes == 0


def test_a_lease_holds_what_it_settled_for_and_nothing_after_zero() -> None:
    budget = ByteBudget(10)
    lease, other = Lease(budget), Lease(budget)
    assert lease.settle(6)
    assert other.settle(4)
    assert lease.settle(2)
    assert (lease.held_bytes, other.held_bytes, budget.used_bytes) == (2, 4, 6)
    assert lease.settle(0)
    assert lease.settle(0)
    assert budget.used_bytes == 4


def test_a_lease_that_cannot_grow_stays_as_it_was() -> None:
    budget = ByteBudget(10)
    lease = Lease(budget)
    assert lease.settle(6)
    assert not lease.settle(11)
    assert (lease.held_bytes, budget.used_bytes) == (6, 6)
