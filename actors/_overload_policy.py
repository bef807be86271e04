"""How much of the load is taken?  Pure: no trio, no clock, no I/O.

Above a watermark of used memory the lowest priority levels of every model are shed, and above one
of time in a queue those of that queue's model: one level at once, and more the higher it rises.
The highest level of a model, and a model without levels, are never shed; those are refused when the
byte budget is used up.
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

_STATES = (
    NORMAL,
    *[OverloadState(1 - step / PRESSURE_STEPS, False) for step in range(1, PRESSURE_STEPS + 1)],
)


def worse(one: OverloadState, other: OverloadState) -> OverloadState:
    """Return the state that admits less."""
    return one if one.admitted_share <= other.admitted_share else other


def levels_admitted(count: int, share: float) -> int:
    """Return how many of a model's `count` levels are admitted: all with share 1, at least one.

    Any share below 1 sheds the lowest level.
    """
    return count if share >= 1 else 1 + floor((count - 1) * max(0.0, share))


@final
class Pressure:
    """One measured value between its watermarks, and what to admit because of it.

    There is a hysteresis, so that load around a watermark does not switch back and forth: pressure
    is 0 up to the high watermark and rises to 1 over some width above it. It falls as slowly as if
    the load were still higher by the distance of the watermarks, and so reaches 0 at the low one.

    Args:
      high: Above this, levels are shed.
      low: At this, all are taken again; below `high`.
      width: At `high` and this, only the highest level is left.

    Attributes:
      high: As given.
    """

    __slots__ = ("_low", "_value", "_width", "high")

    def __init__(self, high: float, low: float, width: float) -> None:
        self.high = high
        self._low = low
        self._width = width
        self._value = 0.0

    def observe(self, measured: float) -> OverloadState:
        """Take what is measured, and return what to admit; an equal pressure gives one object."""
        if measured <= self.high and not self._value:
            return NORMAL
        rising = (measured - self.high) / self._width
        falling = (measured - self._low) / self._width
        self._value = max(0.0, min(1.0, max(rising, min(self._value, falling))))
        return _STATES[ceil(self._value * PRESSURE_STEPS)]


@final
class OverloadPolicy:
    """The watermarks of a server: one memory, and many queues of which each has an age.

    Args:
      memory_high: Share of the byte budget above which levels are shed; in (0, 1).
      memory_low: Share at which all are taken again; below `memory_high`.
      queue_age_high_s: Seconds that a request waits in a queue, beyond its wait for company,
        before levels are shed; > 0, and inf is off.

    Attributes:
      memory: Measured in shares of the byte budget.
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
        self.memory = Pressure(memory_high, memory_low, 1 - memory_high)
        self._queue_age_high_s = queue_age_high_s

    @property
    def watches_age(self) -> bool:
        """Whether the queue age counts."""
        return self._queue_age_high_s < inf

    def queue_age(self) -> Pressure:
        """Return a new pressure for one queue, measured in seconds; needs `watches_age`."""
        high_s = self._queue_age_high_s
        assert high_s < inf
        return Pressure(high_s, high_s * QUEUE_AGE_LOW_SHARE, high_s)
