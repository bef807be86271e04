"""A device without a thread, on which jobs take virtual seconds, and a model to run on it.

A MockClock does not see threads: it would jump past a job that one executes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar, TypeVarTuple

import outcome
import trio

from tritrio.actors._device_link import ABANDON_AFTER_S, Device, DeviceHungError
from tritrio.backends.base import Batch, InstancePlace, ModelInstance, ModelSource
from tritrio.protocol.pb.inference import ModelConfig
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.tensors import Tensor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Seconds = Callable[[InstancePlace, Batch], float]
INPUT_NS, INFER_NS, OUTPUT_NS = 1000, 2000, 3000


class FakeDeviceDiedError(Exception):
    """The fault of a device, as opposed to one of the model on it."""


class FakeDevice:
    """Runs each job on the event loop, when its time is over; keeps jobs one at a time."""

    def __init__(
        self, place: InstancePlace, seconds: Seconds, other_s: float, deadly: set[str]
    ) -> None:
        self.place = place
        self.abandoned = False
        self.started = self.stopped = False
        self._seconds = seconds
        self._other_s = other_s
        self._deadly = deadly
        self._busy = False
        self._end_s = 0.0

    def start(self) -> None:
        assert not self.started
        self.started = True

    @property
    def hangs(self) -> bool:
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
        assert self.started
        assert not self.stopped
        assert not self._busy, "one job at a time"
        assert not self.abandoned
        self._busy = True
        batch = next((argument for argument in args if isinstance(argument, Batch)), None)
        seconds = self._other_s if batch is None else self._seconds(self.place, batch)
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
                job(*args)
            self.abandoned = patience.cancelled_caught
            raise
        finally:
            self._busy = False
        if batch is not None and any(r.id in self._deadly for r in batch.requests):
            raise FakeDeviceDiedError(self.place.name)
        result = job(*args)
        if then is not None:
            then(result)
        return result

    def ask(self, job: Callable[[], T], done: Callable[[outcome.Outcome[T]], object]) -> None:
        assert self.started
        assert not self.stopped
        done(outcome.capture(job))

    def stop(self) -> None:
        self.stopped = True


class FakeDevices:
    """Makes fake devices and remembers them.

    Args:
      seconds: What a batch takes on an instance.
      other_s: What any other job takes, such as a load.

    Attributes:
      made: All devices, in the order they were made.
      deadly: Ids of requests that a device does not survive.
    """

    def __init__(self, seconds: Seconds | float = 0.0, *, other_s: float = 0.0) -> None:
        self._other_s = other_s
        self._seconds: Seconds = seconds if callable(seconds) else lambda _, __: seconds
        self.made: list[FakeDevice] = []
        self.deadly: set[str] = set()

    def loads_take(self, other_s: float) -> None:
        """Set what any other job takes on devices that are made from now on."""
        self._other_s = other_s

    def __call__(self, place: InstancePlace) -> Device:
        device = FakeDevice(place, self._seconds, self._other_s, self.deadly)
        self.made.append(device)
        return device


class EchoBackend:
    """Makes models that answer with their inputs, and remembers what was executed.

    Attributes:
      executed: (virtual time at the end, instance name, request ids) of each batch.
      rows: Rows of each batch.
      before: Called with each batch; may raise, or answer for the model and return True.
      at_load: Called with the place of each instance that loads; may raise.
      events: "load" and "unload" with instance names, in order.
    """

    name = "echo"
    stacks_inputs = True
    cpu_instance_count = 1

    def __init__(self) -> None:
        self.executed: list[tuple[float, str, list[str]]] = []
        self.rows: list[int] = []
        self.before: Callable[[Batch], bool | None] = lambda _: None
        self.at_load: Callable[[InstancePlace], None] = lambda _: None
        self.events: list[tuple[str, str]] = []

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:
        del source
        return config

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        del config
        return _EchoInstance(self, source, place)

    @property
    def batches(self) -> list[list[str]]:
        return [ids for _, _, ids in self.executed]


class _EchoInstance:
    def __init__(self, backend: EchoBackend, source: ModelSource, place: InstancePlace) -> None:
        self._backend = backend
        self._source = source
        self._place = place

    def load(self) -> None:
        self._backend.events.append(("load", self._place.name))
        self._backend.at_load(self._place)

    def execute(self, batch: Batch) -> None:
        backend = self._backend
        ids = [request.id for request in batch.requests]
        backend.executed.append((trio.current_time(), self._place.name, ids))
        backend.rows.append(sum(request.batch_size for request in batch.requests))
        batch.compute_start_ns = 1
        batch.infer_start_ns = 1 + INPUT_NS
        batch.infer_end_ns = 1 + INPUT_NS + INFER_NS
        batch.compute_end_ns = 1 + INPUT_NS + INFER_NS + OUTPUT_NS
        if backend.before(batch):
            return
        for index, request in enumerate(batch.requests):
            outputs = [
                Tensor(
                    tensor.name.replace("INPUT", "OUTPUT"), "INT32", tensor.shape, raw=tensor.raw
                )
                for tensor in request.inputs.values()
            ]
            version = str(self._source.version)
            batch.respond(index, InferResponse(self._source.name, version, request.id, outputs))

    def unload(self) -> None:
        self._backend.events.append(("unload", self._place.name))
