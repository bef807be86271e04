"""Drives the steps of a loaded model without a planner: each test says which they are."""

from __future__ import annotations

from collections.abc import Sequence

from tests.backends.builders import loaded
from tritrio.backends.base import ModelSource
from tritrio.backends.llm.backend import LlmBackend
from tritrio.backends.llm.executor import LlmInstance
from tritrio.backends.llm.steps import (
    Decode,
    Prefill,
    RowCopy,
    RowSwap,
    SequenceStart,
    StepPlan,
    StepResult,
)
from tritrio.protocol.pb.inference import ModelConfig
from tritrio.protocol.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def open_instance(source: ModelSource) -> LlmInstance:
    """Load a model as a server does."""
    backend = LlmBackend()
    config = backend.complete_config(source, ModelConfig(name="m", backend="llm"))
    instance = loaded(backend, source, config)
    assert isinstance(instance, LlmInstance)
    return instance


class Generating:
    """Sequences of one instance, greedy, and the books that a planner keeps of them."""

    def __init__(self, instance: LlmInstance) -> None:
        self.instance = instance
        self.tokens: dict[int, list[int]] = {}  # id -> prompt and text
        self.past: dict[int, int] = {}  # id -> tokens in its row
        self.row: dict[int, int] = {}
        self._prompts: dict[int, int] = {}

    def text(self, sequence: int) -> list[int]:
        """The generated tokens."""
        return self.tokens[sequence][self._prompts[sequence] :]

    def start(
        self, sequence: int, row: int, prompt: Sequence[int], *parts: int, cached: int = 0
    ) -> None:
        """Read a prompt in one step, in parts that long and the rest; choose the first token."""
        joins = self.join(sequence, row, prompt, cached=cached)
        prefills = [self.prefill(sequence, part) for part in parts]
        self.step(joins=joins, prefills=(*prefills, self.prefill(sequence)))

    def join(
        self, sequence: int, row: int, prompt: Sequence[int], *, cached: int = 0
    ) -> tuple[SequenceStart]:
        self.tokens[sequence], self._prompts[sequence] = list(prompt), len(prompt)
        self.past[sequence], self.row[sequence] = cached, row
        return (SequenceStart(id=sequence, prompt=tuple(prompt), params=GREEDY, seed=0),)

    def prefill(self, sequence: int, count: int | None = None) -> Prefill:
        """The next part of what is not read yet; all of it for None."""
        past = self.past[sequence]
        part = tuple(self.tokens[sequence][past : None if count is None else past + count])
        self.past[sequence] += len(part)
        samples = self.past[sequence] == len(self.tokens[sequence])
        return Prefill(sequence, self.row[sequence], part, past, samples)

    def go_on(self, *sequences: int, steps: int = 1) -> None:
        """Let these go on by so many tokens, together; the others are idle."""
        for _ in range(steps):
            decodes, idle = self.decodes(*sequences)
            self.step(decodes=decodes, idle_rows=idle)

    def decodes(self, *sequences: int) -> tuple[tuple[Decode, ...], dict[int, int]]:
        ordered = sorted(sequences, key=self.row.__getitem__)
        decodes = []
        for each in ordered:
            decodes.append(Decode(each, self.row[each], self.tokens[each][-1], self.past[each]))
            self.past[each] += 1
        kept = {self.row[each]: self.past[each] for each in self.row if each not in sequences}
        return tuple(decodes), {
            row: kept.get(row, 0)
            for row in range(decodes[-1].row)
            if row not in {decode.row for decode in decodes}
        }

    def step(
        self,
        *,
        joins: tuple[SequenceStart, ...] = (),
        swaps: tuple[RowSwap, ...] = (),
        copies: tuple[RowCopy, ...] = (),
        decodes: tuple[Decode, ...] = (),
        idle_rows: dict[int, int] | None = None,
        prefills: tuple[Prefill, ...] = (),
    ) -> StepResult:
        result = self.instance.step(
            StepPlan(
                joins=joins,
                swaps=swaps,
                copies=copies,
                decodes=decodes,
                idle_rows=idle_rows or {},
                prefills=prefills,
            )
        )
        for sequence, choice in result.choices.items():
            self.tokens[sequence].append(choice.token)
        return result
