"""Texts that a real model generates among others, which come, rest and leave as a script says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from tritrio.backends.llm.executor import LlmInstance
from tritrio.backends.llm.planner import StepPlanner
from tritrio.backends.llm.steps import EngineLimits, SequenceStart, StepPlan
from tritrio.protocol.sampling_params import SamplingParams

REST_STEPS = 4
"""How long one rests."""
STEPS_MAX = 1000

_ids = count()


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one client does.

    Attributes:
      prompt: Its tokens.
      params: How many it wants, and how they are chosen.
      seed: For random ones.
      behind: (number of another part, tokens): it comes when that one has so many.
      rests_at: It does not read for a while when it has so many tokens.
      leaves_at: It leaves when it has so many.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int = 0
    behind: tuple[int, int] | None = None
    rests_at: int | None = None
    leaves_at: int | None = None


class Company:
    """An instance and a planner, and the parts that are played on them.

    Attributes:
      texts: The tokens of each part.
      planner: As it stands.
      plans: All steps.
    """

    def __init__(self, instance: LlmInstance, limits: EngineLimits, parts: Sequence[Part]) -> None:
        self.planner = StepPlanner(limits)
        self.plans: list[StepPlan] = []
        self.texts: list[list[int]] = [[] for _ in parts]
        self._instance = instance
        self._parts = parts
        self._ids: dict[int, int] = {}  # part -> sequence
        self._done: set[int] = set()
        self._rests_until: dict[int, int] = {}  # part -> step in which it goes on

    def play(self) -> list[list[int]]:
        """All texts, when everybody is through and the sampler knows nobody any more."""
        for step in range(STEPS_MAX):
            self._act(step)
            plan = self.planner.plan(step)
            if plan is not None:
                self._step(plan)
            elif len(self._done) == len(self._parts):
                return self.texts
        raise AssertionError("somebody is not through")

    def _act(self, step: int) -> None:
        for number, part in enumerate(self._parts):
            length = len(self.texts[number])
            if number not in self._ids:
                if part.behind is None or len(self.texts[part.behind[0]]) >= part.behind[1]:
                    self._ids[number] = next(_ids)
                    start = SequenceStart(
                        id=self._ids[number], prompt=part.prompt, params=part.params, seed=part.seed
                    )
                    self.planner.add(start)
            elif length == part.leaves_at:
                self.planner.remove(self._ids[number])
                self._done.add(number)
            elif length == part.rests_at:
                until = self._rests_until.setdefault(number, step + REST_STEPS)
                act = self.planner.pause if step < until else self.planner.resume
                act(self._ids[number])

    def _step(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        numbers = {sequence: number for number, sequence in self._ids.items()}
        for event in self.planner.commit(plan, self._instance.step(plan)):
            assert event.choice is not None, event.fault
            number = numbers[event.sequence_id]
            self.texts[number].append(event.choice.token)
            if event.finish is not None:
                self._done.add(number)
