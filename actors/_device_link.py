"""How an actor runs jobs on a device thread, and gets their results back onto the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
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


class Device(Protocol):
    """Where an instance lives: runs its jobs one at a time, off the event loop."""

    def start(self) -> None:
        """Get ready for jobs; once, from the event loop."""

    async def run(
        self, job: Callable[[*Ts], T], /, *args: *Ts, then: Callable[[T], None] | None = None
    ) -> T:
        """Run one job and return or raise what it did.

        `then` gets the result first, on the event loop, before the waiting task has its turn;
        what it raises is raised here.

        A cancelled call waits for its job for a bounded time. If that does not do, the device is
        `abandoned`.
        """

    def stop(self) -> None:
        """End the device; does not wait, idempotent."""

    @property
    def abandoned(self) -> bool:
        """Whether a job hangs on it; no more jobs may be run then."""


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
        """Whether a job hangs on the thread."""
        return self._abandoned

    def start(self) -> None:
        """Start the thread."""
        self._thread = DeviceThread(self._name, HostContext(), current_doorbell())
        self._thread.start()

    async def run(
        self, job: Callable[[*Ts], T], /, *args: *Ts, then: Callable[[T], None] | None = None
    ) -> T:
        """Run one job on the thread and return or raise what it did."""
        assert self._thread is not None
        assert not self._abandoned
        self._outcome = None
        self._then = then
        self._thread.submit(self._done, job, *args)
        try:
            await self._wait()
        except trio.Cancelled:
            with trio.move_on_after(ABANDON_AFTER_S, shield=True):
                await self._wait()
            if self._outcome is None:
                self._abandoned = True
                _logger.warning("the thread of instance %r hangs and is abandoned", self._name)
            raise
        result: outcome.Outcome[T] | None = self._outcome
        assert result is not None
        self._outcome = None
        return result.unwrap()

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

    async def _wait(self) -> None:
        if self._outcome is None:
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED
