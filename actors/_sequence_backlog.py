"""Which sequences wait for a slot, in which order, and until when.  Pure: no trio, no clock."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count
from math import inf
from typing import final

from ._sequence_slots import Sequence

_STALE_DEADLINES = 64
"""Deadlines of sequences that wait no more, over as many as there are others, before a clean-up."""


@final
class Backlog:
    """The sequences that wait for any slot, and the deadlines of all sequences that wait."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()  # by ticket
        self._deadlines: list[tuple[float, int, Sequence]] = []  # a heap
        self._deadlines_max = _STALE_DEADLINES
        self._tickets = count(1)

    def __len__(self) -> int:
        return len(self._sequences)

    def append(self, sequence: Sequence) -> None:
        """Let a sequence wait behind the others."""
        sequence.ticket = next(self._tickets)
        self._sequences[sequence.ticket] = sequence

    def put_back(self, sequence: Sequence) -> None:
        """Let a sequence wait in front of the others."""
        self.append(sequence)
        self._sequences.move_to_end(sequence.ticket, last=False)

    def pop(self) -> Sequence:
        """Remove and return the sequence that has waited longest."""
        _, sequence = self._sequences.popitem(last=False)
        sequence.ticket = 0
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, if it is there; its follower takes its place."""
        follower, ticket = sequence.follower, sequence.ticket
        if ticket:
            sequence.ticket = 0
            if follower is None:
                del self._sequences[ticket]
            else:
                self._sequences[ticket] = follower
                follower.ticket = ticket
                follower.follows = False

    def add_deadline(self, sequence: Sequence, deadline_s: float) -> None:
        """Limit how long a sequence may wait for a slot; the earliest of its deadlines counts."""
        heapq.heappush(self._deadlines, (deadline_s, next(self._tickets), sequence))
        if len(self._deadlines) > self._deadlines_max:
            self._deadlines = [entry for entry in self._deadlines if _waits(entry[2])]
            heapq.heapify(self._deadlines)
            self._deadlines_max = 2 * len(self._deadlines) + _STALE_DEADLINES

    def timeout_at_s(self) -> float:
        """When the next waiting sequence times out, in clock seconds; `inf` if none can."""
        deadlines = self._deadlines
        while deadlines and not _waits(deadlines[0][2]):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else inf

    def next_expired(self, now_s: float) -> Sequence | None:
        """Return a sequence that has waited too long, until it waits no more."""
        return self._deadlines[0][2] if self.timeout_at_s() <= now_s else None


def _waits(sequence: Sequence) -> bool:
    return sequence.slot is None and bool(sequence.queue)
