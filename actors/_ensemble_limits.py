"""How many requests of one step run at a time, over all requests of an ensemble.

Source: `max_inflight_requests` of Triton's `ModelEnsembling`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ._ensemble_run import StepCall


@final
class StepLimit:
    """Hands out a number of turns, first come, first served.

    Args:
      inflight_max: Turns at a time; 0 is no limit.
    """

    __slots__ = ("_inflight_max", "_taken", "_waiting")

    def __init__(self, inflight_max: int) -> None:
        self._inflight_max = inflight_max
        self._taken = 0
        self._waiting: dict[StepCall, Callable[[StepCall], None]] = {}

    def take(self, call: StepCall, granted: Callable[[StepCall], None]) -> bool:
        """Return whether a call may start now; if not, `granted(call)` says when it may."""
        if self._inflight_max and self._taken >= self._inflight_max:
            self._waiting[call] = granted
            return False
        self._taken += 1
        return True

    def give_back(self) -> None:
        """Note that a call has ended; whoever has waited longest gets its turn."""
        if self._waiting:
            call = next(iter(self._waiting))
            self._waiting.pop(call)(call)
        else:
            self._taken -= 1

    def forget(self, call: StepCall) -> None:
        """Take a call that waits out of the line."""
        del self._waiting[call]
