"""An instance that dies or hangs is taken out, its work goes to the siblings, and it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import Served, infer, model_config, serving
from tests.support.fake_device import EchoBackend, FakeDevices
from tritrio.actors import instance_slot
from tritrio.actors._completion import Completion
from tritrio.actors._device_link import DeviceHungError
from tritrio.actors._restart_policy import RestartBudget
from tritrio.actors.instance import Instance
from tritrio.actors.messages import Execute, InstanceIdle, Retry, SchedulerMessage
from tritrio.actors.routing_table import ModelState
from tritrio.backends.base import (
    Batch,
    DeviceFaultError,
    InstancePlace,
    ModelSource,
    SequenceEnd,
    SequenceEndReason,
)
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.statistics import ModelStatistics

BATCHING = pb.ModelDynamicBatching()
SOURCE = ModelSource("model", 1, Path("/model"), Path("/model/1"))


def error_of(response: InferResponse) -> RequestError:
    assert response.error is not None
    return response.error


async def test_the_work_of_a_dying_instance_goes_to_its_sibling(autojump_clock: MockClock) -> None:
    config = model_config(max_batch_size=1, instances=2)
    async with serving(config, seconds=0.5) as served:
        fault_once(served)
        first, second = served.submit(0), served.submit(1)
        responses = [await first.receive(), await second.receive()]
        assert [response.error for response in responses] == [None, None]
        assert served.elapsed_s() == 1.0
        assert served.left_s() == [0.5, 0.5, 1.0]
        statistics = served.version.statistics
        assert (statistics.success.count, statistics.fail.count) == (2, 0)
        assert statistics.pending_count == 0


def fault_once(served: Served) -> None:
    """Let the device that executes request 0 first be broken."""
    broken: list[Batch] = []

    def before(batch: Batch) -> None:
        if not broken and batch.requests[0].id == "0":
            broken.append(batch)
            raise DeviceFaultError("the device fell off the bus")

    served.backend.before = before


async def test_a_device_fault_replaces_the_instance_a_fault_of_the_model_does_not(
    autojump_clock: MockClock,
) -> None:
    async with serving(model_config(instances=2), budget=RestartBudget(backoff_s=0.5)) as served:
        fault_once(served)
        assert (await served.ask(0)).error is None
        await trio.sleep(0.5)
        await wait_all_tasks_blocked()
        assert len(served.devices.made) == 3

    backend = EchoBackend()

    def fail(_: Batch) -> None:
        raise ValueError("a fault of the model")

    backend.before = fail
    async with serving(model_config(instances=2), backend=backend) as served:
        assert error_of(await served.ask(0)).code is ErrorCode.INTERNAL
        await trio.sleep(60)
        assert len(served.devices.made) == 2


async def test_without_a_sibling_the_requests_fail_at_once(autojump_clock: MockClock) -> None:
    async with serving(model_config(), budget=RestartBudget(backoff_s=8.0)) as served:
        fault_once(served)
        error = error_of(await served.ask(0))
        assert served.elapsed_s() == 0
        assert error.code is ErrorCode.INTERNAL
        assert "fell off the bus" in error.message


async def test_a_request_that_kills_is_executed_twice_at_most_and_alone_the_second_time(
    autojump_clock: MockClock,
) -> None:
    config = model_config(max_batch_size=4, instances=3, batching=BATCHING)
    async with serving(config, seconds=0.5) as served:
        served.devices.deadly.add("13")
        replies = [served.submit(number) for number in (13, 1, 2)]
        errors = [(await reply.receive()).error for reply in replies]
        assert [error is None for error in errors] == [False, True, True]
        assert served.elapsed_s() <= 1.5
        died = sum(device.stopped for device in served.devices.made)
        assert died == 2
        assert sorted(served.backend.batches) == [["1"], ["2"]]
        assert served.version.state is ModelState.READY


async def test_a_retried_request_that_is_cancelled_is_not_executed(
    autojump_clock: MockClock,
) -> None:
    config = model_config(max_batch_size=1, instances=2)
    async with serving(config, seconds=0.5) as served:
        fault_once(served)
        first, second = served.submit(0), served.submit(1)
        await trio.sleep(0.25)
        first.close()
        second_response = await second.receive()
        assert second_response.error is None
        await trio.sleep(2)
        assert len(served.backend.batches) == 2  # the one that did not survive, and the other


async def test_an_instance_that_hangs_is_taken_out_on_time_and_replaced(
    autojump_clock: MockClock,
) -> None:
    hung: list[InstancePlace] = []

    def seconds(place: InstancePlace, batch: Batch) -> float:
        if batch.requests[0].id == "0" and not hung:
            hung.append(place)
            return 1000.0
        return 0.25

    config = model_config(max_batch_size=1, instances=2)
    budget = RestartBudget(backoff_s=0.5)
    async with serving(config, seconds=seconds, hang_s=2.0, budget=budget) as served:
        hanging, other = served.submit(0), served.submit(1)
        assert (await other.receive()).error is None
        assert served.elapsed_s() == 0.25
        assert (await hanging.receive()).error is None
        assert served.elapsed_s() == 2.25  # found after 2, executed by the sibling
        await trio.sleep(0.25)
        await wait_all_tasks_blocked()
        assert len(served.devices.made) == 3
        assert served.version.state is ModelState.READY


async def test_an_execution_just_within_the_limit_is_left_alone(autojump_clock: MockClock) -> None:
    async with serving(model_config(), seconds=2.0, hang_s=2.0) as served:
        assert (await served.ask(0)).error is None
        assert served.elapsed_s() == 2.0
        assert len(served.devices.made) == 1


async def test_an_instance_that_hangs_again_and_again_is_given_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_slot, "HANGING_MAX", 2)
    budget = RestartBudget(intensity=100, backoff_s=0.5, backoff_max_s=0.5)
    async with serving(model_config(), seconds=1e6, hang_s=60.0, budget=budget) as served:
        for _ in range(2):
            assert error_of(await served.ask(0)).code is ErrorCode.INTERNAL
        assert error_of(await served.ask(0)).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 121.0
        assert served.version.state is ModelState.UNAVAILABLE
        assert "2 of its threads hang" in served.version.reason
        assert len(served.devices.made) == 2


async def test_a_replacement_that_hangs_while_it_loads_is_given_up_in_time(
    autojump_clock: MockClock,
) -> None:
    budget = RestartBudget(intensity=2, period_s=1e6, backoff_s=0.5, backoff_max_s=0.5)
    async with serving(model_config(), hang_s=2.0, budget=budget) as served:
        fault_once(served)
        served.devices.loads_take(1e6)
        assert error_of(await served.ask(0)).code is ErrorCode.INTERNAL
        assert error_of(await served.ask(1)).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 0.5 + 2.0 + 0.5 + 2.0
        assert served.version.state is ModelState.UNAVAILABLE
        assert "did not finish within 2 s" in served.version.reason


async def test_requests_behind_the_notice_of_an_end_that_hangs_are_answered(
    autojump_clock: MockClock,
) -> None:
    """A model that is told of the end of a sequence first, and hangs in that."""
    outbox, from_instance = trio.open_memory_channel[SchedulerMessage](8)
    to_instance, inbox = trio.open_memory_channel[Execute](1)
    devices = FakeDevices(other_s=1e6)
    device = devices(InstancePlace("model_0"))
    device.start()
    completion = Completion("model", "1", ModelStatistics())
    instance = Instance(
        index=0,
        name="model_0",
        inbox=inbox,
        outbox=outbox,
        device=device,
        model=EchoBackend().create_instance(SOURCE, pb.ModelConfig(), InstancePlace("model_0")),
        completion=completion,
        hang_s=2.0,
    )
    waiting = infer(1)
    ends = [SequenceEnd(7, SequenceEndReason.IDLE)]
    to_instance.send_nowait(Execute([waiting], 0.0, ends=ends))
    with pytest.raises(DeviceHungError):
        await instance.run()
    assert trio.current_time() == 2.0
    assert isinstance(from_instance.receive_nowait(), InstanceIdle)
    retry = from_instance.receive_nowait()
    assert isinstance(retry, Retry)
    assert retry.infers == [waiting]
