"""Small builders: requests, configurations, and a served model version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

from tests.support.fake_device import EchoBackend, FakeDevices, Seconds
from tritrio.actors._model_services import ModelServices
from tritrio.actors._restart_policy import RestartBudget
from tritrio.actors.messages import Infer
from tritrio.actors.model import Model, ModelDefinition
from tritrio.actors.reply import Reply
from tritrio.actors.routing_table import ModelVersion
from tritrio.backends.base import ModelSource
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Tensor


def infer_request(
    number: int,
    *,
    rows: int = 1,
    shape: tuple[int, ...] = (4,),
    inputs: tuple[str, ...] = ("INPUT0",),
    timeout_us: int = 0,
    priority: int = 0,
) -> InferRequest:
    """A request with id `number`, each element of it `number`."""
    request = InferRequest("model")
    request.id = str(number)
    request.batch_size = rows
    request.timeout_us = timeout_us
    request.priority = priority
    array = np.full((rows, *shape), number, np.int32)
    request.inputs = {name: Tensor(name, "INT32", array.shape, array=array) for name in inputs}
    return request


def infer(number: int, *, arrived_s: float = 0.0, **attributes: Any) -> Infer:
    """An `Infer` around `infer_request(number, **attributes)`."""
    request = infer_request(number, **attributes)
    return Infer(request, Reply(request), arrived_s)


def model_config(
    *,
    max_batch_size: int = 8,
    instances: int = 1,
    batching: pb.ModelDynamicBatching | None = None,
    dims: tuple[int, ...] = (-1,),
    ragged: bool = False,
    decoupled: bool = False,
) -> pb.ModelConfig:
    """The normalised configuration of a model with one input and one output."""
    if batching is not None and not batching.preferred_batch_size:
        batching.preferred_batch_size = [max_batch_size]
    return pb.ModelConfig(
        name="model",
        backend="echo",
        max_batch_size=max_batch_size,
        input=[
            pb.ModelInput(
                name="INPUT0",
                data_type=pb.DataType.TYPE_INT32,
                dims=list(dims),
                allow_ragged_batch=ragged,
            )
        ],
        output=[pb.ModelOutput(name="OUTPUT0", data_type=pb.DataType.TYPE_INT32, dims=list(dims))],
        instance_group=[
            pb.ModelInstanceGroup(name="model", count=instances, kind=pb.ModelInstanceGroupKind.CPU)
        ],
        dynamic_batching=batching,
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=decoupled),
    )


class Served:
    """One model version on fake devices, ready for requests."""

    def __init__(
        self, model: Model, backend: EchoBackend, devices: FakeDevices, nursery: trio.Nursery
    ) -> None:
        self._nursery = nursery
        self.model = model
        self.backend = backend
        self.devices = devices
        self.start_s = trio.current_time()

    @property
    def version(self) -> ModelVersion:
        return self.model.version

    def submit(self, number: int, **attributes: Any) -> Reply:
        """Hand one request in, as a frontend does."""
        message = infer(number, arrived_s=trio.current_time(), **attributes)
        self.version.submit(message)
        return message.reply

    async def ask(self, number: int, **attributes: Any) -> InferResponse:
        """Hand one request in and wait for its answer."""
        reply = self.submit(number, **attributes)
        try:
            return await reply.receive()
        finally:
            reply.close()

    def stop_soon(self, drain_s: float) -> None:
        """Begin the stop while the test goes on."""
        self._nursery.start_soon(self.model.stop, trio.current_time() + drain_s)

    def elapsed_s(self) -> float:
        return trio.current_time() - self.start_s

    def left_s(self) -> list[float]:
        """When each batch ended, since the start."""
        return [end_s - self.start_s for end_s, _, _ in self.backend.executed]


@asynccontextmanager
async def serving(
    config: pb.ModelConfig,
    *,
    seconds: Seconds | float = 0.0,
    backend: EchoBackend | None = None,
    budget: RestartBudget | None = None,
    drain_s: float = 60.0,
    **services: Any,
) -> AsyncIterator[Served]:
    """Serve one model version on virtual time; at the end it drains and unloads."""
    backend = backend or EchoBackend()
    devices = FakeDevices(seconds)
    source = ModelSource("model", 1, Path("/model"), Path("/model/1"))
    definition = ModelDefinition(
        source=source,
        config=config,
        backend=backend,
        services=ModelServices(
            device_factory=devices, budget=budget or RestartBudget(), **services
        ),
    )
    model = Model(definition, report=lambda: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        yield Served(model, backend, devices, nursery)
        await model.stop(trio.current_time() + drain_s)
