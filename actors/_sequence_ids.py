"""Which sequence an id stands for, and which ones with that id are not over.  Pure."""

from __future__ import annotations

from itertools import count
from typing import final

from ..backends.base import SequenceEndReason
from ..protocol.tensors import Tensor
from ._sequence_slots import Sequence


@final
class SequenceIds:
    """The sequences that are not over, by id; an integer and its text are different ids.

    Those with one id form a chain, in the order of their START.
    """

    def __init__(self) -> None:
        self._latest: dict[int | str, Sequence] = {}
        self._generations = count(1)
        self._internal_ids = count(1)

    def latest(self, sequence_id: int | str) -> Sequence | None:
        """Return the last sequence with an id."""
        return self._latest.get(sequence_id)

    def all_latest(self) -> list[Sequence]:
        """Return the last sequence with each id."""
        return list(self._latest.values())

    def new_id(self) -> int:
        """Return an id for a request without one: none that is in use."""
        return next(number for number in self._internal_ids if number not in self._latest)

    def begin(self, sequence_id: int | str, states: dict[str, Tensor]) -> Sequence:
        """Return a new sequence; the one before it ends if it did not, and its place is taken."""
        sequence = Sequence(sequence_id, next(self._generations), states)
        previous = self._latest.get(sequence_id)
        self._latest[sequence_id] = sequence
        if previous is not None:
            previous.successor, sequence.predecessor = sequence, previous
            if previous.end_reason is None:
                previous.end_reason = SequenceEndReason.RESTARTED
                sequence.follows = True
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that is over."""
        predecessor, successor = sequence.predecessor, sequence.successor
        if predecessor is not None:
            predecessor.successor = successor
        if successor is not None:
            successor.predecessor = predecessor
        elif predecessor is not None:
            self._latest[sequence.id] = predecessor
        else:
            del self._latest[sequence.id]
