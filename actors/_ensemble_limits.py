"""How many requests of one step, and of a whole ensemble, run at a time.

Turns at single steps keep models from being flooded, but not tensors from piling up between a fast
step and a slow one; places for whole requests do. A request has its place before it takes turns;
a step with a turn waits at most for turns of later steps, so there is no circle in which all wait.
Source: `max_inflight_requests` of Triton's `ModelEnsembling`; there, a step waits for the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

Holder = TypeVar("Holder")


@final
class InflightLimit(Generic[Holder]):
    """Hands out a number of turns, first come, first served.

    Args:
      inflight_max: Turns at a time; 0 is no limit.
    """

    __slots__ = ("_inflight_max", "_taken", "_waiting")

    def __init__(self, inflight_max: int) -> None:
        self._inflight_max = inflight_max
        self._taken = 0
        self._waiting: dict[Holder, Callable[[Holder], None]] = {}

    def take(self, holder: Holder, granted: Callable[[Holder], None]) -> bool:
        """Return whether the holder has a turn now; if not, `granted(holder)` says when."""
        if self._inflight_max and self._taken >= self._inflight_max:
            self._waiting[holder] = granted
            return False
        self._taken += 1
        return True

    def give_back(self) -> None:
        """Note that a turn is over; whoever has waited longest gets it."""
        if self._waiting:
            holder = next(iter(self._waiting))
            self._waiting.pop(holder)(holder)
        else:
            self._taken -= 1

    def forget(self, holder: Holder) -> None:
        """Take somebody who waits out of the line."""
        del self._waiting[holder]
