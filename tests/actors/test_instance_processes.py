"""What instances outside of the server's process need of the actors, on virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.support.builders import model_config, serving
from tests.support.fake_device import EchoBackend, FakeDeviceDiedError
from tests.support.remembering import (
    BOTH,
    RememberingInstance,
    Strategy,
    answered,
    error_of,
    history,
    sequence_config,
)
from tests.support.sequences import sequences
from tritrio.actors._restart_policy import RestartBudget
from tritrio.backends.base import Batch, DeviceFaultError, InstancePlace, ModelInstance, ModelSource
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.pb.inference import ModelConfig


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_requests_that_a_broken_instance_never_began_wait_for_its_restart(
    autojump_clock: MockClock, decoupled: bool, begun: bool
) -> None:
    backend = EchoBackend()
    faults = [DeviceFaultError("it was killed", begun=begun)]

    def before(batch: Batch) -> None:
        if faults:
            raise faults.pop()

    backend.before = before
    config, budget = model_config(decoupled=decoupled), RestartBudget(backoff_s=0.5)
    async with serving(config, backend=backend, budget=budget) as served:
        response = await served.ask(0)
        if begun:
            assert response.error is not None
            assert response.error.message == (
                "model instance 'model_0' did not survive the request: it was killed"
            )
            assert served.elapsed_s() == 0
        else:
            assert response.error is None
            assert served.elapsed_s() == 0.5
        assert (await served.ask(1)).error is None
        assert served.version.statistics.pending_count == 0


class Killable:
    """A model that says when it was killed."""

    def __init__(self, inner: ModelInstance, killed: list[float]) -> None:
        self._killed = killed
        self.load, self.execute, self.unload = inner.load, inner.execute, inner.unload

    def kill(self) -> None:
        self._killed.append(trio.current_time())


async def test_an_instance_that_hangs_is_killed_when_it_is_given_up(
    autojump_clock: MockClock,
) -> None:
    killed: list[float] = []

    class Backend(EchoBackend):
        def create_instance(
            self, source: ModelSource, config: ModelConfig, place: InstancePlace
        ) -> ModelInstance:
            return Killable(super().create_instance(source, config, place), killed)

    async with serving(model_config(), seconds=1e6, hang_s=2.0, backend=Backend()) as served:
        assert (await served.ask(0)).error is not None
        await trio.lowlevel.checkpoint()
        assert [time_s - served.start_s for time_s in killed] == [2.0]


@BOTH
async def test_a_request_is_answered_that_comes_with_ends_which_the_instance_does_not_survive(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, strategy: Strategy
) -> None:
    class KilledError(FakeDeviceDiedError, DeviceFaultError):
        """The fault that these tests restart after."""

    def broken(*_: object) -> None:
        raise KilledError("it was killed")

    config = sequence_config(strategy(), count=1, max_batch_size=1)
    async with sequences(config, seconds=0.25) as served:
        first, second = served.submit(1, 1, ">."), served.submit(2, 2, ">")
        monkeypatch.setattr(RememberingInstance, "sequences_ended", broken)
        assert answered(await first.receive()) == history(1)
        assert error_of(await second.receive()).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 0.25
        monkeypatch.undo()
        assert answered(await served.ask(3, 3, ">")) == history(3)
