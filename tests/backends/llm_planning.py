"""A model whose state are the tokens themselves, to see that plans are right."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tritrio.backends.llm.planner import StepPlanner
from tritrio.backends.llm.steps import (
    EngineLimits,
    SequenceFault,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenChoice,
    TokenEvent,
)
from tritrio.protocol.sampling_params import SamplingParams

END = 0
"""The end token of the models here."""
VOCABULARY = 1000


def limits(
    *,
    rows: int = 4,
    tokens_per_row: int = 1000,
    step_tokens: int = 100,
    budget_tokens: int = 100_000,
    prefix_caching: bool = False,
    contiguous: bool = False,
    prefill_tokens_min: int = 1,
) -> EngineLimits:
    """Limits of a model with two bytes a token."""
    return EngineLimits(
        rows=rows,
        tokens_per_row=tokens_per_row,
        step_tokens=step_tokens,
        kv_bytes_per_token=2,
        kv_budget_bytes=2 * budget_tokens,
        end_tokens=frozenset({END}),
        prefix_caching=prefix_caching,
        contiguous=contiguous,
        vocabulary_size=VOCABULARY,
        prefill_tokens_min=prefill_tokens_min,
    )


def start(
    sequence_id: int, prompt: Iterable[int] | int, priority: int = 0, **params: Any
) -> SequenceStart:
    """A sequence; a number stands for a prompt of so many tokens that are its own."""
    if isinstance(prompt, int):
        prompt = [100 + sequence_id] * prompt
    merged: dict[str, Any] = {"max_tokens": None, "ignore_eos": True, **params}
    return SequenceStart(
        id=sequence_id,
        prompt=tuple(prompt),
        params=SamplingParams(**merged),
        seed=0,
        priority=priority,
    )


def next_token(tokens: Sequence[int], vocabulary: int = VOCABULARY) -> int:
    """What the model says after these tokens; depends on each of them and on its place."""
    return hash(tuple(tokens)) % vocabulary


def alone(of: SequenceStart, limits: EngineLimits) -> list[int]:
    """The text of a sequence, with nobody beside it; its stop token included."""
    params = of.params
    tokens = list(of.prompt)
    most = limits.tokens_per_row
    if limits.kv_bytes_per_token:
        block_bytes = 16 * limits.kv_bytes_per_token
        most = min(most, limits.kv_budget_bytes // block_bytes * 16 + 1)
    if params.max_tokens is not None:
        most = min(most, len(tokens) + params.max_tokens)
    while len(tokens) < most:
        tokens.append(next_token(tokens, limits.vocabulary_size))
        if tokens[-1] in limits.end_tokens and not params.ignore_eos:
            break
        if tokens[-1] in params.stop_token_ids:
            break
    return tokens[len(of.prompt) :]


class RowModel:
    """Executes plans on rows of tokens and asserts that they make sense."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.rows: list[list[int | None]] = [[] for _ in range(limits.rows)]
        self.known: dict[int, SequenceStart] = {}
        self.joined: list[int] = []
        self.left: list[int] = []
        self.tokens_max = 0

    def step(self, plan: StepPlan, faults: Collection[int] = ()) -> StepResult:
        for each in plan.joins:
            self.joined.append(each.id)
            assert self.known.setdefault(each.id, each) is each
        for sequence_id in plan.leaves:
            self.left.append(sequence_id)
            del self.known[sequence_id]
        for swap in plan.swaps:
            first = self.rows[swap.first][: swap.first_tokens]
            self.rows[swap.first] = self.rows[swap.second][: swap.second_tokens]
            self.rows[swap.second] = first
        for copy in plan.copies:
            assert copy.source != copy.target
            part = self.rows[copy.source][: copy.tokens]
            assert len(part) == copy.tokens
            self.rows[copy.target] = part
        choices = self._decode(plan)
        fewest = self._limits.prefill_tokens_min
        for prefill in plan.prefills:
            assert prefill.tokens
            assert len(prefill.tokens) >= min(fewest, prefill.past + len(prefill.tokens))
            tokens = self._write(prefill.row, prefill.past, prefill.tokens)
            if prefill.samples:
                choices[prefill.sequence_id] = next_token(tokens, self._limits.vocabulary_size)
        parts = [each.sequence_id for each in plan.decodes]
        parts += [each.sequence_id for each in plan.prefills]
        assert len(set(parts)) == len(parts)
        assert set(parts) <= set(self.known)
        step_tokens = len(plan.decodes) + sum(len(each.tokens) for each in plan.prefills)
        assert step_tokens <= max(self._limits.step_tokens, len(plan.decodes) + fewest)
        return StepResult(
            choices={each: TokenChoice(token) for each, token in choices.items()},
            faults={each: SequenceFault("broken") for each in parts if each in faults},
        )

    def _decode(self, plan: StepPlan) -> dict[int, int]:
        rows = [each.row for each in plan.decodes]
        assert rows == sorted(set(rows))
        between = set(range(rows[-1])) - set(rows) if rows else set()
        assert set(plan.idle_rows) == between
        for row, kept in plan.idle_rows.items():
            assert kept < self._limits.tokens_per_row
            assert len(self.rows[row]) >= kept
            self.rows[row][kept:] = [None]
        return {
            each.sequence_id: next_token(
                self._write(each.row, each.past, [each.token]), self._limits.vocabulary_size
            )
            for each in plan.decodes
        }

    def _write(self, row: int, past: int, tokens: Iterable[int]) -> list[int]:
        """Put tokens behind `past` others; all of them."""
        assert len(self.rows[row]) >= past
        self.rows[row][past:] = tokens
        assert len(self.rows[row]) < self._limits.tokens_per_row
        whole = [token for token in self.rows[row] if token is not None]
        assert len(whole) == len(self.rows[row]), "something was written over"
        return whole

    def lose_state(self) -> None:
        for row in self.rows:
            row.clear()


class Engine:
    """A planner and a model, one step after another."""

    def __init__(self, of: EngineLimits, model: RowModel | None = None) -> None:
        self.limits = of
        self.planner = StepPlanner(of)
        self.model = model or RowModel(of)
        self.texts: dict[int, list[int]] = {}
        self.events: list[TokenEvent] = []
        self.plans: list[StepPlan] = []

    def add(self, *starts: SequenceStart) -> None:
        for each in starts:
            self.planner.add(each)
            self.texts[each.id] = []

    def step(self) -> StepPlan | None:
        """One step; the time is how many there were."""
        plan = self.planner.plan(len(self.plans))
        if plan is not None:
            self.commit(plan, self.model.step(plan))
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        self.plans.append(plan)
        events = self.planner.commit(plan, result)
        for event in events:
            if event.choice is not None:
                self.texts[event.sequence_id].append(event.choice.token)
        self.events += events
        return events

    def steps(self, count: int) -> list[StepPlan]:
        plans = [self.step() for _ in range(count)]
        return [plan for plan in plans if plan is not None]

    def run(self, steps_max: int = 10_000) -> list[StepPlan]:
        """Steps until there is nothing to do."""
        plans: list[StepPlan] = []
        for _ in range(steps_max):
            plan = self.step()
            if plan is None:
                return plans
            plans.append(plan)
        raise AssertionError(f"not done after {steps_max} steps")

    @property
    def prompt_tokens_read(self) -> int:
        """Tokens that were read in parts of prompts, again behind preemptions."""
        return sum(len(part.tokens) for plan in self.plans for part in plan.prefills)

    def finished(self) -> list[int]:
        """Who is complete, in that order."""
        return [event.sequence_id for event in self.events if event.finish is not None]


def decoding(plan: StepPlan) -> list[int]:
    return [each.sequence_id for each in plan.decodes]


def reading(plan: StepPlan) -> list[tuple[int, int]]:
    """(sequence, tokens) in order."""
    return [(each.sequence_id, len(each.tokens)) for each in plan.prefills]
