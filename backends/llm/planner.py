"""What each step of the engine does: who is admitted, who goes on, whose prompt is read.

Pure: sequences, times and results go in, plans and token events come out. Source of the rules: the
continuous batching of vLLM's scheduler, with rows in place of pages.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Final

from ...memory.kv_slots import KV_BLOCK_TOKENS, KvSlots
from ...protocol.errors import RequestError, invalid_argument
from ._planner_sequence import Sequence, SequenceFacts
from .steps import (
    Decode,
    EngineLimits,
    Prefill,
    RowCopy,
    RowSwap,
    SequenceStart,
    StepPlan,
    StepResult,
    TokenEvent,
)

PREFILL_TOKENS_MIN: Final = 1
"""Prompt tokens of a step in which sequences that go on take all others: a prompt never starves."""

PREFIX_WAIT_STEPS_MAX: Final = 128
"""Steps for which a sequence waits for another one to read what both begin with: 64 k tokens in
parts of 512. Behind that it reads for itself, whatever keeps the other one."""

SWAPS_PER_STEP_MAX: Final = 1
"""Rows that change places in one step: each costs about as much as a token of every sequence, and a
gap costs that much only over several steps."""

_by_rank = attrgetter("rank")


class StepPlanner:
    """Plans the steps of one instance; one step at a time.

    Each `plan` that is not None is followed by `commit` or `fail` before the next one; between them
    sequences may be added, removed, paused and resumed.

    The last token of a sequence is never computed, so a row holds `tokens_per_row - 1` tokens at
    most: there is always room to write behind those of an idle row.

    Args:
      limits: What the model can do and may take.

    Attributes:
      prefix_query_tokens: Prompt tokens that were looked for in the state there was.
      prefix_hit_tokens: Those that were found.
      preemptions: How often a sequence gave up its row for others.
      prompt_tokens_computed: Tokens read in parts of prompts, after a preemption again.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0
        self.prompt_tokens_computed = 0
        self._limits = limits
        self._arrivals = 0
        self._step = 0
        self._clear()
        # The last token takes no state.
        self._tokens_max = min(limits.tokens_per_row, self._kv.state_tokens_max + 1)

    def _clear(self) -> None:
        limits = self._limits
        self._kv = KvSlots(
            rows=limits.rows,
            tokens_per_row=limits.tokens_per_row,
            bytes_per_token=limits.kv_bytes_per_token,
            budget_bytes=limits.kv_budget_bytes,
            prefix_caching=limits.prefix_caching,
        )
        self._sequences: dict[int, Sequence] = {}
        self._ended: dict[int, Sequence] = {}
        self._rows: dict[int, Sequence] = {}
        self._waiting: list[Sequence] = []  # by rank
        self._leaves: list[int] = []
        self._under_way: StepPlan | None = None

    def __repr__(self) -> str:
        return f"<StepPlanner {self.running} running, {self.waiting} waiting, {self._kv!r}>"

    @property
    def running(self) -> int:
        """Sequences with a row, paused ones included."""
        return len(self._rows)

    @property
    def waiting(self) -> int:
        """Sequences without a row."""
        return len(self._waiting)

    @property
    def paused(self) -> int:
        """Sequences that take no part in steps, with a row or without."""
        return sum(sequence.paused for sequence in self._sequences.values())

    @property
    def kv_used_bytes(self) -> int:
        """Bytes charged for sequences with a row: for all of their tokens, in whole blocks."""
        return self._kv.used_bytes

    @property
    def kv_cached_bytes(self) -> int:
        """Bytes charged for state that no sequence uses now."""
        return self._kv.cached_bytes

    @property
    def kv_budget_bytes(self) -> int:
        """Most of both together."""
        return self._limits.kv_budget_bytes

    def facts(self, sequence_id: int) -> SequenceFacts:
        """Return what became of a sequence; one that ended is known until the next `plan`."""
        return (self._sequences.get(sequence_id) or self._ended[sequence_id]).facts

    def admitted_s(self, sequence_id: int) -> float | None:
        """Return when a sequence first got a row; known as long as its facts are."""
        return self.facts(sequence_id).admitted_s

    def add(self, start: SequenceStart, now_s: float) -> None:
        """Let a sequence wait for a row.

        Raises:
          RequestError: INVALID_ARG; the prompt is empty, or there can never be room for it.
        """
        assert start.id not in self._sequences, "each sequence is added once"
        if (fault := self._fault(len(start.prompt))) is not None:
            raise fault
        sequence = Sequence(
            start,
            arrival=self._arrivals,
            tokens_max=self._tokens_max,
            limits=self._limits,
            now_s=now_s,
        )
        self._arrivals += 1
        self._sequences[start.id] = sequence
        insort(self._waiting, sequence, key=_by_rank)

    def _fault(self, tokens: int) -> RequestError | None:
        if not tokens:
            return invalid_argument("a prompt needs at least one token, and this one has none")
        most = self._limits.tokens_per_row
        if tokens >= most:
            return invalid_argument(
                f"the prompt has {tokens} tokens, and with it the text would have more than the"
                f" {most} that the model can take: {most - 1} are left for a prompt"
            )
        if tokens >= self._tokens_max:
            return invalid_argument(
                f"the state of the prompt's {tokens} tokens takes {self._kv.charge_bytes(tokens)}"
                f" bytes, more than the {self._limits.kv_budget_bytes} that the model has for it"
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

        A step may do no more than let the sampler forget sequences.
        """
        assert self._under_way is None, "one step at a time"
        self._ended.clear()
        self._step += 1
        swaps = self._swaps()
        self._make_room()
        copies = self._admit(now_s)
        going = sorted((each for each in self._rows.values() if each.runs), key=attrgetter("row"))
        decodes = tuple(
            Decode(each.id, row, each.chain.tokens[-1], each.computed)
            for each in going
            if each.decodes and (row := each.row) is not None
        )
        joins, prefills = self._prefills([each for each in going if not each.decodes], len(decodes))
        if not (decodes or prefills or self._leaves):
            return None
        self._under_way = StepPlan(
            joins=joins,
            leaves=tuple(self._leaves),
            swaps=swaps,
            copies=copies,
            decodes=decodes,
            idle_rows=self._idle_rows(decodes),
            prefills=prefills,
        )
        self._leaves.clear()
        return self._under_way

    def _swaps(self) -> tuple[RowSwap, ...]:
        """Let the highest rows that run take the place of lower ones that do not."""
        if not self._limits.contiguous or any(not each.paused for each in self._waiting):
            return ()
        swaps = []
        for _ in range(SWAPS_PER_STEP_MAX):
            running = {row for row, sequence in self._rows.items() if sequence.runs}
            highest = max(running, default=0)
            lowest = next((row for row in range(highest) if row not in running), None)
            if lowest is None:
                break
            kv, rows = self._kv, self._rows
            swaps.append(RowSwap(lowest, highest, kv.tokens_in(lowest), kv.tokens_in(highest)))
            kv.swap(lowest, highest)
            moved = {lowest: rows.pop(highest)}
            if lowest in rows:
                moved[highest] = rows.pop(lowest)
            for row, sequence in moved.items():
                sequence.row = row
                rows[row] = sequence
        return tuple(swaps)

    def _make_room(self) -> None:
        """See that the state of each sequence that goes on has room for one more token."""
        going = [each for each in self._rows.values() if each.runs and each.decodes]
        going.sort(key=_by_rank)
        for sequence in going:
            while sequence.row is not None and not self._kv.reserve(
                sequence.row, len(sequence.chain.tokens)
            ):
                self._preempt(self._victim(sequence))

    def _victim(self, needy: Sequence) -> Sequence:
        """Return who gives up its row for another: the last one by rank.

        If that is the needy one itself, it goes before it does so only if none is paused: nobody
        waits for a client that does not read.
        """
        last = max(self._rows.values(), key=_by_rank)
        if last is not needy:
            return last
        paused = (each for each in self._rows.values() if each.paused)
        return max(paused, key=_by_rank, default=needy)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._give_up_row(sequence, keep=True)
        insort(self._waiting, sequence, key=_by_rank)

    def _give_up_row(self, sequence: Sequence, *, keep: bool) -> None:
        assert sequence.row is not None, "it has none"
        self._kv.release(sequence.row, keep=keep)
        del self._rows[sequence.row]
        sequence.row = None
        sequence.computed = 0

    def _admit(self, now_s: float) -> tuple[RowCopy, ...]:
        """Give rows to those that wait, strictly by rank.

        One that is held back for what another one reads keeps a row free for itself.
        """
        copies: list[RowCopy] = []
        index = held_back = 0
        while index < len(self._waiting):
            sequence = self._waiting[index]
            if sequence.paused:
                index += 1
            elif not self._has_room(sequence, held_back):
                if not self._oust_paused():
                    break
            elif self._is_being_read(sequence):
                sequence.held_back += 1
                held_back += 1
                index += 1
            else:
                del self._waiting[index]
                self._take_row(sequence, copies, now_s)
        return tuple(copies)

    def _has_room(self, sequence: Sequence, rows_kept: int) -> bool:
        # A block for each of the others, lest the next steps take back what is given now.
        return self._kv.free_rows > rows_kept and self._kv.fits(
            len(sequence.chain.tokens), spare_blocks=len(self._rows)
        )

    def _oust_paused(self) -> bool:
        """Make the last paused sequence give up its row, if no other could make room in time."""
        if not self._rows or any(each.runs for each in self._rows.values()):
            return False
        self._preempt(max(self._rows.values(), key=_by_rank))
        return True

    def _is_being_read(self, sequence: Sequence) -> bool:
        """Whether it is worth to wait for another one that reads the same beginning."""
        if not self._limits.prefix_caching or sequence.held_back >= PREFIX_WAIT_STEPS_MAX:
            return False
        tokens_max = len(sequence.chain.tokens) - 1
        common = max(
            (
                sequence.chain.common_tokens(other.chain, tokens_max)
                for other in self._rows.values()
                if other.runs and not other.decodes
            ),
            default=0,
        )
        if common < KV_BLOCK_TOKENS:
            return False
        cached = self._kv.prefix_tokens(sequence.chain)
        return common // KV_BLOCK_TOKENS > cached // KV_BLOCK_TOKENS

    def _take_row(self, sequence: Sequence, copies: list[RowCopy], now_s: float) -> None:
        place = self._kv.take(sequence.chain)
        if place.source is not None:
            copies.append(RowCopy(place.source, place.row, place.tokens))
        sequence.row = place.row
        sequence.computed = place.tokens
        sequence.turn = 2 * self._step
        self._rows[place.row] = sequence
        facts = sequence.facts
        if facts.admitted_s is None:
            facts.admitted_s = now_s
            facts.cached_tokens = place.tokens
            if self._limits.prefix_caching:
                self.prefix_query_tokens += len(sequence.start.prompt)
                self.prefix_hit_tokens += place.tokens

    def _prefills(
        self, readers: list[Sequence], decodes: int
    ) -> tuple[tuple[SequenceStart, ...], tuple[Prefill, ...]]:
        """Share the tokens that are left among prompts, the least recently served first.

        One just admitted stands behind those that were served in the step before, and before those
        served in this one: turns are even for admissions and odd for parts read.
        """
        left = max(self._limits.step_tokens - decodes, PREFILL_TOKENS_MIN)
        joins, prefills = [], []
        for sequence in sorted(readers, key=lambda each: (each.turn, each.rank)):
            count = min(left, sequence.uncomputed)
            if not count:
                break
            left -= count
            assert sequence.row is not None, "only sequences with a row read"
            past = sequence.computed
            part = tuple(sequence.chain.tokens[past : past + count])
            samples = count == sequence.uncomputed
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
        return {row: self._kv.tokens_in(row) for row in rows if row not in busy}

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[TokenEvent]:
        """Take what became of a step, and return what that means for each sequence with news.

        Args:
          plan: The step that was planned last.
          result: A choice or a fault for each of its sequences that was to get a token.
          now_s: The time.
        """
        self._finish_step(plan)
        events = []
        parts = [(each.sequence_id, 1, True) for each in plan.decodes]
        parts += [(each.sequence_id, len(each.tokens), each.samples) for each in plan.prefills]
        self.prompt_tokens_computed += sum(len(each.tokens) for each in plan.prefills)
        for sequence_id, count, samples in parts:
            sequence = self._sequences.get(sequence_id)
            if sequence is None:
                continue  # removed meanwhile
            fault = result.faults.get(sequence_id)
            if fault is not None:
                self._end(sequence, keep=False)
                events.append(TokenEvent(sequence_id, None, fault=fault))
                continue
            assert sequence.row is not None, "rows are given up between steps only"
            sequence.computed += count
            self._kv.fill(sequence.row, sequence.computed)
            if samples:
                event = sequence.choose(result.choices[sequence_id], now_s)
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
        ids = [part.sequence_id for part in (*plan.decodes, *plan.prefills)]
        failed = [self._sequences[each] for each in ids if each in self._sequences]
        for sequence in failed:
            self._end(sequence, keep=False)
        for sequence in list(self._rows.values()):
            self._give_up_row(sequence, keep=False)
            insort(self._waiting, sequence, key=_by_rank)
        self._kv.clear_cached()
        return [TokenEvent(sequence.id, None, fault=fault) for sequence in failed]

    def reset(self, fault: str) -> list[TokenEvent]:
        """Take that the instance is lost with all that it knew: every sequence ends."""
        events = [TokenEvent(sequence_id, None, fault=fault) for sequence_id in self._sequences]
        self._clear()
        return events

    def _finish_step(self, plan: StepPlan) -> None:
        assert plan is self._under_way, "this step is not under way"
        self._under_way = None

    def _end(self, sequence: Sequence, *, keep: bool = True) -> None:
        del self._sequences[sequence.id]
        self._ended[sequence.id] = sequence
        if sequence.row is None:
            self._waiting.remove(sequence)
        else:
            self._give_up_row(sequence, keep=keep)
        if sequence.joined:
            self._leaves.append(sequence.id)
