"""Sheds load before the server has no room left: one for all models of a server.

Schedulers ask for a check in each of their turns; only while there is an overload does a task look
as well, so that it ends when nothing arrives any more.
"""

from __future__ import annotations

import logging
from math import inf
from typing import Protocol, final

import trio

from ..memory.budget import ByteBudget
from ._overload_policy import NORMAL, OverloadPolicy, OverloadState
from ._wakeup import Wakeup

AGE_INTERVAL_S = 1 / 64
"""How often the age of queues is looked at, since that goes through all models."""

CHECK_INTERVAL_S = 1 / 16
"""How often an overload is looked at while nothing arrives."""

_logger = logging.getLogger(__name__)


class Sheds(Protocol):
    """A scheduler whose queue takes part."""

    def oldest_queued_s(self) -> float:
        """When its request that waits longest was queued, in clock seconds; `inf` with none."""

    def heed(self, state: OverloadState, now_s: float) -> None:
        """Act on a change, at once."""


@final
class Overload:
    """What is admitted at the moment, on the whole server.

    Args:
      budget: The byte budget.
      policy: Decides.

    Attributes:
      state: What holds now.
    """

    def __init__(self, budget: ByteBudget, policy: OverloadPolicy) -> None:
        self._budget = budget
        self._policy = policy
        self._calm_bytes = budget.limit_bytes * policy.memory_high
        self._ages = policy.watches_age
        self._members: set[Sheds] = set()
        self._age_s = 0.0
        self._age_at_s = -inf
        self._overloaded = Wakeup()
        self.state = NORMAL

    def __repr__(self) -> str:
        return f"<Overload {self.state}, {len(self._members)} schedulers>"

    def join(self, scheduler: Sheds, now_s: float) -> None:
        """Let a scheduler take part; it hears of the state at once if that is not normal."""
        self._members.add(scheduler)
        if self.state is not NORMAL:
            scheduler.heed(self.state, now_s)

    def leave(self, scheduler: Sheds) -> None:
        """End a scheduler's part; idempotent."""
        self._members.discard(scheduler)

    def check(self, now_s: float) -> None:
        """Look whether the state changes, and tell every scheduler if so."""
        budget = self._budget
        if self.state is NORMAL and budget.used_bytes <= self._calm_bytes and not self._ages:
            return
        used = budget.used_bytes / budget.limit_bytes if budget.limit_bytes else 0.0
        if self._policy.watches_age and now_s >= self._age_at_s + AGE_INTERVAL_S:
            self._age_at_s = now_s
            oldest_s = min([member.oldest_queued_s() for member in self._members], default=inf)
            self._age_s = 0.0 if oldest_s == inf else now_s - oldest_s
        state = self._policy.observe(used, self._age_s, now_s)
        if state is self.state:
            return
        before, self.state = self.state, state
        if before is NORMAL:
            _logger.warning(
                "overload: %.0f %% of the byte budget used, the oldest request waits for %.3f s; "
                "requests of low priority are refused",
                used * 100,
                self._age_s,
            )
            self._overloaded.set()
        elif state is NORMAL:
            _logger.info("the overload is over after %.3f s", self._policy.overloaded_for_s(now_s))
        for member in list(self._members):
            member.heed(state, now_s)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for the end of each overload, until cancelled."""
        task_status.started()
        while True:
            await self._overloaded.wait()
            while self.state is not NORMAL:
                await trio.sleep(CHECK_INTERVAL_S)
                self.check(trio.current_time())
