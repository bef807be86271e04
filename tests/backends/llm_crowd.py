"""Clients of one planner that come and go at random, and must not notice each other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tests.backends.llm_planning import Engine, RowModel
from tritrio.backends.llm.steps import EngineLimits, SequenceStart
from tritrio.protocol.sampling_params import SamplingParams

VOCABULARY: Final = 40
"""Few enough that end tokens come."""
BYTES_PER_TOKEN: Final = 3
STEPS: Final = 120


def random_limits(random: Random) -> EngineLimits:
    budget_blocks = random.choice([2, 3, 5, 8, 12, 20, 1000])
    return EngineLimits(
        rows=random.choice([1, 2, 3, 5, 8]),
        tokens_per_row=random.choice([20, 60, 150]),
        step_tokens=random.choice([1, 2, 7, 32, 500]),
        kv_bytes_per_token=random.choice([0, BYTES_PER_TOKEN, BYTES_PER_TOKEN]),
        kv_budget_bytes=budget_blocks * 16 * BYTES_PER_TOKEN + random.randrange(16),
        end_tokens=frozenset({0}),
        prefix_caching=random.random() < 0.7,
        contiguous=random.random() < 0.6,
        vocabulary_size=VOCABULARY,
        prefill_tokens_min=random.choice([1, 2, 3]),
    )


class Crowd:
    """Clients that come, go, stop reading and go on reading, as it happens.

    Args:
      random: What happens.
      limits: Of the planner.
      model: What does the steps.
    """

    def __init__(self, random: Random, limits: EngineLimits, model: RowModel) -> None:
        self._random = random
        self.limits = limits
        self.engine = Engine(limits, model)
        self.starts: dict[int, SequenceStart] = {}
        self._paused: set[int] = set()
        self._removed: set[int] = set()
        self._beginnings = [
            [random.randrange(1, VOCABULARY) for _ in range(length)] for length in (5, 18, 40)
        ]

    def prompt_tokens_max(self) -> int:
        most = self.limits.tokens_per_row - 1
        if self.limits.kv_bytes_per_token:
            most = min(most, self.limits.kv_budget_bytes // (16 * BYTES_PER_TOKEN) * 16)
        return most

    def come(self) -> None:
        random = self._random
        prompt: list[int] = []
        if random.random() < 0.8:
            prompt += random.choice(self._beginnings)
        if self.engine.texts and random.random() < 0.3:  # a conversation goes on
            before = random.choice(sorted(self.engine.texts))
            prompt = [*self.starts[before].prompt, *self.engine.texts[before]]
        prompt += [random.randrange(VOCABULARY) for _ in range(random.randrange(1, 30))]
        start = SequenceStart(
            id=len(self.starts),
            prompt=tuple(prompt[: self.prompt_tokens_max()]),
            params=SamplingParams(
                max_tokens=random.choice([None, 1, 10, 40, 40]),
                ignore_eos=random.random() < 0.5,
                stop_token_ids=(7,) if random.random() < 0.2 else (),
            ),
            seed=0,
            priority=random.choice([0, 0, 0, 1, -1]),
        )
        self.starts[start.id] = start
        self.engine.add(start)

    def act(self) -> None:
        """Let one thing happen, or nothing."""
        random, planner = self._random, self.engine.planner
        gone = self._removed.union(self.engine.finished())
        here = [each for each in self.starts if each not in gone]
        chance = random.random()
        if chance < 0.25 and len(self.starts) < 40:
            self.come()
        elif chance < 0.29 and here:
            leaving = random.choice(here)
            planner.remove(leaving)
            self._removed.add(leaving)
        elif chance < 0.36 and here:
            pausing = random.choice(here)
            planner.pause(pausing)
            self._paused.add(pausing)
        elif chance < 0.5 and self._paused:
            resuming = random.choice(sorted(self._paused))
            self._paused.discard(resuming)
            planner.resume(resuming)

    def step(self) -> None:
        """One step, while things happen."""
        planner, model = self.engine.planner, self.engine.model
        plan = planner.plan(0)
        self.check_bytes()
        if plan is None:
            # Nobody who could go on is left standing.
            assert planner.running == planner.waiting == 0
            return
        result = model.step(plan)
        for _ in range(self._random.randrange(3)):
            self.act()
        if self._random.random() < 0.01:
            self._removed.update(event.sequence_id for event in planner.fail(plan, "broken"))
            model.lose_state()
            assert planner.kv_used_bytes + planner.kv_cached_bytes == 0
        else:
            events = self.engine.commit(plan, result)
            assert not {event.sequence_id for event in events} & self._removed
        self.check_bytes()

    def check_bytes(self) -> None:
        planner = self.engine.planner
        assert planner.kv_used_bytes + planner.kv_cached_bytes <= self.limits.kv_budget_bytes
        assert 0 <= planner.kv_used_bytes
        assert planner.kv_cached_bytes >= 0
        if not self.limits.prefix_caching:
            assert planner.kv_cached_bytes == 0

    def finish(self) -> None:
        """Let everybody who is paused read on, and nobody come, until all is done."""
        for each in self._paused:
            self.engine.planner.resume(each)
        # One token a step at least, for each token of each sequence; twice, for what is read again.
        tokens_max = len(self.starts) * self.limits.tokens_per_row
        for _ in range(2 * tokens_max):
            plan = self.engine.planner.plan(0)
            self.check_bytes()
            if plan is None:
                return
            self.engine.commit(plan, self.engine.model.step(plan))
        raise AssertionError("somebody starves")

    def play(self, alone: Callable[[SequenceStart, EngineLimits], list[int]]) -> None:
        """Let all of it happen; each text is the one that is generated alone."""
        for _ in range(3):
            self.come()
        for _ in range(STEPS):
            self.act()
            self.step()
        self.finish()
        self.check_texts(alone)

    def check_texts(self, alone: Callable[[SequenceStart, EngineLimits], list[int]]) -> None:
        finished = self.engine.finished()
        assert sorted(finished) == sorted(set(self.starts) - self._removed)
        for each, start in self.starts.items():
            text, expected = self.engine.texts[each], alone(start, self.limits)
            if each in finished:
                assert text == expected
            else:
                assert text == expected[: len(text)]
        planner, model = self.engine.planner, self.engine.model
        assert planner.kv_used_bytes == 0
        assert (planner.running, planner.waiting, planner.paused) == (0, 0, 0)
        assert len(set(model.joined)) == len(model.joined)
        assert sorted(model.left) == sorted(model.joined)
