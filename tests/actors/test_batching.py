"""Batches of one model version on virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import infer, model_config, serving
from tests.support.limits import TICK_S
from tritrio.actors.reply import Reply
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferResponse


def delayed(ticks: int = 256, **fields: object) -> pb.ModelDynamicBatching:
    return pb.ModelDynamicBatching(
        max_queue_delay_microseconds=ticks * 10**6 // 1024,
        **fields,  # type: ignore[arg-type]
    )


def queue_policy(**fields: object) -> pb.ModelDynamicBatching:
    return pb.ModelDynamicBatching(
        default_queue_policy=pb.ModelQueuePolicy(**fields)  # type: ignore[arg-type]
    )


async def collect(replies: list[Reply]) -> list[InferResponse]:
    return [await reply.receive() for reply in replies]


def error_of(response: InferResponse) -> RequestError:
    assert response.error is not None
    return response.error


async def test_a_lone_request_leaves_exactly_at_its_deadline(autojump_clock: MockClock) -> None:
    async with serving(model_config(batching=delayed(256))) as served:
        response = await served.ask(1)
        assert served.elapsed_s() == 0.25
        assert response.id == "1"
        assert response.outputs[0].array.tolist() == [[1, 1, 1, 1]]


async def test_a_full_batch_leaves_at_once(autojump_clock: MockClock) -> None:
    async with serving(model_config(max_batch_size=4, batching=delayed())) as served:
        await collect([served.submit(number) for number in range(4)])
        assert served.elapsed_s() == 0
        assert served.backend.batches == [["0", "1", "2", "3"]]


async def test_requests_of_one_turn_share_a_batch_without_any_delay(
    autojump_clock: MockClock,
) -> None:
    async with serving(model_config(batching=pb.ModelDynamicBatching())) as served:
        await collect([served.submit(number) for number in range(6)])
        assert served.backend.batches == [["0", "1", "2", "3", "4", "5"]]


async def test_a_preferred_size_leaves_before_the_delay(autojump_clock: MockClock) -> None:
    config = model_config(batching=delayed(256, preferred_batch_size=[2]))
    async with serving(config) as served:
        await collect([served.submit(number) for number in range(3)])
        assert served.backend.batches == [["0", "1"], ["2"]]
        assert served.left_s() == [0, 0.25]


async def test_unequal_shapes_are_answered_apart_and_equal_ones_together(
    autojump_clock: MockClock,
) -> None:
    async with serving(model_config(batching=pb.ModelDynamicBatching())) as served:
        replies = [served.submit(number, shape=(5 + number % 2,)) for number in range(3)]
        responses = await collect(replies)
        assert [response.outputs[0].shape for response in responses] == [(1, 5), (1, 6), (1, 5)]
        assert served.backend.batches == [["0", "2"], ["1"]]


async def test_a_cancelled_request_never_reaches_the_model(autojump_clock: MockClock) -> None:
    async with serving(model_config(batching=delayed())) as served:
        replies = [served.submit(number) for number in range(3)]
        await wait_all_tasks_blocked()
        replies[1].close()
        await collect([replies[0], replies[2]])
        assert served.backend.batches == [["0", "2"]]
        statistics = served.version.statistics
        assert statistics.failures[FailureReason.CANCELED] == 1
        assert (statistics.success.count, statistics.fail.count) == (2, 1)
        assert statistics.pending_count == 0


async def test_a_request_cancelled_in_the_turn_of_its_arrival_is_dropped(
    autojump_clock: MockClock,
) -> None:
    async with serving(model_config()) as served:
        served.submit(0).close()
        await served.ask(1)
        assert served.backend.batches == [["1"]]
        assert served.version.statistics.failures[FailureReason.CANCELED] == 1
        assert served.version.statistics.pending_count == 0


async def test_cancelling_frees_the_queue_slot_at_once(autojump_clock: MockClock) -> None:
    config = model_config(max_batch_size=1, batching=queue_policy(max_queue_size=1))
    async with serving(config, seconds=1.0) as served:
        running = served.submit(0)
        await wait_all_tasks_blocked()
        waiting = served.submit(1)
        await wait_all_tasks_blocked()
        waiting.close()
        instead = served.submit(2)  # in the same turn
        await collect([running, instead])
        assert served.backend.batches == [["0"], ["2"]]


async def test_a_request_cancelled_before_a_full_queue_saw_it_is_no_refusal(
    autojump_clock: MockClock,
) -> None:
    config = model_config(max_batch_size=1, batching=queue_policy(max_queue_size=1))
    async with serving(config, seconds=1.0) as served:
        replies = []
        for number in range(2):
            replies.append(served.submit(number))
            await wait_all_tasks_blocked()
        served.submit(2).close()
        await collect(replies)
        failures = served.version.statistics.failures
        assert failures[FailureReason.CANCELED] == 1
        assert failures[FailureReason.REJECTED] == 0


async def test_the_queue_limit_is_exact(autojump_clock: MockClock) -> None:
    """One running, three waiting, the rest refused at once."""
    config = model_config(max_batch_size=1, batching=queue_policy(max_queue_size=3))
    async with serving(config, seconds=1.0) as served:
        replies = []
        for number in range(6):
            replies.append(served.submit(number))
            await trio.sleep(50 * TICK_S)
        refused = await collect(replies[4:])
        assert served.elapsed_s() == 300 * TICK_S
        assert [error_of(response).code for response in refused] == [ErrorCode.UNAVAILABLE] * 2
        statistics = served.version.statistics
        assert statistics.failures[FailureReason.REJECTED] == 2
        assert statistics.pending_count == 3
        await collect(replies[:4])
        assert served.backend.batches == [["0"], ["1"], ["2"], ["3"]]
        assert statistics.pending_count == 0


async def test_a_timeout_fires_on_time_while_the_instance_is_busy(
    autojump_clock: MockClock,
) -> None:
    config = model_config(batching=queue_policy(default_timeout_microseconds=1_000_000))
    async with serving(config, seconds=10.0) as served:
        running = served.submit(0)
        await wait_all_tasks_blocked()
        response = await served.ask(1)
        assert served.elapsed_s() == 1.0
        assert error_of(response).code is ErrorCode.UNAVAILABLE
        assert error_of(response).reason is FailureReason.REJECTED
        assert served.version.statistics.fail.ns == 1_000_000_000
        await running.receive()
        assert served.elapsed_s() == 10.0
        assert served.backend.batches == [["0"]]


async def test_a_timeout_of_a_request_holds_without_dynamic_batching(
    autojump_clock: MockClock,
) -> None:
    async with serving(model_config(batching=None), seconds=10.0) as served:
        running = served.submit(0)
        await wait_all_tasks_blocked()
        assert error_of(await served.ask(1, timeout_us=1_000_000)).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 1.0
        await running.receive()


async def test_preserved_order_holds_with_a_slow_and_a_fast_instance(
    autojump_clock: MockClock,
) -> None:
    config = model_config(
        max_batch_size=1,
        instances=2,
        batching=pb.ModelDynamicBatching(preserve_ordering=True),
    )
    answered: list[tuple[float, str]] = []
    async with serving(
        config, seconds=lambda _, batch: 1.0 if batch.requests[0].id == "0" else 0.25
    ) as served:

        async def ask(reply: Reply) -> None:
            response = await reply.receive()
            answered.append((served.elapsed_s(), response.id))

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(ask, served.submit(number))
        assert served.left_s() == [0.25, 0.5, 0.75, 1.0]
    assert sorted(answered) == [(1.0, "0"), (1.0, "1"), (1.0, "2"), (1.0, "3")]


@pytest.mark.parametrize("preserved", [False, True])
async def test_without_preserved_order_the_fast_instance_answers_first(
    autojump_clock: MockClock, preserved: bool
) -> None:
    config = model_config(
        max_batch_size=1,
        instances=2,
        batching=pb.ModelDynamicBatching(preserve_ordering=preserved),
    )
    async with serving(
        config, seconds=lambda _, batch: 1.0 if batch.requests[0].id == "0" else 0.25
    ) as served:
        slow, fast = served.submit(0), served.submit(1)
        await fast.receive()
        assert served.elapsed_s() == (1.0 if preserved else 0.25)
        await slow.receive()


async def test_more_requests_than_the_inbox_holds_are_refused_and_counted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritrio.actors.model.INBOX_CAPACITY", 2)
    monkeypatch.setattr("tritrio.actors.batcher.INBOX_CAPACITY", 2)
    async with serving(model_config(batching=delayed())) as served:
        queued = served.submit(0)
        await wait_all_tasks_blocked()
        # The batcher waits, so the next message passes the buffer.
        replies = [served.submit(number) for number in range(1, 4)]
        with pytest.raises(RequestError, match="too many") as refused:
            served.submit(4)
        assert refused.value.reason is FailureReason.REJECTED
        queued.close()  # its Cancel does not fit either
        await wait_all_tasks_blocked()
        statistics = served.version.statistics
        assert statistics.failures[FailureReason.REJECTED] == 1
        assert statistics.failures[FailureReason.CANCELED] == 1
        assert statistics.pending_count == 3
        await collect(replies)
        assert served.backend.batches == [["1", "2", "3"]]


async def test_a_stopped_version_refuses_requests(autojump_clock: MockClock) -> None:
    async with serving(model_config()) as served:
        pass
    with pytest.raises(RequestError, match="stopped"):
        served.version.submit(infer(0, arrived_s=trio.current_time()))
    assert served.version.statistics.failures[FailureReason.REJECTED] == 1
    assert served.version.statistics.pending_count == 0
