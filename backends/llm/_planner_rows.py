"""Which sequence has which row: admission, room for growth, preemption and closing gaps."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Final, final

from ...memory.kv_slots import KV_BLOCK_TOKENS, KvPlace, KvSlots
from ._planner_sequence import Sequence
from .steps import EngineLimits, RowSwap

PREFIX_WAIT_STEPS_MAX: Final = 128
"""Steps for which a sequence waits for another one to read what both begin with: 64 k tokens in
parts of 512. After that it reads for itself, whatever keeps the other one."""

SWAPS_PER_STEP_MAX: Final = 1
"""Rows that change places in one step: each may cost as much as a token of every sequence, and gaps
cost that much only over several steps."""

_by_rank = attrgetter("rank")


@final
class RowAllocator:
    """Gives the rows of one instance to sequences, and their bytes.

    Args:
      limits: What the model can do and may take.

    Attributes:
      kv: The books.
      holders: Row -> the sequence that has it.
      waiting: Sequences without a row, by rank.
      preemptions: How often a sequence gave up its row for others.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.kv = KvSlots(
            rows=limits.rows,
            tokens_per_row=limits.tokens_per_row,
            bytes_per_token=limits.kv_bytes_per_token,
            budget_bytes=limits.kv_budget_bytes,
            prefix_caching=limits.prefix_caching,
        )
        self.holders: dict[int, Sequence] = {}
        self.waiting: list[Sequence] = []
        self.preemptions = 0

    def __repr__(self) -> str:
        return f"<RowAllocator: {len(self.holders)} hold rows, {len(self.waiting)} wait>"

    def wait(self, sequence: Sequence) -> None:
        """Let a sequence without a row wait for one."""
        insort(self.waiting, sequence, key=_by_rank)

    def drop(self, sequence: Sequence, *, keep: bool) -> None:
        """Take its row or its place among those that wait from a sequence.

        Args:
          sequence: Whose.
          keep: Whether what its row holds stays cached.
        """
        if sequence.row is None:
            self.waiting.remove(sequence)
        else:
            self._take_back(sequence, keep=keep)

    def lose_state(self) -> None:
        """Let those that have rows wait for others, whose state is to be computed anew."""
        for sequence in list(self.holders.values()):
            self._take_back(sequence, keep=False)
            self.wait(sequence)
        self.kv.clear_cached()

    def close_gaps(self) -> tuple[RowSwap, ...]:
        """Let the highest rows that run take the place of lower ones that do not."""
        if not self._limits.contiguous or any(not each.paused for each in self.waiting):
            return ()
        swaps = []
        for _ in range(SWAPS_PER_STEP_MAX):
            running = {row for row, sequence in self.holders.items() if sequence.runs}
            highest = max(running, default=0)
            lowest = next((row for row in range(highest) if row not in running), None)
            if lowest is None:
                break
            kv, rows = self.kv, self.holders
            swaps.append(RowSwap(lowest, highest, kv.tokens_in(lowest), kv.tokens_in(highest)))
            kv.swap(lowest, highest)
            moved = {lowest: rows.pop(highest)}
            if lowest in rows:
                moved[highest] = rows.pop(lowest)
            for row, sequence in moved.items():
                sequence.row = row
                rows[row] = sequence
        return tuple(swaps)

    def make_room(self) -> None:
        """See that the state of each sequence that goes on has room for one more token.

        In any order: it is always the last by rank that gives way, one that was served here too.
        """
        for sequence in list(self.holders.values()):
            if not (sequence.runs and sequence.decodes):
                continue
            tokens = len(sequence.chain.tokens)
            while sequence.row is not None and not self.kv.reserve(sequence.row, tokens):
                self._preempt(self._victim(sequence))

    def _victim(self, needy: Sequence) -> Sequence:
        """Return who gives up its row for another: the last one by rank.

        If that is the needy one itself, a paused one goes in its place, whatever its rank: nobody
        waits for a client that does not read.
        """
        last = max(self.holders.values(), key=_by_rank)
        if last is not needy:
            return last
        paused = (each for each in self.holders.values() if each.paused)
        return max(paused, key=_by_rank, default=needy)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._take_back(sequence, keep=True)
        self.wait(sequence)

    def _take_back(self, sequence: Sequence, *, keep: bool) -> None:
        assert sequence.row is not None, "it has none"
        self.kv.release(sequence.row, keep=keep)
        del self.holders[sequence.row]
        sequence.row = None

    def admit(self) -> list[tuple[Sequence, KvPlace]]:
        """Give rows to those that wait, strictly by rank, and return who got which.

        One that is held back for what another one reads keeps a row free for itself.
        """
        admitted = []
        index = held_back = 0
        while index < len(self.waiting):
            sequence = self.waiting[index]
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
                del self.waiting[index]
                place = self.kv.take(sequence.chain)
                sequence.row, sequence.computed = place.row, place.tokens
                self.holders[place.row] = sequence
                admitted.append((sequence, place))
        return admitted

    def _has_room(self, sequence: Sequence, rows_kept: int) -> bool:
        # A block for each that grows, lest the next steps take back what is given now.
        return self.kv.free_rows > rows_kept and self.kv.fits(
            len(sequence.chain.tokens), spare_blocks=self.kv.growing_rows
        )

    def _oust_paused(self) -> bool:
        """Make the last paused sequence give up its row, if no other could make room in time."""
        if not self.holders or any(each.runs for each in self.holders.values()):
            return False
        self._preempt(max(self.holders.values(), key=_by_rank))
        return True

    def _is_being_read(self, sequence: Sequence) -> bool:
        """Whether it is worth to wait for another one that reads the same beginning."""
        if not self._limits.prefix_caching or sequence.held_back >= PREFIX_WAIT_STEPS_MAX:
            return False
        tokens_max = len(sequence.chain.tokens) - 1
        common = max(
            (
                sequence.chain.likely_common_tokens(other.chain, tokens_max)
                for other in self.holders.values()
                if other.runs and not other.decodes
            ),
            default=0,
        )
        if common < KV_BLOCK_TOKENS:
            return False
        cached = self.kv.prefix_tokens(sequence.chain)
        return common // KV_BLOCK_TOKENS > cached // KV_BLOCK_TOKENS
