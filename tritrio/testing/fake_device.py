"""A device without a thread, on which jobs take virtual seconds.

A MockClock does not see threads: it would jump past a job that one executes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from typing import TypeAlias, TypeVar, TypeVarTuple, final

import outcome
import trio

from ..actors._device_link import ABANDON_AFTER_S, Device, DeviceHungError
from ..actors.bls import Calls
from ..backends.base import Batch, InstancePlace
from ..backends.llm.steps import StepPlan

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Seconds: TypeAlias = Callable[[InstancePlace, Batch], float]
"""Returns what a batch takes on an instance."""

StepSeconds: TypeAlias = Callable[[StepPlan], float]
"""Returns what a step of a model that generates text takes."""


class FakeDeviceDiedError(Exception):
    """The fault of a device, as opposed to one of the model on it."""


@final
class FakeDevice:
    """Runs each job on the event loop, when its time is over; keeps jobs one at a time.

    Attributes:
      place: The instance that lives on it.
      abandoned: As of `Device`.
      started: Whether it has been started.
      stopped: Whether it has been stopped.
    """

    def __init__(
        self,
        place: InstancePlace,
        seconds: Seconds,
        step_seconds: StepSeconds,
        other_s: float,
        deadly: set[str],
    ) -> None:
        self.place = place
        self.abandoned = False
        self.started = self.stopped = False
        self._seconds = seconds
        self._step_seconds = step_seconds
        self._other_s = other_s
        self._deadly = deadly
        self._busy = False
        self._end_s = 0.0

    def start(self) -> None:
        """Get ready for jobs; once."""
        assert not self.started
        self.started = True

    @property
    def hangs(self) -> bool:
        """Whether the job it was abandoned with still runs."""
        return self.abandoned and trio.current_time() < self._end_s

    async def run(
        self,
        job: Callable[[*Ts], T],
        /,
        *args: *Ts,
        then: Callable[[T], None] | None = None,
        hang_s: float = inf,
        excused: Callable[[], bool] = lambda: False,
    ) -> T:
        """Run one job and return or raise what it did; see `Device`."""
        assert self.started
        assert not self.stopped
        assert not self._busy, "one job at a time"
        assert not self.abandoned
        self._busy = True
        batch = next((argument for argument in args if isinstance(argument, Batch)), None)
        plan = next((argument for argument in args if isinstance(argument, StepPlan)), None)
        seconds = self._other_s
        if batch is not None:
            seconds = self._seconds(self.place, batch)
        elif plan is not None:
            seconds = self._step_seconds(plan)
        self._end_s = end_s = trio.current_time() + seconds
        try:
            while end_s - trio.current_time() > hang_s:
                await trio.sleep(hang_s)
                if not excused():
                    self.abandoned = True
                    raise DeviceHungError(f"did not finish within {hang_s:g} s")
            await trio.sleep_until(end_s)
        except trio.Cancelled:
            with trio.move_on_after(ABANDON_AFTER_S, shield=True) as patience:
                await trio.sleep_until(end_s)
                self._do(job, *args)
            self.abandoned = patience.cancelled_caught
            raise
        finally:
            self._busy = False
        if batch is not None and any(r.id in self._deadly for r in batch.requests):
            raise FakeDeviceDiedError(self.place.name)
        result = self._do(job, *args)
        if then is not None:
            then(result)
        return result

    def ask(self, job: Callable[[], T], done: Callable[[outcome.Outcome[T]], object]) -> None:
        """Run a short job, and hand its outcome over; see `Device`."""
        assert self.started
        assert not self.stopped
        done(outcome.capture(self._do, job))

    def stop(self) -> None:
        """End the device."""
        self.stopped = True

    def _do(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        calls = self.place.server
        with calls.held_up_by(self.place) if isinstance(calls, Calls) else nullcontext():
            return job(*args)


@final
class FakeDevices:
    """Makes fake devices and remembers them; a `DeviceFactory`.

    Args:
      seconds: What a batch takes on an instance.
      step_seconds: What a step takes.
      other_s: What any other job takes, such as a load.

    Attributes:
      made: All devices, in the order they were made.
      deadly: Ids of requests that a device does not survive.
    """

    def __init__(
        self,
        seconds: Seconds | float = 0.0,
        *,
        step_seconds: StepSeconds = lambda _: 0.0,
        other_s: float = 0.0,
    ) -> None:
        self._other_s = other_s
        self._step_seconds = step_seconds
        self._seconds: Seconds = seconds if callable(seconds) else lambda _, __: seconds
        self.made: list[FakeDevice] = []
        self.deadly: set[str] = set()

    def loads_take(self, other_s: float) -> None:
        """Set what any other job takes on devices that are made from now on."""
        self._other_s = other_s

    def __call__(self, place: InstancePlace) -> Device:
        """Make the device of an instance."""
        device = FakeDevice(place, self._seconds, self._step_seconds, self._other_s, self.deadly)
        self.made.append(device)
        return device


async def at_once(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
    """Run a scan or a preparation on the loop, as a `RunInThread`."""
    await trio.lowlevel.checkpoint()
    return job(*args)
