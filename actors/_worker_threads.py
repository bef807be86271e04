"""Blocking work off the event loop, on a bounded number of worker threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple, final

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class RunInThread(Protocol):
    """Runs blocking work off the event loop."""

    async def __call__(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        """Return or raise what `job(*args)` does."""


@final
class WorkerThreads:
    """Runs jobs on worker threads, apart from those that trio's default limiter counts.

    Args:
      threads_max: Most jobs at a time; an abandoned one counts until it ends.
    """

    def __init__(self, threads_max: int) -> None:
        self._limiter = trio.CapacityLimiter(threads_max)

    async def __call__(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        """Return or raise what `job(*args)` does; a cancelled call does not wait for it."""
        return await trio.to_thread.run_sync(
            job, *args, abandon_on_cancel=True, limiter=self._limiter
        )
