"""A model for fake devices that echoes, and remembers what was executed."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tritrio.backends.base import Batch, InstancePlace, ModelInstance, ModelSource
from tritrio.protocol.pb.inference import ModelConfig
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.tensors import Tensor
from tritrio.testing.fake_device import FakeDevice, FakeDeviceDiedError, FakeDevices, Seconds

__all__ = ["EchoBackend", "FakeDevice", "FakeDeviceDiedError", "FakeDevices", "Seconds"]

INPUT_NS, INFER_NS, OUTPUT_NS = 1000, 2000, 3000


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
