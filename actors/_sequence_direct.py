"""Batches of the strategy `direct`: a row of a batch is a slot.  Pure: no trio, no clock, no I/O.

Source: Triton `ModelSequenceBatching.StrategyDirect` in model_config.proto. Unlike it, the request
that waits longest decides which shapes a batch has, so that no slot waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from operator import attrgetter
from typing import final

import numpy as np

from ..protocol.requests import InferRequest
from ._sequence_forming import Formed
from ._sequence_slots import Slot


@final
class DirectForming:
    """The strategy `direct`; implements `Forming`.

    Args:
      slots: Slots of the instance: the most rows of a batch.
      utilization: The part of the slots that must be ready before a batch leaves; 0 is any.
      delay_max_s: How long a request may wait for that, in seconds.
      shape_key: Equal for requests that can be stacked.
      make_filler: Makes the request of an empty row from one of its batch.
    """

    def __init__(
        self,
        *,
        slots: int,
        utilization: float,
        delay_max_s: float,
        shape_key: Callable[[InferRequest], Hashable],
        make_filler: Callable[[InferRequest], InferRequest],
    ) -> None:
        self._ready_min = _ready_min(slots, utilization)
        self._delay_max_s = delay_max_s
        self._shape_key = shape_key
        self._make_filler = make_filler
        self._ready: dict[int, Slot] = {}

    def __repr__(self) -> str:
        return f"<DirectForming {sorted(self._ready)} ready>"

    def offer(self, slot: Slot, now_s: float) -> None:
        """Implements `Forming`."""
        del now_s
        self._ready[slot.index] = slot

    def withdraw(self, slot: Slot) -> None:
        """Implements `Forming`."""
        self._ready.pop(slot.index, None)

    def take(self, now_s: float) -> Formed | None:
        """Implements `Forming`."""
        if not self.is_ripe(now_s):
            return None
        ready = sorted(self._ready.values(), key=attrgetter("index"))
        oldest = min(ready, key=attrgetter("head.queued_s"))
        shape = self._shape_key(oldest.head.request)
        slots = [slot for slot in ready if self._shape_key(slot.head.request) == shape]
        for slot in slots:
            del self._ready[slot.index]
        empty = set(range(slots[-1].index)).difference([slot.index for slot in slots])
        like = oldest.head.request
        return Formed(slots, {row: self._make_filler(like) for row in sorted(empty)})

    def is_ripe(self, now_s: float) -> bool:
        """Implements `Forming`."""
        return bool(self._ready) and now_s >= self.ripe_at_s()

    def ripe_at_s(self) -> float:
        """Implements `Forming`."""
        if not self._ready:
            return inf
        if len(self._ready) >= self._ready_min:
            return -inf
        return min([slot.head.queued_s for slot in self._ready.values()]) + self._delay_max_s


def _ready_min(slots: int, utilization: float) -> int:
    """How many slots must be ready; the configuration's float is a float32."""
    for ready in range(1, slots):
        if np.float32(ready / slots) >= np.float32(utilization):
            return ready
    return slots
