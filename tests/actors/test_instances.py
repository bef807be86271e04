"""Execution, faults, restarts and the end of one model version, on virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import infer, model_config, serving
from tests.support.fake_device import INFER_NS, INPUT_NS, OUTPUT_NS, EchoBackend, FakeDevices
from tritrio.actors._completion import Completion
from tritrio.actors._restart_policy import RestartBudget
from tritrio.actors.instance import Instance
from tritrio.actors.messages import Execute, InstanceIdle, SchedulerMessage
from tritrio.actors.routing_table import ModelState
from tritrio.backends.base import Batch, InstancePlace, ModelSource
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.statistics import ModelStatistics

BATCHING = pb.ModelDynamicBatching()


def raising(error: BaseException) -> EchoBackend:
    """A backend whose batches with request 13 fail."""
    backend = EchoBackend()

    def before(batch: Batch) -> None:
        if any(request.id == "13" for request in batch.requests):
            raise error

    backend.before = before
    return backend


def error_of(response: InferResponse) -> RequestError:
    assert response.error is not None
    return response.error


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (ValueError("no such label"), ErrorCode.INTERNAL, ["model_0", "ValueError", "no such"]),
        (SystemExit(3), ErrorCode.INTERNAL, ["model_0", "SystemExit"]),
        (RequestError(ErrorCode.UNSUPPORTED, "not here"), ErrorCode.UNSUPPORTED, ["not here"]),
    ],
)
async def test_a_fault_of_the_model_fails_its_batch_only(
    autojump_clock: MockClock, fault: BaseException, code: ErrorCode, words: list[str]
) -> None:
    async with serving(model_config(batching=BATCHING), backend=raising(fault)) as served:
        replies = [served.submit(12), served.submit(13)]
        errors = [error_of(await reply.receive()) for reply in replies]
        assert all(error.code is code for error in errors)
        assert all(word in errors[0].message for word in words)
        assert (await served.ask(14)).error is None
        statistics = served.version.statistics
        assert statistics.failures[FailureReason.BACKEND] == 2
        assert (statistics.success.count, statistics.execution_count) == (1, 2)


async def test_an_error_response_fails_one_request(autojump_clock: MockClock) -> None:
    backend = EchoBackend()

    def before(batch: Batch) -> bool:
        for index, request in enumerate(batch.requests):
            error = RequestError(ErrorCode.INVALID_ARG, "odd") if request.id == "13" else None
            batch.respond(index, InferResponse("model", "1", request.id, error=error))
        return True

    backend.before = before
    async with serving(model_config(batching=BATCHING), backend=backend) as served:
        replies = [served.submit(12), served.submit(13)]
        responses = [await reply.receive() for reply in replies]
        assert responses[0].error is None
        assert error_of(responses[1]).reason is FailureReason.BACKEND
        assert served.version.statistics.failures[FailureReason.BACKEND] == 1
        assert served.version.statistics.success.count == 1


async def test_a_response_of_an_ordinary_model_is_final_whatever_it_says(
    autojump_clock: MockClock,
) -> None:
    backend = EchoBackend()

    def before(batch: Batch) -> bool:
        for index, request in enumerate(batch.requests):
            batch.respond(index, InferResponse("model", "1", request.id, final=False))
        return True

    backend.before = before
    async with serving(model_config(), backend=backend) as served:
        assert (await served.ask(0)).final


async def test_a_request_the_model_forgot_gets_an_error(autojump_clock: MockClock) -> None:
    backend = EchoBackend()

    def before(batch: Batch) -> bool:
        batch.respond(0, InferResponse("model", "1", batch.requests[0].id))
        return True

    backend.before = before
    async with serving(model_config(batching=BATCHING), backend=backend) as served:
        replies = [served.submit(0), served.submit(1)]
        responses = [await reply.receive() for reply in replies]
        assert responses[0].error is None
        assert error_of(responses[1]).code is ErrorCode.INTERNAL
        assert "no response" in error_of(responses[1]).message


async def test_two_responses_to_one_request_fail_the_batch(autojump_clock: MockClock) -> None:
    backend = EchoBackend()

    def before(batch: Batch) -> bool:
        for _ in range(2):
            batch.respond(0, InferResponse("model", "1", batch.requests[0].id))
        return True

    backend.before = before
    async with serving(model_config(batching=BATCHING), backend=backend) as served:
        assert error_of(await served.ask(0)).code is ErrorCode.INTERNAL


async def test_statistics_are_exact_and_there_before_the_answer(
    autojump_clock: MockClock,
) -> None:
    batching = pb.ModelDynamicBatching(max_queue_delay_microseconds=250_000)
    async with serving(model_config(batching=batching), seconds=0.5) as served:
        second = infer(1, rows=3, arrived_s=trio.current_time())
        replies = [served.submit(0, rows=2), second.reply]
        served.version.submit(second)
        assert served.version.statistics.pending_count == 2
        await replies[0].receive()
        await replies[1].receive()
        statistics = served.version.statistics
        assert statistics.pending_count == 0
        assert (statistics.success.count, statistics.success.ns) == (2, 1_500_000_000)
        assert (statistics.queue.count, statistics.queue.ns) == (2, 500_000_000)
        assert (statistics.compute_input.count, statistics.compute_input.ns) == (2, 2 * INPUT_NS)
        assert (statistics.compute_infer.count, statistics.compute_infer.ns) == (2, 2 * INFER_NS)
        assert (statistics.compute_output.count, statistics.compute_output.ns) == (
            2,
            2 * OUTPUT_NS,
        )
        assert (statistics.inference_count, statistics.execution_count) == (5, 1)
        assert list(statistics.batches) == [5]
        assert statistics.batches[5].compute_infer.ns == INFER_NS
        assert statistics.last_inference_ms > 0
        assert statistics.fail.count == 0


async def test_a_request_cancelled_while_it_executes_counts_as_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with serving(model_config(), seconds=1.0) as served:
        reply = served.submit(0)
        await wait_all_tasks_blocked()
        reply.close()
        assert (await served.ask(1)).id == "1"
        assert served.version.statistics.failures[FailureReason.CANCELED] == 1
        assert served.version.statistics.execution_count == 2


async def test_a_request_cancelled_after_its_dispatch_is_skipped(
    autojump_clock: MockClock,
) -> None:
    """The instance is driven alone, so that the cancellation comes before its turn."""
    to_instance, inbox = trio.open_memory_channel[Execute](1)
    outbox, from_instance = trio.open_memory_channel[SchedulerMessage](8)
    backend, statistics = EchoBackend(), ModelStatistics()
    place = InstancePlace("model_0")
    source = ModelSource("model", 1, Path("/model"), Path("/model/1"))
    device = FakeDevices()(place)
    device.start()
    instance = Instance(
        index=3,
        name=place.name,
        inbox=inbox,
        outbox=outbox,
        device=device,
        model=backend.create_instance(source, model_config(), place),
        completion=Completion("model", "1", statistics),
    )
    infers = [infer(number) for number in range(3)]
    to_instance.send_nowait(Execute(infers, 0.0))
    infers[1].reply.close()
    async with trio.open_nursery() as nursery, outbox, from_instance, inbox:
        nursery.start_soon(instance.run)
        for _ in range(2):
            message = await from_instance.receive()
            assert isinstance(message, InstanceIdle)
            assert message.index == 3
        assert backend.batches == [["0", "2"]]
        assert statistics.failures[FailureReason.CANCELED] == 1
        assert statistics.success.count == 2
        only_cancelled = infer(4)
        only_cancelled.reply.close()
        to_instance.send_nowait(Execute([only_cancelled], 0.0))
        await from_instance.receive()
        assert statistics.execution_count == 1
        to_instance.close()


async def test_a_request_cancelled_on_a_dying_device_counts_as_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with serving(model_config(), seconds=1.0) as served:
        served.devices.deadly.add("13")
        reply = served.submit(13)
        await wait_all_tasks_blocked()
        reply.close()
        await trio.sleep(2.0)
        failures = served.version.statistics.failures
        assert failures[FailureReason.CANCELED] == 1
        assert failures[FailureReason.BACKEND] == 0


async def test_a_dead_device_answers_at_once_and_its_instance_comes_back(
    autojump_clock: MockClock,
) -> None:
    budget = RestartBudget(intensity=3, period_s=60, backoff_s=0.5)
    config = model_config(max_batch_size=1, batching=BATCHING)
    async with serving(config, seconds=0.25, budget=budget) as served:
        served.devices.deadly.add("13")
        error = error_of(await served.ask(13))
        assert served.elapsed_s() == 0.25
        assert error.code is ErrorCode.INTERNAL
        assert "model_0" in error.message
        assert served.version.state is ModelState.READY
        assert (await served.ask(1)).error is None
        assert served.elapsed_s() == 1.0
        assert [device.stopped for device in served.devices.made] == [True, False]


async def test_a_stop_does_not_wait_for_a_restart(autojump_clock: MockClock) -> None:
    budget = RestartBudget(backoff_s=8.0)
    async with serving(model_config(), budget=budget) as served:
        served.devices.deadly.add("13")
        await served.ask(13)
        waiting = served.submit(1)
        await wait_all_tasks_blocked()
    assert served.elapsed_s() == 0
    assert error_of(await waiting.receive()).code is ErrorCode.UNAVAILABLE
    assert len(served.devices.made) == 1


async def test_a_spent_budget_makes_the_version_unavailable_with_the_reason(
    autojump_clock: MockClock,
) -> None:
    budget = RestartBudget(intensity=1, period_s=60, backoff_s=0.5)
    async with serving(model_config(), budget=budget) as served:
        served.devices.deadly.add("13")
        assert error_of(await served.ask(13)).code is ErrorCode.INTERNAL
        assert (await served.ask(1)).error is None  # waits while the instance is away
        assert served.elapsed_s() == 0.5
        last, behind = served.submit(13), served.submit(3)
        assert error_of(await last.receive()).code is ErrorCode.INTERNAL
        assert error_of(await behind.receive()).code is ErrorCode.UNAVAILABLE
        await wait_all_tasks_blocked()
        assert served.version.state is ModelState.UNAVAILABLE
        assert served.version.reason == (
            "Internal: model instance 'model_0' crashed too often: FakeDeviceDiedError: model_0"
        )
        with pytest.raises(RequestError, match="stopped"):
            served.submit(4)


async def test_after_a_spent_budget_the_siblings_finish_the_queue(
    autojump_clock: MockClock,
) -> None:
    budget = RestartBudget(intensity=0, period_s=60)
    config = model_config(max_batch_size=1, instances=3, batching=BATCHING)
    async with serving(config, seconds=0.5, budget=budget) as served:
        served.devices.deadly.add("13")
        replies = [served.submit(number) for number in range(13, 17)]
        responses = [await reply.receive() for reply in replies]
        assert [response.error is None for response in responses] == [False, True, True, True]
        assert served.version.state is ModelState.UNAVAILABLE


async def test_a_stop_drains_the_queue_then_unloads(autojump_clock: MockClock) -> None:
    config = model_config(max_batch_size=1, batching=BATCHING)
    async with serving(config, seconds=1.0, drain_s=10.0) as served:
        replies = [served.submit(number) for number in range(3)]
    assert served.elapsed_s() == 3.0
    assert [(await reply.receive()).error for reply in replies] == [None] * 3
    assert served.backend.events == [("load", "model_0"), ("unload", "model_0")]
    assert served.version.state is ModelState.UNAVAILABLE
    assert served.version.reason == "unloaded"


async def test_at_the_deadline_a_stop_cuts_off_what_waits_and_what_executes(
    autojump_clock: MockClock,
) -> None:
    config = model_config(max_batch_size=1, batching=BATCHING)
    async with serving(config, seconds=100.0, drain_s=2.0) as served:
        replies = [served.submit(number) for number in range(3)]
        await wait_all_tasks_blocked()
        served.stop_soon(2.0)
        await wait_all_tasks_blocked()
        assert error_of(await served.ask(3)).code is ErrorCode.UNAVAILABLE  # at once
        assert served.elapsed_s() == 0
    assert served.elapsed_s() == 3.0  # the deadline, and patience for the hanging job
    errors = [error_of(await reply.receive()) for reply in replies]
    assert [error.code for error in errors] == [ErrorCode.UNAVAILABLE] * 3
    assert served.devices.made[0].abandoned
    assert served.version.statistics.pending_count == 0
    assert served.version.statistics.fail.count == 4


async def test_stopping_ripens_what_waits_for_company(autojump_clock: MockClock) -> None:
    batching = pb.ModelDynamicBatching(max_queue_delay_microseconds=10_000_000)
    async with serving(model_config(batching=batching)) as served:
        reply = served.submit(0)
        await wait_all_tasks_blocked()
    assert served.elapsed_s() == 0
    assert (await reply.receive()).error is None


async def test_cancelling_the_subtree_answers_everything_and_unloads(
    autojump_clock: MockClock,
) -> None:
    config = model_config(max_batch_size=1, instances=2, batching=BATCHING)
    backend = EchoBackend()
    with trio.CancelScope() as scope:
        async with serving(config, seconds=0.5, backend=backend) as served:
            replies = [served.submit(number) for number in range(4)]
            await wait_all_tasks_blocked()
            replies.append(served.submit(4))  # still in the inbox
            scope.cancel()
    for reply in replies:
        assert (await reply.receive()).error is not None
    assert sorted(backend.events[2:]) == [("unload", "model_0"), ("unload", "model_1")]
    assert served.version.statistics.pending_count == 0


async def test_a_failed_load_makes_the_version_unavailable_and_unloads(
    autojump_clock: MockClock,
) -> None:
    backend = EchoBackend()

    def at_load(place: InstancePlace) -> None:
        if place.name == "model_1":
            raise OSError("no weights")

    backend.at_load = at_load
    async with serving(model_config(instances=2), backend=backend) as served:
        assert served.version.state is ModelState.UNAVAILABLE
        assert served.version.reason == (
            "Internal: loading model instance 'model_1' failed with OSError: no weights"
        )
    assert sorted(backend.events) == [
        ("load", "model_0"),
        ("load", "model_1"),
        ("unload", "model_0"),
        ("unload", "model_1"),
    ]
    assert all(device.stopped for device in served.devices.made)


async def test_a_decoupled_model_answers_any_number_of_times(autojump_clock: MockClock) -> None:
    backend = EchoBackend()

    def before(batch: Batch) -> bool:
        for index, request in enumerate(batch.requests):
            for last in (False, False, True):
                batch.respond(index, InferResponse("model", "1", request.id, final=last))
        return True

    backend.before = before
    async with serving(model_config(decoupled=True, batching=BATCHING), backend=backend) as served:
        replies = [served.submit(number) for number in range(2)]
        for number, reply in enumerate(replies):
            responses = [await reply.receive() for _ in range(3)]
            assert [response.final for response in responses] == [False, False, True]
            assert {response.id for response in responses} == {str(number)}
        assert served.version.statistics.success.count == 2


async def test_a_decoupled_model_that_never_ends_is_ended_by_the_stop(
    autojump_clock: MockClock,
) -> None:
    backend = EchoBackend()
    backend.before = lambda _: True
    config = model_config(decoupled=True)
    async with serving(config, backend=backend, drain_s=2.0) as served:
        reply = served.submit(0)
        await wait_all_tasks_blocked()
    assert served.elapsed_s() == 2.0
    assert error_of(await reply.receive()).code is ErrorCode.UNAVAILABLE


def test_instances_share_the_cpus() -> None:
    from tritrio.actors.model_instances import instance_places

    config = model_config(instances=2)
    config.instance_group.append(
        pb.ModelInstanceGroup(name="more", count=1, kind=pb.ModelInstanceGroupKind.MODEL)
    )
    assert instance_places(config, 8.5) == [
        InstancePlace("model_0", kind="CPU", cpu_threads=2),
        InstancePlace("model_1", kind="CPU", cpu_threads=2),
        InstancePlace("more_0", kind="MODEL", cpu_threads=2),
    ]
