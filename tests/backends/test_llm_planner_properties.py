"""Whatever happens around it, each text is the one that is generated alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.backends.llm_crowd import Crowd, random_limits
from tests.backends.llm_planning import RowModel, alone


def play(seed: int) -> Crowd:
    random = Random(seed)
    limits = random_limits(random)
    crowd = Crowd(random, limits, RowModel(limits))
    crowd.play(alone)
    return crowd


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_every_text_is_the_one_generated_alone(seed: int) -> None:
    play(seed)


@pytest.mark.slow
def test_the_crowds_meet_what_they_are_to_meet() -> None:
    """The property says nothing if nobody is preempted, copied or moved."""
    crowds = [play(seed) for seed in range(30)]
    assert sum(crowd.engine.planner.preemptions for crowd in crowds) > 10
    plans = [plan for crowd in crowds for plan in crowd.engine.plans]
    assert sum(len(plan.swaps) for plan in plans) > 20
    assert sum(len(plan.copies) for plan in plans) > 20
    assert sum(1 for plan in plans if any(plan.idle_rows.values())) > 100
