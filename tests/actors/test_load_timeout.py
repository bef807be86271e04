"""A model whose load hangs is given up after a while, on virtual time."""

from __future__ import annotations

from math import inf
from pathlib import Path

import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.support.builders import model_config, serving
from tests.support.fake_device import EchoBackend, FakeDevices
from tests.support.remembering import error_of
from tritrio.actors._model_services import ModelServices
from tritrio.actors._restart_policy import RestartBudget
from tritrio.actors.model import Model, ModelDefinition
from tritrio.actors.routing_table import ModelState
from tritrio.backends.base import DeviceFaultError, InstancePlace, ModelInstance, ModelSource
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.pb.inference import ModelConfig


class Killable:
    """A model that says when it was killed."""

    def __init__(self, inner: ModelInstance, killed: list[float]) -> None:
        self._killed = killed
        self.load, self.execute, self.unload = inner.load, inner.execute, inner.unload

    def kill(self) -> None:
        self._killed.append(trio.current_time())


class KillableBackend(EchoBackend):
    """Makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.killed: list[float] = []

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        return Killable(super().create_instance(source, config, place), self.killed)


async def loaded(seconds: float, load_max_s: float, backend: EchoBackend) -> tuple[Model, float]:
    """A model that takes so long to load, after its load, and when that was."""
    definition = ModelDefinition(
        source=ModelSource("model", 1, Path("/model"), Path("/model/1")),
        config=model_config(instances=2),
        backend=backend,
        services=ModelServices(device_factory=FakeDevices(other_s=seconds), load_max_s=load_max_s),
    )
    start_s = trio.current_time()
    model = Model(definition, report=lambda: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        state, duration_s = model.version.state, trio.current_time() - start_s
        await model.stop(trio.current_time() + 60)
    assert state is not ModelState.LOADING
    return model, duration_s


async def test_a_load_that_takes_too_long_is_the_reason_and_its_instances_are_killed(
    autojump_clock: MockClock,
) -> None:
    backend = KillableBackend()
    start_s = trio.current_time()
    model, duration_s = await loaded(1e6, 2.5, backend)
    assert duration_s == 2.5
    assert model.version.state is ModelState.UNAVAILABLE
    assert model.version.reason.replace("model_1", "model_0") == (
        "Unavailable: model instance 'model_0' did not load within 2.5 s"
    )
    assert [time_s - start_s for time_s in backend.killed] == [2.5, 2.5]
    assert backend.events == []


async def test_a_load_just_within_its_time_succeeds(autojump_clock: MockClock) -> None:
    for load_max_s in (2.5, inf):
        backend = KillableBackend()
        model, duration_s = await loaded(2.5, load_max_s, backend)
        assert duration_s == 2.5
        assert model.version.loaded
        assert backend.killed == []
        assert [event for event, _ in backend.events] == ["load", "load", "unload", "unload"]


async def test_an_instance_that_is_started_again_has_no_more_time_to_load(
    autojump_clock: MockClock,
) -> None:
    backend = EchoBackend()
    faults = [DeviceFaultError("it was killed")]

    def before(_: object) -> None:
        if faults:
            raise faults.pop()

    backend.before = before
    budget = RestartBudget(intensity=2, period_s=1e6, backoff_s=0.5, backoff_max_s=0.5)
    async with serving(model_config(), backend=backend, budget=budget, load_max_s=2.5) as served:
        served.devices.loads_take(1e6)
        assert error_of(await served.ask(0)).code is ErrorCode.INTERNAL
        assert error_of(await served.ask(1)).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 0.5 + 2.5 + 0.5 + 2.5
        assert served.version.state is ModelState.UNAVAILABLE
