"""How much of the load is taken?  Pure: no trio, no clock, no I/O.

Above a watermark of used memory, or of time spent in queues, the lowest priority levels of every
model are shed: one level at once, and more the higher it rises. The highest level of a model, and
a model without levels, are never shed; those are refused when the byte budget is used up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, inf
from typing import final

MEMORY_HIGH = 0.8
"""Share of the byte budget above which levels are shed. Below it a burst still fits, and what is
above leaves the highest level room until the others' requests have drained."""

MEMORY_LOW = 0.65
"""Share of the byte budget at which every level is taken again; far enough below for a queue that
was shed not to fill up to the watermark at once."""

QUEUE_AGE_LOW_SHARE = 0.5
"""The queue age at which every level is taken again, as a share of the one at which shedding
begins; at twice that one, only the highest level is left."""

PRESSURE_STEPS = 16
"""Steps between no and the highest pressure, so that not every byte changes what is admitted."""

OVERLOAD_RETRY_S = 1.0
"""After how long a client that was shed may come back. A drain takes that long, or the next
refusal says so again."""


@final
@dataclass(frozen=True, slots=True)
class OverloadState:
    """What is taken at the moment.

    Attributes:
      admitted_share: Which part of the priority levels is admitted: 1 is all, 0 only the highest
        of each model.
      optional_work: Whether there is time for what nobody waits for, such as explanations.
    """

    admitted_share: float = 1.0
    optional_work: bool = True


NORMAL = OverloadState()


def levels_admitted(count: int, share: float) -> int:
    """Return how many of a model's `count` levels are admitted: all with share 1, at least one.

    Any share below 1 sheds the lowest level.
    """
    return count if share >= 1 else 1 + floor((count - 1) * max(0.0, share))


@final
class OverloadPolicy:
    """Decides with hysteresis, so that load around a watermark does not switch back and forth.

    Pressure is 0 below the high watermark and rises to 1 over some width above it. It falls as
    slowly as if the load were still higher by the distance of the watermarks, and so reaches 0
    at the low one.

    Args:
      memory_high: Share of the byte budget above which levels are shed; in (0, 1).
      memory_low: Share at which all are taken again; below `memory_high`.
      queue_age_high_s: Seconds that a request waits in a queue before levels are shed; > 0, and
        inf is off.
    """

    def __init__(
        self,
        *,
        memory_high: float = MEMORY_HIGH,
        memory_low: float = MEMORY_LOW,
        queue_age_high_s: float = inf,
    ) -> None:
        assert 0 < memory_low < memory_high < 1
        assert queue_age_high_s > 0
        self._memory = _Pressure(memory_high, memory_low, 1 - memory_high)
        self._age: _Pressure | None = None
        if queue_age_high_s < inf:
            low_s = queue_age_high_s * QUEUE_AGE_LOW_SHARE
            self._age = _Pressure(queue_age_high_s, low_s, queue_age_high_s)
        self._pressure = 0
        self._state = NORMAL
        self._since_s = 0.0

    @property
    def memory_high(self) -> float:
        """Share of the byte budget above which levels are shed."""
        return self._memory.high

    @property
    def watches_age(self) -> bool:
        """Whether the queue age counts."""
        return self._age is not None

    def observe(self, used_fraction: float, oldest_age_s: float, now_s: float) -> OverloadState:
        """Take what is measured and return what to admit; the same object while that is the same.

        Args:
          used_fraction: Used share of the byte budget.
          oldest_age_s: How long the request waits that waits longest, in seconds; 0 with none.
          now_s: The time.
        """
        pressure = self._memory.observe(used_fraction)
        if self._age is not None:
            pressure = max(pressure, self._age.observe(oldest_age_s))
        steps = ceil(pressure * PRESSURE_STEPS)
        if steps != self._pressure:
            if not self._pressure:
                self._since_s = now_s
            self._pressure = steps
            self._state = NORMAL if not steps else OverloadState(1 - steps / PRESSURE_STEPS, False)
        return self._state

    def overloaded_for_s(self, now_s: float) -> float:
        """Return how long the overload lasts, or the last one lasted until `now_s`."""
        return now_s - self._since_s


class _Pressure:
    """One measured value between its watermarks, as a pressure from 0 to 1."""

    __slots__ = ("_low", "_value", "_width", "high")

    def __init__(self, high: float, low: float, width: float) -> None:
        self.high = high
        self._low = low
        self._width = width
        self._value = 0.0

    def observe(self, measured: float) -> float:
        if measured <= self.high and not self._value:
            return 0.0
        rising = (measured - self.high) / self._width
        falling = (measured - self._low) / self._width
        self._value = max(0.0, min(1.0, max(rising, min(self._value, falling))))
        return self._value
