"""Async models that do what a request tells them, sleep and call other models, on virtual time."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TypeAlias

import trio

from tests.support.fake_device import FakeDevices
from tests.support.limits import TICK_S
from tritrio.actors._model_services import ModelServices
from tritrio.actors.bls import Calls
from tritrio.actors.inference import submit
from tritrio.actors.model import Model, ModelDefinition
from tritrio.actors.reply import Reply
from tritrio.actors.routing_table import ModelEntry, ModelVersion, RoutingTable
from tritrio.backends.base import Batch, InstancePlace, ModelInstance, ModelSource
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse

Program: TypeAlias = "tuple[int | tuple[tuple[str, Program], ...], ...]"
"""Steps, one after another: ticks to sleep, or (model, program) pairs to call at once."""


@dataclass
class Programs:
    """Models and what happened to them.

    Attributes:
      calls: What they call each other through.
      counts: Model -> its instances.
      executing: Model -> executions that go on.
      answers: Of each call: (callee, response, executions of the callee that went on, seconds).
    """

    calls: Calls = field(init=False)
    counts: Mapping[str, int]
    executing: dict[str, int] = field(default_factory=dict)
    answers: list[tuple[str, InferResponse, int, float]] = field(default_factory=list)
    _versions: dict[str, ModelVersion] = field(default_factory=dict)
    _programs: dict[str, Program] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    def find(self, name: str, version: str) -> ModelVersion:
        entries = {each: ModelEntry(each, (v,)) for each, v in self._versions.items()}
        return RoutingTable(entries).find(name, version)

    def request(self, model: str, program: Program) -> InferRequest:
        request = InferRequest(model)
        request.id = str(next(self._ids))
        self._programs[request.id] = program
        return request

    def submit(self, model: str, program: Program) -> Reply:
        """Hand a request in, as a frontend does."""
        request = self.request(model, program)
        return submit(self.find(model, ""), request, trio.current_time())

    async def run(self, place: InstancePlace, model: str, request: InferRequest) -> list[str]:
        """Do what a request says; what went wrong."""
        faults: list[str] = []
        self.executing[model] = self.executing.get(model, 0) + 1
        try:
            for step in self._programs[request.id]:
                if isinstance(step, int):
                    await trio.sleep(step * TICK_S)
                else:
                    faults += await self._call_all(place, step)
        finally:
            self.executing[model] -= 1
        return faults

    async def _call_all(
        self, place: InstancePlace, callees: Sequence[tuple[str, Program]]
    ) -> list[str]:
        faults: list[str] = []
        left = len(callees)
        done = trio.Event()
        assert place.server is not None

        def respond(response: InferResponse) -> None:
            nonlocal left
            assert response.final
            left -= 1
            name = response.model_name
            self.answers.append((name, response, self.executing.get(name, 0), trio.current_time()))
            if response.error is not None:
                faults.append(response.error.message)
            if not left:
                done.set()

        sent = [
            place.server.infer(
                self.request(name, program), respond, caller=place.number, decoupled=False
            )
            for name, program in callees
        ]
        try:
            if left:
                await done.wait()
        finally:
            for call in sent:
                call.cancel()
        return faults


class _Backend:
    name = "programs"
    stacks_inputs = True
    cpu_instance_count = 1

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def complete_config(self, source: ModelSource, config: pb.ModelConfig) -> pb.ModelConfig:
        del source
        return config

    def create_instance(
        self, source: ModelSource, config: pb.ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        del config
        return _Instance(self._programs, source.name, place)


class _Instance:
    executes_async = True

    def __init__(self, programs: Programs, model: str, place: InstancePlace) -> None:
        self._programs = programs
        self._model = model
        self._place = place

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def execute(self, batch: Batch) -> None:
        raise AssertionError(f"it is async: {batch}")

    async def execute_async(self, batch: Batch) -> None:
        (request,) = batch.requests
        faults = await self._programs.run(self._place, self._model, request)
        response = InferResponse(self._model, "1", request.id)
        response.parameters = {"faults": len(faults)}
        batch.respond(0, response)


@asynccontextmanager
async def programs(*, hang_s: float = inf, **counts: int) -> AsyncIterator[Programs]:
    """Serve models of these names with so many instances each; nothing may be left at the end."""
    served = Programs(counts)
    served.calls = Calls(served.find)
    services = ModelServices(
        device_factory=FakeDevices(), calls=served.calls, find=served.find, hang_s=hang_s
    )
    models = []
    async with trio.open_nursery() as nursery:
        for name, count in counts.items():
            group = pb.ModelInstanceGroup(
                name=f"{name}", count=count, kind=pb.ModelInstanceGroupKind.CPU
            )
            definition = ModelDefinition(
                source=ModelSource(name, 1, Path("/m"), Path("/m/1")),
                config=pb.ModelConfig(name=name, backend="programs", instance_group=[group]),
                backend=_Backend(served),
                services=services,
            )
            model = Model(definition, report=lambda: None)
            models.append(model)
            served._versions[name] = model.version
            await nursery.start(model.run)
        yield served
        for model in models:
            await model.stop(trio.current_time() + 3600)
    assert repr(served.calls) == "<Calls between 0 model versions, 0 open>"
    assert served.calls._watches == {}
