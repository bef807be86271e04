"""Crowds of clients of a real graph, tiny and of random weights, whose state lies in rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from random import Random

import pytest

from tests.backends.generating import open_instance
from tests.backends.llm_crowd import Crowd, random_limits
from tests.backends.llm_planning import Engine, RowModel
from tests.backends.tiny_causal import CONTEXT, write_tiny
from tritrio.backends.llm.executor import LlmInstance
from tritrio.backends.llm.steps import EngineLimits, SequenceStart, StepPlan, StepResult

CROWDS = 40


class GraphModel(RowModel):
    """Does the steps with a graph, once it is sure that they make sense."""

    def __init__(self, limits: EngineLimits, instance: LlmInstance) -> None:
        super().__init__(limits)
        self._instance = instance

    def step(self, plan: StepPlan, faults: Collection[int] = ()) -> StepResult:
        super().step(plan, faults)
        return self._instance.step(plan)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmInstance]:
    instance = open_instance(write_tiny(tmp_path_factory.mktemp("tiny")))
    yield instance
    instance.unload()


@pytest.mark.slow
def test_every_text_is_the_one_that_the_graph_generates_alone(instance: LlmInstance) -> None:
    def alone(start: SequenceStart, limits: EngineLimits) -> list[int]:
        limits = replace(limits, step_tokens=CONTEXT, prefix_caching=False)
        engine = Engine(limits, GraphModel(limits, instance))
        engine.add(start)
        engine.run()
        return engine.texts[start.id]

    crowds = []
    for seed in range(CROWDS):
        random = Random(seed)
        limits = random_limits(random)
        # Rows of the graph are full where those of the planner are, but for short ones.
        limits = replace(limits, tokens_per_row=min(limits.tokens_per_row + 4, CONTEXT))
        crowds.append(Crowd(random, limits, GraphModel(limits, instance)))
        crowds[-1].play(alone)
    plans = [plan for crowd in crowds for plan in crowd.engine.plans]
    assert sum(crowd.engine.planner.preemptions for crowd in crowds) > 10
    assert sum(len(plan.swaps) for plan in plans) > 20
    assert sum(len(plan.copies) for plan in plans) > 20
    assert sum(1 for plan in plans if any(plan.idle_rows.values())) > 100
    full = [each for plan in plans for each in plan.decodes if each.past == CONTEXT - 2]
    assert len(full) > 10
