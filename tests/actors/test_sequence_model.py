"""A whole model version of sequences on virtual time, from its load to its unload."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.fake_device import FakeDevices, Seconds
from tests.support.remembering import (
    BOTH,
    Remembering,
    RememberingBackend,
    Strategy,
    answered,
    error_of,
    history,
    numbered,
    oldest,
    sequence_config,
)
from tritrio.actors._model_services import ModelServices
from tritrio.actors.messages import Infer
from tritrio.actors.model import Model, ModelDefinition
from tritrio.actors.rate_limiter import RateLimiter
from tritrio.actors.reply import Reply
from tritrio.backends.base import ModelSource
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.pb import inference as pb


class Served:
    """A model version that is ready."""

    def __init__(self, model: Model, remembering: Remembering, devices: FakeDevices) -> None:
        self.model = model
        self.remembering = remembering
        self.devices = devices
        self.start_s = trio.current_time()

    def submit(self, number: int, sequence_id: int | str, flags: str = "") -> Reply:
        request = numbered(number, sequence_id, flags)
        infer = Infer(request, Reply(request), trio.current_time())
        self.model.version.submit(infer)
        return infer.reply

    def elapsed_s(self) -> float:
        return trio.current_time() - self.start_s


@asynccontextmanager
async def serving(
    config: pb.ModelConfig, seconds: Seconds | float = 0.0, **services: Any
) -> AsyncIterator[Served]:
    remembering = Remembering(implicit=True, state_shape=(1, 1))
    devices = FakeDevices(seconds)
    definition = ModelDefinition(
        source=ModelSource("model", 1, Path("/model"), Path("/model/1")),
        config=config,
        backend=RememberingBackend(remembering),
        services=ModelServices(device_factory=devices, **services),
    )
    model = Model(definition, report=lambda: None)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        await wait_all_tasks_blocked()
        yield Served(model, remembering, devices)
        await model.stop(trio.current_time() + 60.0)
    assert model.version.statistics.pending_count == 0
    assert all(device.stopped for device in devices.made)


@BOTH
async def test_a_sequence_with_implicit_state_is_finished_and_the_model_unloaded_at_once(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with serving(sequence_config(strategy()), seconds=0.25) as served:
        first, last = served.submit(1, 7, ">"), served.submit(2, 7, ".")
        other = served.submit(3, 8, ">")
    assert answered(await first.receive()) == history(1)
    assert answered(await last.receive()) == history(1, 2)
    assert answered(await other.receive()) == history(3)
    assert served.elapsed_s() == 0.5
    assert sorted(served.remembering.ends) == [(0, 7, "end"), (0, 8, "unload")]


@BOTH
async def test_a_cancelled_reply_ends_the_sequence(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with serving(sequence_config(strategy()), seconds=0.25) as served:
        replies = [served.submit(1, 7, ">"), served.submit(2, 7), served.submit(3, 7)]
        await wait_all_tasks_blocked()
        replies[1].close()
        assert error_of(await replies[2].receive()).code is ErrorCode.CANCELLED
        assert answered(await replies[0].receive()) == history(1)
    assert served.remembering.ends == [(0, 7, "cancelled")]


@BOTH
async def test_a_restarted_instance_begins_with_new_sequences(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with serving(sequence_config(strategy())) as served:
        served.devices.deadly.add("2")
        replies = [served.submit(1, 7, ">"), served.submit(2, 7), served.submit(3, 7)]
        assert answered(await replies[0].receive()) == history(1)
        for reply in replies[1:]:
            assert error_of(await reply.receive()).code is ErrorCode.UNAVAILABLE
        assert answered(await served.submit(4, 7, ">").receive()) == history(4)
        assert len(served.devices.made) == 2
    assert served.remembering.ends == [(0, 7, "error"), (0, 7, "unload")]


@BOTH
async def test_instances_that_share_a_resource_take_turns(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2)
    resource = pb.ModelRateLimiterResource(name="R", count=1, global_=True)
    config.instance_group[0].rate_limiter = pb.ModelRateLimiter(resources=[resource])
    limiter = RateLimiter({("R", None): 1})
    async with serving(config, seconds=0.25, limiter=limiter) as served:
        replies = [served.submit(number, number, ">") for number in (1, 2)]
        replies += [served.submit(10 + number, number, ".") for number in (1, 2)]
        answers = [answered(await reply.receive()) for reply in replies]
        assert answers == [history(1), history(2), history(1, 11), history(2, 12)]
        times_s = [end_s - served.start_s for end_s, _, _ in served.remembering.executed]
        assert times_s == [0.25, 0.5, 0.75, 1.0]
    assert sorted(served.remembering.ends) == [(0, 1, "end"), (1, 2, "end")]


async def test_preserved_order_is_that_of_the_whole_version(autojump_clock: MockClock) -> None:
    config = sequence_config(oldest(1, preserve_ordering=True), count=2)
    async with serving(
        config, seconds=lambda place, _: 1.0 if place.name.endswith("0") else 0.25
    ) as served:
        slow, fast = served.submit(1, 1, ">."), served.submit(2, 2, ">.")
        await fast.receive()
        assert served.elapsed_s() == 1.0
        await slow.receive()
