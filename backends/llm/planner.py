"""What each step of the engine does: who is admitted, who goes on, whose prompt is read.

Pure: sequences, times and results go in, plans and token events come out. Source of the rules: the
continuous batching of vLLM's scheduler, with rows in place of pages.
"""

from __future__ import annotations

from typing import final

from ...memory.kv_slots import KvPlace
from ...protocol.errors import PromptTooLongError, RequestError, invalid_argument
from ._planner_rows import RowAllocator
from ._planner_sequence import Sequence, SequenceFacts
from .steps import (
    Decode,
    EngineLimits,
    Prefill,
    RowCopy,
    SequenceFault,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenEvent,
)


@final
class StepPlanner:
    """Plans the steps of one instance; one step at a time.

    Each `plan` that is not None is followed by `commit` or `fail` before the next one; between them
    sequences may be added, removed, paused and resumed.

    The last token of a sequence is never computed, so a row holds `tokens_per_row - 1` tokens at
    most: there is always room to write behind those of an idle row.

    Args:
      limits: What the model can do and may take.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._rows = RowAllocator(limits)
        # The last token takes no state.
        self._tokens_max = min(limits.tokens_per_row, self._rows.kv.state_tokens_max + 1)
        self._sequences: dict[int, Sequence] = {}
        self._ended: dict[int, Sequence] = {}
        self._leaves: list[int] = []
        self._arrivals = 0
        self._step = 0
        self._under_way: StepPlan | None = None

    def __repr__(self) -> str:
        return f"<StepPlanner {self.running} running, {self.waiting} waiting, {self._rows.kv!r}>"

    @property
    def running(self) -> int:
        """Sequences with a row, without paused ones."""
        return sum(sequence.runs for sequence in self._rows.holders.values())

    @property
    def waiting(self) -> int:
        """Sequences without a row, without paused ones."""
        return sum(not sequence.paused for sequence in self._rows.waiting)

    @property
    def paused(self) -> int:
        """Sequences that take no part in steps, with a row or without."""
        return sum(sequence.paused for sequence in self._sequences.values())

    @property
    def preemptions(self) -> int:
        """How often a sequence gave up its row for others."""
        return self._rows.preemptions

    @property
    def kv_used_bytes(self) -> int:
        """Bytes charged for sequences with a row: for all of their tokens, in whole blocks."""
        return self._rows.kv.used_bytes

    @property
    def kv_cached_bytes(self) -> int:
        """Bytes charged for state that no sequence uses now."""
        return self._rows.kv.cached_bytes

    @property
    def kv_budget_bytes(self) -> int:
        """Most of both together."""
        return self._limits.kv_budget_bytes

    def facts(self, sequence_id: int) -> SequenceFacts:
        """Return what became of a sequence; one that ended is known until the next `plan`."""
        return (self._sequences.get(sequence_id) or self._ended[sequence_id]).facts

    def add(self, start: SequenceStart) -> None:
        """Let a sequence wait for a row.

        Raises:
          RequestError: INVALID_ARG; the prompt is empty, or there can never be room for it.
        """
        assert start.id not in self._sequences, "each sequence is added once"
        if (fault := self._fault(len(start.prompt))) is not None:
            raise fault
        sequence = Sequence(
            start, arrival=self._arrivals, tokens_max=self._tokens_max, limits=self._limits
        )
        self._arrivals += 1
        self._sequences[start.id] = sequence
        self._rows.wait(sequence)

    def _fault(self, tokens: int) -> RequestError | None:
        if not tokens:
            return invalid_argument("a prompt needs at least one token, and this one has none")
        most = self._limits.tokens_per_row
        if tokens >= most:
            return PromptTooLongError(
                f"the prompt has {tokens} tokens, and with it the text would have more than the"
                f" {most} that the model can take: {most - 1} are left for a prompt"
            )
        if tokens >= self._tokens_max:
            charge_bytes = self._rows.kv.charge_bytes(tokens)
            return PromptTooLongError(
                f"the state of the prompt's {tokens} tokens takes {charge_bytes} bytes, more than"
                f" the {self._limits.kv_budget_bytes} that the model has for it"
            )
        return None

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence: its row and bytes are free at once, what is in its row stays cached.

        What a step that is under way chooses for it is ignored. Unknown ids are too: a sequence may
        end by itself just before.
        """
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._end(sequence)

    def pause(self, sequence_id: int) -> None:
        """Let a sequence keep its row and take no part in steps; in one under way it still does.

        It gives up its row as others do if they need its room, or if nothing could go on otherwise.
        """
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.paused = True

    def resume(self, sequence_id: int) -> None:
        """Let a paused sequence go on."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.paused = False

    def plan(self, now_s: float) -> StepPlan | None:
        """Return the next step; None if there is none until one is added, resumed or removed.

        Those that go on come first: each takes one token of `step_tokens`, and prompts share the
        others, so that a prompt holds nobody up for longer than that. The last step before None may
        do no more than let the sampler forget sequences.
        """
        assert self._under_way is None, "one step at a time"
        self._ended.clear()
        self._step += 1
        swaps = self._rows.close_gaps()
        self._rows.make_room()
        admitted = self._rows.admit()
        for sequence, place in admitted:
            self._note_admission(sequence, place, now_s)
        going = [each for _, each in sorted(self._rows.holders.items()) if each.runs]
        decodes = tuple(
            Decode(each.id, row, each.chain.tokens[-1], each.computed)
            for each in going
            if each.decodes and (row := each.row) is not None
        )
        joins, prefills = self._prefills([each for each in going if not each.decodes], len(decodes))
        if not (decodes or prefills or self._leaves):
            assert not [*swaps, *admitted], "rows change only for those that go on"
            return None
        self._under_way = StepPlan(
            joins=joins,
            leaves=tuple(self._leaves),
            swaps=swaps,
            copies=tuple(
                RowCopy(place.source, place.row, place.tokens)
                for _, place in admitted
                if place.source is not None
            ),
            decodes=decodes,
            idle_rows=self._idle_rows(decodes),
            prefills=prefills,
        )
        self._leaves.clear()
        return self._under_way

    def _note_admission(self, sequence: Sequence, place: KvPlace, now_s: float) -> None:
        sequence.turn = 2 * self._step
        facts = sequence.facts
        if facts.admitted_s is not None:
            return  # again, after a preemption
        facts.admitted_s = now_s
        facts.cached_tokens = place.tokens

    def _prefills(
        self, readers: list[Sequence], decodes: int
    ) -> tuple[tuple[SequenceStart, ...], tuple[Prefill, ...]]:
        """Share the tokens that are left among prompts, the least recently served first.

        One just admitted stands behind those that were served in the step before, and before those
        served in this one: turns are even for admissions and odd for parts read.

        A prompt never starves: the first one gets its fewest tokens though those that go on take
        the whole step.
        """
        fewest = self._limits.prefill_tokens_min
        left = max(self._limits.step_tokens - decodes, fewest)
        joins, prefills = [], []
        for sequence in sorted(readers, key=lambda each: (each.turn, each.rank)):
            tokens = sequence.chain.tokens
            past = max(0, min(sequence.computed, len(tokens) - fewest))
            if left < min(fewest, len(tokens) - past):
                break
            part = tuple(tokens[past : past + left])
            left -= len(part)
            assert sequence.row is not None, "only sequences with a row read"
            samples = past + len(part) == len(tokens)
            prefills.append(Prefill(sequence.id, sequence.row, part, past, samples))
            sequence.turn = 2 * self._step + 1
            if not sequence.joined:
                sequence.joined = True
                joins.append(sequence.start)
        return tuple(joins), tuple(prefills)

    def _idle_rows(self, decodes: tuple[Decode, ...]) -> dict[int, int]:
        if not decodes:
            return {}
        busy = {decode.row for decode in decodes}
        rows = range(decodes[-1].row)
        return {row: self._rows.kv.tokens_in(row) for row in rows if row not in busy}

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """Take what became of a step, and return what that means for each sequence with news.

        Args:
          plan: The step that was planned last.
          result: A choice or a fault for each of its sequences that was to get a token.
        """
        self._finish_step(plan)
        events = []
        parts = [(each.sequence_id, each.past + 1, True) for each in plan.decodes]
        parts += [
            (each.sequence_id, each.past + len(each.tokens), each.samples) for each in plan.prefills
        ]
        for sequence_id, computed, samples in parts:
            sequence = self._sequences.get(sequence_id)
            if sequence is None:
                continue  # removed meanwhile
            fault = result.faults.get(sequence_id)
            if fault is not None:
                self._end(sequence, keep=False)
                events.append(TokenEvent(sequence_id, None, fault=fault))
                continue
            assert sequence.row is not None, "rows are given up between steps only"
            sequence.computed = computed
            self._rows.kv.fill(sequence.row, computed)
            if samples:
                event = sequence.choose(result.choices[sequence_id])
                if event.finish is not None:
                    self._end(sequence)
                events.append(event)
        return events

    def fail(self, plan: StepPlan, fault: str) -> list[TokenEvent]:
        """Take that a step failed: its sequences end, and all state is lost.

        The others wait for a row again. Those that end are among the `leaves` of the next plan,
        whether the sampler has met them or not.
        """
        self._finish_step(plan)
        ids = [each.sequence_id for each in plan.decodes]
        ids += [each.sequence_id for each in plan.prefills]
        failed = [self._sequences[each] for each in ids if each in self._sequences]
        for sequence in failed:
            self._end(sequence, keep=False)
        self._rows.lose_state()
        return [TokenEvent(sequence.id, None, fault=SequenceFault(fault)) for sequence in failed]

    def reset(self, fault: str) -> list[TokenEvent]:
        """Take that the instance is lost with all that it knew: every sequence ends."""
        ended = list(self._sequences.values())
        for sequence in ended:
            self._end(sequence, keep=False)
        self._rows.kv.clear_cached()
        self._leaves.clear()
        self._under_way = None
        return [TokenEvent(sequence.id, None, fault=SequenceFault(fault)) for sequence in ended]

    def _finish_step(self, plan: StepPlan) -> None:
        assert plan is self._under_way, "this step is not under way"
        self._under_way = None

    def _end(self, sequence: Sequence, *, keep: bool = True) -> None:
        del self._sequences[sequence.id]
        self._ended[sequence.id] = sequence
        self._rows.drop(sequence, keep=keep)
        if sequence.joined:
            self._leaves.append(sequence.id)
