"""Ensembles of small models that are functions, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio
import trio.testing

from tests.support.fake_device import INFER_NS, INPUT_NS, OUTPUT_NS, FakeDevices
from tritrio.actors._completion import Completion
from tritrio.actors._device_link import DeviceFactory
from tritrio.actors._ensemble_graph import EnsembleGraph
from tritrio.actors._ensemble_validation import make_graph
from tritrio.actors._model_services import ModelServices
from tritrio.actors.batcher import INBOX_CAPACITY
from tritrio.actors.ensemble import Ensemble
from tritrio.actors.inference import submit
from tritrio.actors.messages import SchedulerMessage, Stop
from tritrio.actors.model import Model, ModelDefinition
from tritrio.actors.reply import Reply
from tritrio.actors.routing_table import ModelState, ModelVersion
from tritrio.backends.base import Batch, InstancePlace, ModelInstance, ModelSource
from tritrio.backends.model_outputs import names_asked_for
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.statistics import ModelStatistics
from tritrio.protocol.tensors import Tensor

Arrays = dict[str, Any]
Function = Callable[[Arrays, InferRequest], Arrays | list[Arrays]]
"""Takes the inputs; returns the outputs, or those of each response of a decoupled model. The key
"parameters" stands for the parameters of the response."""


def model(
    name: str,
    inputs: Mapping[str, Sequence[int]] | None = None,
    outputs: Mapping[str, Sequence[int]] | None = None,
    *,
    max_batch_size: int = 0,
    decoupled: bool = False,
    optional: Sequence[str] = (),
    instances: int = 4,
) -> pb.ModelConfig:
    """The configuration of a model with INT32 tensors; by default IN and OUT of any length."""
    int32 = pb.DataType.TYPE_INT32
    return pb.ModelConfig(
        name=name,
        backend="functions",
        max_batch_size=max_batch_size,
        input=[
            pb.ModelInput(name=each, data_type=int32, dims=list(dims), optional=each in optional)
            for each, dims in ({"IN": [-1]} if inputs is None else inputs).items()
        ],
        output=[
            pb.ModelOutput(name=each, data_type=int32, dims=list(dims))
            for each, dims in ({"OUT": [-1]} if outputs is None else outputs).items()
        ],
        instance_group=[
            pb.ModelInstanceGroup(name=name, count=instances, kind=pb.ModelInstanceGroupKind.CPU)
        ],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=decoupled),
    )


def step(
    name: str, reads: dict[str, str], writes: dict[str, str], *, version: int = -1
) -> pb.ModelEnsemblingStep:
    """One step; the maps go from names of the model to tensors."""
    return pb.ModelEnsemblingStep(
        model_name=name, model_version=version, input_map=reads, output_map=writes
    )


def ensemble(
    name: str,
    steps: Sequence[pb.ModelEnsemblingStep],
    *,
    inflight_max: int = 0,
    inputs: Mapping[str, Sequence[int]] | None = None,
    outputs: Mapping[str, Sequence[int]] | None = None,
    **options: Any,
) -> pb.ModelConfig:
    """The configuration of an ensemble; by default from X to Y."""
    config = model(
        name,
        {"X": [-1]} if inputs is None else inputs,
        {"Y": [-1]} if outputs is None else outputs,
        **options,
    )
    config.backend = ""
    config.platform = "ensemble"
    config.instance_group = []
    config.ensemble_scheduling = pb.ModelEnsembling(
        step=list(steps), max_inflight_requests=inflight_max
    )
    return config


def graph_of(config: pb.ModelConfig, *models: pb.ModelConfig) -> EnsembleGraph:
    """The graph of an ensemble of these models, which have version 1."""
    specs = {
        (each.name, version): ModelSpec.from_config(each, 1)
        for each in models
        for version in ("", "1")
    }

    def find(name: str, version: str) -> ModelSpec:
        if (name, version) not in specs:
            raise RequestError(ErrorCode.NOT_FOUND, f"no {name} version {version or 'at all'}")
        return specs[name, version]

    return make_graph(config, ModelSpec.from_config(config, 1), find)


def tensor(name: str, value: object) -> Tensor:
    array = np.asarray(value, np.int32)
    return Tensor(name, "INT32", array.shape, array=array)


CHAIN = [
    model("double"),
    model("add"),
    ensemble(
        "e", [step("double", {"IN": "X"}, {"OUT": "t"}), step("add", {"IN": "t"}, {"OUT": "Y"})]
    ),
]
DIAMOND = [
    model("double"),
    model("add"),
    model("sum", {"A": [-1], "B": [-1]}),
    ensemble(
        "e",
        [
            step("sum", {"A": "t", "B": "u"}, {"OUT": "Y"}),
            step("double", {"IN": "X"}, {"OUT": "t"}),
            step("add", {"IN": "X"}, {"OUT": "u"}),
        ],
        outputs={"Y": [-1], "t": [-1]},
    ),
]


def double(inputs: Arrays, _: InferRequest) -> Arrays:
    return {"OUT": inputs["IN"] * 2}


def add(inputs: Arrays, _: InferRequest) -> Arrays:
    return {"OUT": inputs["IN"] + 1}


def total(inputs: Arrays, _: InferRequest) -> Arrays:
    return {"OUT": inputs["A"] + inputs["B"]}


FUNCTIONS = {"double": double, "add": add, "sum": total}


class FunctionBackend:
    """Makes models from functions, and remembers what was executed.

    Attributes:
      executed: (time at the end, model, request id) of each request.
      clock: Tells that time; 0 where models run on threads.
    """

    name = "functions"
    stacks_inputs = False
    cpu_instance_count = 1

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = dict(functions)
        self.executed: list[tuple[float, str, str]] = []
        self.clock: Callable[[], float] = trio.current_time

    def complete_config(self, source: ModelSource, config: pb.ModelConfig) -> pb.ModelConfig:
        del source
        return config

    def create_instance(
        self, source: ModelSource, config: pb.ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        del config, place
        return _FunctionInstance(self, source.name)

    def ran(self) -> list[str]:
        """The models that were executed, in order."""
        return [name for _, name, _ in self.executed]


class _FunctionInstance:
    def __init__(self, backend: FunctionBackend, name: str) -> None:
        self._backend = backend
        self._name = name

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def execute(self, batch: Batch) -> None:
        batch.compute_start_ns = 1
        batch.infer_start_ns = 1 + INPUT_NS
        batch.infer_end_ns = 1 + INPUT_NS + INFER_NS
        batch.compute_end_ns = 1 + INPUT_NS + INFER_NS + OUTPUT_NS
        for index, request in enumerate(batch.requests):
            self._backend.executed.append((self._backend.clock(), self._name, request.id))
            arrays = {name: value.array for name, value in request.inputs.items()}
            try:
                given = self._backend.functions[self._name](arrays, request)
            except RequestError as error:
                batch.respond(index, InferResponse(self._name, "1", request.id, error=error))
                continue
            if isinstance(given, dict):
                batch.respond(index, self._response(request, given, final=True))
                continue
            for part in given:
                batch.respond(index, self._response(request, part, final=False))
            final = InferResponse(self._name, "1", request.id)
            final.empty = True
            batch.respond(index, final)

    def _response(self, request: InferRequest, given: Arrays, *, final: bool) -> InferResponse:
        asked = names_asked_for(request)
        outputs = [
            tensor(name, value)
            for name, value in given.items()
            if name != "parameters" and (asked is None or name in asked)
        ]
        response = InferResponse(self._name, "1", request.id, outputs, final=final)
        response.parameters = given.get("parameters", {})
        return response


@dataclass
class World:
    """Models and ensembles that are served."""

    backend: FunctionBackend
    nursery: trio.Nursery
    versions: dict[str, ModelVersion] = field(default_factory=dict)
    models: list[Model] = field(default_factory=list)
    ensembles: dict[str, trio.MemorySendChannel[SchedulerMessage]] = field(default_factory=dict)
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)
    start_s: float = field(default_factory=trio.current_time)

    def find(self, name: str, version: str) -> ModelVersion:
        found = self.versions.get(name)
        if found is None or version not in {"", "1"}:
            raise RequestError(ErrorCode.NOT_FOUND, f"model '{name}' is not there")
        return found

    def elapsed_s(self) -> float:
        return trio.current_time() - self.start_s

    def submit(
        self,
        name: str,
        inputs: Mapping[str, object],
        outputs: Sequence[str] = (),
        **attributes: Any,
    ) -> Reply:
        """Hand a request in, as a frontend does."""
        request = InferRequest(name)
        request.id = "r"
        request.inputs = {each: tensor(each, value) for each, value in inputs.items()}
        request.outputs = tuple(map(RequestedOutput, outputs))
        for attribute, value in attributes.items():
            setattr(request, attribute, value)
        return submit(self.versions[name], request, trio.current_time())

    async def ask(
        self, name: str, inputs: Mapping[str, object], outputs: Sequence[str] = (), **more: Any
    ) -> dict[str, list[Any]] | RequestError:
        """Hand a request in; returns the outputs of its one response, or its error."""
        response = (await self.responses(self.submit(name, inputs, outputs, **more)))[-1]
        return response.error or arrays_of(response)

    async def responses(self, reply: Reply) -> list[InferResponse]:
        """All responses of a request, the final one last."""
        found: list[InferResponse] = []
        try:
            while not found or not found[-1].final:
                found.append(await reply.receive())
        finally:
            reply.close()
        return found

    async def serve_model(self, config: pb.ModelConfig, services: ModelServices) -> None:
        source = ModelSource(config.name, 1, Path("/m"), Path("/m/1"))
        made = Model(
            ModelDefinition(source=source, config=config, backend=self.backend, services=services),
            report=lambda: None,
        )
        await self.nursery.start(made.run)
        self.models.append(made)
        self.versions[config.name] = made.version

    async def serve_ensemble(self, config: pb.ModelConfig) -> None:
        spec = ModelSpec.from_config(config, 1)
        statistics = ModelStatistics()
        outbox, inbox = trio.open_memory_channel[SchedulerMessage](INBOX_CAPACITY)
        actor = Ensemble(
            inbox=inbox,
            completion=Completion(spec.name, "1", statistics),
            graph=make_graph(config, spec, lambda name, version: self.find(name, version).spec),
            spec=spec,
            find=self.find,
        )
        version = ModelVersion(spec=spec, config=config, statistics=statistics, inbox=outbox)
        version.state = ModelState.READY
        scope = self.scopes[config.name] = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await actor.run(task_status=task_status)

        await self.nursery.start(run)
        self.versions[config.name] = version
        self.ensembles[config.name] = outbox

    def assert_nothing_is_left(self) -> None:
        for version in self.versions.values():
            assert version.statistics.pending_count == 0

    async def stop(self) -> None:
        for outbox in reversed(self.ensembles.values()):
            with suppress(trio.BrokenResourceError):  # it has stopped
                await outbox.send(Stop())
        for each in self.models:
            await each.stop(trio.current_time() + 60.0)


def arrays_of(response: InferResponse) -> dict[str, list[Any]]:
    return {output.name: output.array.tolist() for output in response.outputs}


@asynccontextmanager
async def served(
    configs: Sequence[pb.ModelConfig],
    functions: Mapping[str, Function],
    *,
    seconds: Mapping[str, float] | None = None,
    devices: DeviceFactory | None = None,
) -> AsyncIterator[World]:
    """Serve models and ensembles, in this order; at the end nothing may be left of requests.

    Args:
      configs: Each ensemble after the models it uses.
      functions: Model -> what it computes.
      seconds: Model -> virtual seconds an execution takes; 0 if not named.
      devices: Where the models run, if not on virtual time.
    """
    takes_s = dict(seconds or {})
    fakes = FakeDevices(lambda place, _: takes_s.get(place.name.rsplit("_", 1)[0], 0.0))
    services = ModelServices(device_factory=devices or fakes)
    async with trio.open_nursery() as nursery:
        world = World(FunctionBackend(functions), nursery)
        if devices is not None:
            world.backend.clock = lambda: 0.0  # a thread must not ask trio
        for config in configs:
            if config.ensemble_scheduling is None:
                await world.serve_model(config, services)
            else:
                await world.serve_ensemble(config)
        world.start_s = trio.current_time()
        yield world
        await trio.testing.wait_all_tasks_blocked()
        world.assert_nothing_is_left()
        await world.stop()
