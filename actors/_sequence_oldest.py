"""Batches of the strategy `oldest`: dynamic batches, whatever the slots.  Pure: no trio, no clock.

Source: Triton `ModelSequenceBatching.StrategyOldest` in model_config.proto.
"""

from __future__ import annotations

from typing import final

from ._batch_policy import BatchPolicy
from ._sequence_forming import Formed
from ._sequence_slots import Slot
from .messages import Infer


@final
class OldestForming:
    """The strategy `oldest`; implements `Forming`.

    Args:
      policy: Forms the batches. What a request waits for company counts from its turn, not from
        its arrival, when earlier ones of its sequence were before it.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._offered: dict[Infer, tuple[Slot, float]] = {}  # with the time it was queued

    def __repr__(self) -> str:
        return f"<OldestForming {self._policy!r}>"

    def offer(self, slot: Slot, now_s: float) -> None:
        """Implements `Forming`."""
        infer = slot.head
        self._offered[infer] = (slot, infer.queued_s)
        refused = self._policy.add(infer, now_s)
        assert refused is None, "it takes one request of each slot"

    def withdraw(self, slot: Slot) -> None:
        """Implements `Forming`."""
        if slot.sequence is not None and slot.sequence.queue:
            infer = slot.head
            if self._policy.remove(infer):
                _, infer.queued_s = self._offered.pop(infer)

    def take(self, now_s: float) -> Formed | None:
        """Implements `Forming`."""
        infers = self._policy.take(now_s)
        if not infers:
            return None
        slots: list[Slot] = []
        for infer in infers:
            slot, infer.queued_s = self._offered.pop(infer)
            slots.append(slot)
        return Formed(slots)

    def is_ripe(self, now_s: float) -> bool:
        """Implements `Forming`."""
        return self._policy.is_ripe(now_s)

    def ripe_at_s(self) -> float:
        """Implements `Forming`."""
        return self._policy.ripe_at_s()
