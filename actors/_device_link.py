"""How an actor runs jobs on a device thread, and gets their results back onto the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Any, Protocol, TypeAlias, TypeVar, TypeVarTuple, final

import outcome
import trio

from ..backends.base import InstancePlace
from ..backends.device_context import HostContext
from ..backends.device_thread import DeviceThread
from ._doorbell import current_doorbell

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ABANDON_AFTER_S = 1.0
"""How long a cancelled caller waits for its job, in seconds: a job on a thread cannot be
interrupted, and most batches take less."""

_logger = logging.getLogger(__name__)


def _never() -> bool:
    return False


class DeviceHungError(Exception):
    """A job took longer than jobs may take."""


class Device(Protocol):
    """Where an instance lives: runs its jobs one at a time, off the event loop."""

    def start(self) -> None:
        """Get ready for jobs; once, from the event loop."""

    async def run(
        self,
        job: Callable[[*Ts], T],
        /,
        *args: *Ts,
        then: Callable[[T], None] | None = None,
        hang_s: float = inf,
        excused: Callable[[], bool] = _never,
    ) -> T:
        """Run one job and return or raise what it did.

        `then` gets the result first, on the event loop, before the waiting task has its turn;
        what it raises is raised here.

        A cancelled call waits for its job for a bounded time. If that does not do, the device is
        `abandoned`.

        Raises:
          DeviceHungError: the job was not done within `hang_s`, and was not `excused` when asked
            then; the device is `abandoned`, and `then` will not be called.
        """

    def ask(self, job: Callable[[], T], done: Callable[[outcome.Outcome[T]], object]) -> None:
        """Run a short job when the device is free, whether or not another one runs.

        `done` gets what it did, on the event loop, unless the device ends before; it must not
        raise.
        """

    def stop(self) -> None:
        """End the device; does not wait, idempotent."""

    @property
    def abandoned(self) -> bool:
        """Whether no more jobs may be run, because nobody waited for the last one."""

    @property
    def hangs(self) -> bool:
        """Whether the job it was abandoned with still runs."""


DeviceFactory: TypeAlias = Callable[[InstancePlace], Device]
"""Makes the device for an instance; not started yet."""


@final
class DeviceLink:
    """A `Device` on a thread of its own; one job in flight, one waiting task."""

    def __init__(self, place: InstancePlace) -> None:
        self._name = place.name
        self._thread: DeviceThread | None = None
        self._outcome: outcome.Outcome[Any] | None = None
        self._then: Callable[[Any], None] | None = None
        self._waiter: trio.lowlevel.Task | None = None
        self._abandoned = False

    @property
    def abandoned(self) -> bool:
        """Whether nobody waited for the last job."""
        return self._abandoned

    @property
    def hangs(self) -> bool:
        """Whether the job it was abandoned with still runs."""
        return self._abandoned and self._outcome is None

    def start(self) -> None:
        """Start the thread."""
        self._thread = DeviceThread(self._name, HostContext(), current_doorbell())
        self._thread.start()

    async def run(
        self,
        job: Callable[[*Ts], T],
        /,
        *args: *Ts,
        then: Callable[[T], None] | None = None,
        hang_s: float = inf,
        excused: Callable[[], bool] = _never,
    ) -> T:
        """Run one job on the thread and return or raise what it did; see `Device`."""
        assert self._thread is not None
        assert not self._abandoned
        self._outcome = None
        self._then = then
        self._thread.submit(self._done, job, *args)
        try:
            if hang_s == inf:
                await self._wait()
            else:
                await self._wait_for(hang_s)
                while self._outcome is None and excused():
                    await self._wait_for(hang_s)
        except trio.Cancelled:
            with trio.move_on_after(ABANDON_AFTER_S, shield=True):
                await self._wait()
            if self._outcome is None:
                self._abandon()
            raise
        result: outcome.Outcome[T] | None = self._outcome
        if result is None:
            self._abandon()
            raise DeviceHungError(f"did not finish within {hang_s:g} s")
        self._outcome = None
        return result.unwrap()

    def ask(self, job: Callable[[], T], done: Callable[[outcome.Outcome[T]], object]) -> None:
        """Queue a job behind the one that runs; see `Device`."""
        assert self._thread is not None
        self._thread.submit(done, job)

    def _abandon(self) -> None:
        self._abandoned = True
        self._then = None
        _logger.warning("the thread of instance %r hangs and is abandoned", self._name)

    def stop(self) -> None:
        """Let the thread end after its job."""
        if self._thread is not None:
            self._thread.stop()

    def _done(self, result: outcome.Outcome[Any], *_: object) -> None:
        then, self._then = self._then, None
        if then is not None and isinstance(result, outcome.Value):
            try:
                then(result.value)
            except Exception as error:  # a fault of the caller, raised in it  # noqa: BLE001
                result = outcome.Error(error)
        self._outcome = result
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            trio.lowlevel.reschedule(waiter)

    async def _wait_for(self, duration_s: float) -> None:
        with trio.move_on_after(duration_s):
            await self._wait()

    async def _wait(self) -> None:
        if self._outcome is None:
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED
