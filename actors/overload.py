"""Sheds load before the server has no room left: one for all models of a server.

Memory is everybody's: when it runs out, every model sheds. A queue is its model's own: one that is
old sheds its own requests, and those of other models, which may be idle, are served.

Schedulers ask for a check in each of their turns; only while there is an overload does a task look
as well, so that it ends when nothing arrives any more.
"""

from __future__ import annotations

import logging
from math import inf
from typing import Protocol, final

import trio

from ..memory.budget import ByteBudget
from ._overload_policy import NORMAL, OverloadPolicy, OverloadState, Pressure, worse
from ._wakeup import Wakeup

AGE_INTERVAL_S = 1 / 64
"""How often the age of queues is looked at, since that goes through all models."""

CHECK_INTERVAL_S = 1 / 16
"""How often an overload is looked at while nothing arrives."""

_logger = logging.getLogger(__name__)


class Sheds(Protocol):
    """A scheduler whose queue takes part."""

    def oldest_due_s(self) -> float:
        """Since when its request that waits longest waits for an instance alone; `inf` with none.

        In clock seconds. Before that it waited for company too, as its model wants it to.
        """

    def heed(self, state: OverloadState, now_s: float) -> None:
        """Act on a change, at once."""


@final
class _Member:
    """What a scheduler is told.

    Attributes:
      age: The pressure of its queue; None if ages do not count.
      by_age: What that admits.
      state: What it heard last.
    """

    __slots__ = ("age", "by_age", "state")

    def __init__(self, age: Pressure | None) -> None:
        self.age = age
        self.by_age = NORMAL
        self.state = NORMAL


@final
class Overload:
    """What is admitted at the moment, on the whole server and by each scheduler.

    Args:
      budget: The byte budget.
      policy: Decides.

    Attributes:
      state: What holds now for the scheduler that admits least.
    """

    def __init__(self, budget: ByteBudget, policy: OverloadPolicy) -> None:
        self._budget = budget
        self._policy = policy
        self._calm_bytes = budget.limit_bytes * policy.memory.high
        self._ages = policy.watches_age
        self._members: dict[Sheds, _Member] = {}
        self._by_memory = NORMAL
        self._age_s = 0.0
        self._age_at_s = -inf
        self._since_s = 0.0
        self._overloaded = Wakeup()
        self.state = NORMAL

    def __repr__(self) -> str:
        return f"<Overload {self.state}, {len(self._members)} schedulers>"

    def join(self, scheduler: Sheds, now_s: float) -> None:
        """Let a scheduler take part; it hears of a lack of memory at once."""
        member = self._members[scheduler] = _Member(
            self._policy.queue_age() if self._ages else None
        )
        if self._by_memory is not NORMAL:
            member.state = self._by_memory
            scheduler.heed(member.state, now_s)

    def leave(self, scheduler: Sheds) -> None:
        """End a scheduler's part; idempotent."""
        self._members.pop(scheduler, None)

    def check(self, now_s: float) -> None:
        """Look whether a state changes, and tell the schedulers for which it does."""
        budget = self._budget
        if self.state is NORMAL and budget.used_bytes <= self._calm_bytes and not self._ages:
            return
        used = budget.used_bytes / budget.limit_bytes if budget.limit_bytes else 0.0
        by_memory = self._policy.memory.observe(used)
        looks = self._ages and now_s >= self._age_at_s + AGE_INTERVAL_S
        if looks:
            self._age_at_s = now_s
            self._look_at_ages(now_s)
        elif by_memory is self._by_memory:
            return
        self._by_memory = worst = by_memory
        changed: list[tuple[Sheds, OverloadState]] = []
        for scheduler, member in self._members.items():
            state = worse(by_memory, member.by_age)
            worst = worse(worst, state)
            if state is not member.state:
                member.state = state
                changed.append((scheduler, state))
        self._note(worst, used, now_s)
        for scheduler, state in changed:
            scheduler.heed(state, now_s)

    def _look_at_ages(self, now_s: float) -> None:
        self._age_s = 0.0
        for scheduler, member in self._members.items():
            assert member.age is not None
            age_s = max(0.0, now_s - scheduler.oldest_due_s())  # 0 with nothing queued
            member.by_age = member.age.observe(age_s)
            self._age_s = max(self._age_s, age_s)

    def _note(self, worst: OverloadState, used: float, now_s: float) -> None:
        before, self.state = self.state, worst
        if before is NORMAL and worst is not NORMAL:
            self._since_s = now_s
            _logger.warning(
                "overload: %.0f %% of the byte budget used, the oldest request waits for an "
                "instance for %.3f s; requests of low priority are refused",
                used * 100,
                self._age_s,
            )
            self._overloaded.set()
        elif worst is NORMAL and before is not NORMAL:
            _logger.info("the overload is over after %.3f s", now_s - self._since_s)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look for the end of each overload, until cancelled."""
        task_status.started()
        while True:
            await self._overloaded.wait()
            while self.state is not NORMAL:
                await trio.sleep(CHECK_INTERVAL_S)
                self.check(trio.current_time())
