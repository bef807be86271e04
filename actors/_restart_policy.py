"""Who is restarted, when, and when is it enough?  Pure: no trio, no clock, no I/O.

Vocabulary: Erlang/OTP supervisors. A child that crashes more than `intensity` times within
`period_s` is given up, so that a crash loop ends instead of spinning.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import final


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """How often a child may be restarted.

    The default lets a crash that comes with one bad input pass, and gives up a model that cannot
    stay up within half a minute.

    Attributes:
      intensity: Most restarts within the period.
      period_s: The period, in seconds.
      backoff_s: Wait before the first restart of a burst; doubles with each further one.
      backoff_max_s: Longest wait before a restart.
    """

    intensity: int = 5
    period_s: float = 60.0
    backoff_s: float = 0.125
    backoff_max_s: float = 8.0


@final
class RestartPolicy:
    """The crashes of one child."""

    def __init__(self, budget: RestartBudget) -> None:
        self._budget = budget
        self._crashes_s: deque[float] = deque()

    def crashed(self, now_s: float) -> float | None:
        """Note a crash; return the wait before a restart in seconds, or None to give up."""
        budget, crashes_s = self._budget, self._crashes_s
        while crashes_s and crashes_s[0] <= now_s - budget.period_s:
            crashes_s.popleft()
        if len(crashes_s) >= budget.intensity:
            return None
        crashes_s.append(now_s)
        # float() keeps 2**n from growing without bound in the intensity
        return float(min(budget.backoff_max_s, budget.backoff_s * 2.0 ** (len(crashes_s) - 1)))
