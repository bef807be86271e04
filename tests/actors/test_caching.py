"""The response cache before a model: hits, equal requests at once, clients that leave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import infer_request, model_config
from tests.support.caching import Front, access_to, answer_of, caching_front
from tests.support.fake_device import EchoBackend
from tests.support.limits import TICK_S
from tritrio.actors import caching as caching_module
from tritrio.actors._cache_access import open_cache
from tritrio.backends.base import Batch
from tritrio.memory.cache_config import LocalConfig
from tritrio.memory.response_cache import CachedOutput, Entry, LocalCache
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput

BATCH_S = 64 * TICK_S


def value_of(response: InferResponse) -> int:
    assert response.error is None, response.error
    (output,) = response.outputs
    assert output.name == "OUTPUT0"
    (value,) = set(output.array.ravel().tolist())
    return int(value)


async def test_a_repeated_request_is_answered_at_once_with_its_own_id(
    autojump_clock: MockClock,
) -> None:
    async with caching_front(seconds=BATCH_S) as front:
        first = await front.ask(7, "a")
        reply = front.submit(7, "b")
        assert reply.has_response  # without a task switch
        second = reply.receive_nowait()
        assert (value_of(first), first.id) == (7, "a")
        assert (value_of(second), second.id) == (7, "b")
        assert (second.model_name, second.model_version) == ("model", "1")
        assert second.final
        assert front.served.elapsed_s() == BATCH_S
        assert front.served.backend.batches == [["a"]]


async def test_a_hit_is_a_success_but_neither_an_inference_nor_an_execution(
    autojump_clock: MockClock,
) -> None:
    async with caching_front(seconds=BATCH_S) as front:
        await front.ask(7, "a", rows=3)
        await front.ask(7, "b", rows=3)
        assert front.counts() == {
            "success": 2,
            "queue": 2,
            "compute": 1,
            "hit": 1,
            "miss": 1,
            "inferences": 3,
            "executions": 1,
        }
        assert front.statistics.success.ns == BATCH_S * 1e9
        assert front.statistics.cache_hit.ns == front.statistics.cache_miss.ns == 0
        assert front.statistics.last_inference_ms > 0


def outputs_asked(request: InferRequest) -> None:
    request.outputs = (RequestedOutput("OUTPUT0"),)


def parameter(request: InferRequest) -> None:
    request.parameters = {"p": 1}


def shape(request: InferRequest) -> None:
    request.inputs["INPUT0"].reshape((1, 2, 2))


def other_bytes(request: InferRequest) -> None:
    array = np.full((1, 4), 7, np.int32)
    array[0, 3] = 8
    request.inputs["INPUT0"]._array = array


@pytest.mark.parametrize("change", [outputs_asked, parameter, shape, other_bytes])
async def test_a_request_that_may_have_another_answer_is_executed(
    autojump_clock: MockClock, change: Callable[[InferRequest], None]
) -> None:
    async with caching_front() as front:
        await front.ask(7, "a")
        request = infer_request(7)
        change(request)
        response = await answer_of(front.send(request))
        asked, got = request.inputs["INPUT0"], response.outputs[0]
        assert got.shape == asked.shape
        assert bytes(got.raw) == bytes(asked.raw)
        assert (front.statistics.execution_count, front.statistics.cache_hit.count) == (2, 0)


async def test_a_model_that_is_loaded_again_does_not_find_its_old_answers(
    autojump_clock: MockClock,
) -> None:
    access = access_to(LocalCache(2**20))
    for _ in range(2):
        async with caching_front(access=access) as front:
            await front.ask(7, "a")
            await front.ask(7, "b")
            assert front.statistics.execution_count == front.statistics.cache_hit.count == 1


async def test_an_answer_larger_than_the_cache_is_executed_each_time(
    autojump_clock: MockClock,
) -> None:
    cache = LocalCache(1000)
    async with caching_front(access=access_to(cache)) as front:
        for index in range(3):
            assert value_of(await front.ask(7, str(index), shape=(1000,))) == 7
        assert front.counts()["executions"] == front.counts()["miss"] == 3
        assert (len(cache), cache.used_bytes) == (0, 0)


@pytest.mark.parametrize(("size_bytes", "has_room"), [(767, False), (768, True)])
async def test_a_cache_without_room_for_the_smallest_entry_says_so_when_it_is_opened(
    size_bytes: int, has_room: bool, caplog: pytest.LogCaptureFixture
) -> None:
    access = open_cache(LocalConfig(size_bytes))
    access.insert_now(bytes(32), Entry((CachedOutput("", "UINT8", (0,), b""),), {}))
    assert (access.lookup_now(bytes(32))[0] is not None) == has_room
    warning = (
        "the response cache of 767 bytes keeps nothing, since an entry takes at least 768 bytes"
    )
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ([] if has_room else [warning])


async def test_parameters_of_the_response_are_part_of_a_hit(autojump_clock: MockClock) -> None:
    backend = EchoBackend()

    def answer(batch: Batch) -> bool:
        response = InferResponse("model", "1", batch.requests[0].id)
        response.parameters = {"score": 0.5}
        batch.respond(0, response)
        return True

    backend.before = answer
    async with caching_front(backend=backend) as front:
        for request_id in ("a", "b"):
            assert (await front.ask(7, request_id)).parameters == {"score": 0.5}
        assert backend.batches == [["a"]]


def failing(*ids: str) -> EchoBackend:
    """A model that fails on some requests."""
    backend = EchoBackend()

    def fail(batch: Batch) -> None:
        if any(request.id in ids for request in batch.requests):
            raise RequestError(ErrorCode.INTERNAL, "no luck")

    backend.before = fail
    return backend


async def test_a_failure_is_not_kept(autojump_clock: MockClock) -> None:
    async with caching_front(backend=failing("a")) as front:
        error = (await front.ask(7, "a")).error
        assert error is not None
        assert error.message == "no luck"
        assert value_of(await front.ask(7, "b")) == 7
        assert value_of(await front.ask(7, "c")) == 7
        assert front.served.backend.batches == [["a"], ["b"]]
        counts = front.counts()
        assert (counts["fail"], counts["success"], counts["hit"], counts["miss"]) == (1, 2, 1, 2)


async def test_equal_requests_at_once_are_one_execution(autojump_clock: MockClock) -> None:
    async with caching_front(seconds=BATCH_S) as front:
        replies = [front.submit(7, "0")]
        await trio.sleep(2 * TICK_S)
        replies += [front.submit(7, str(index)) for index in range(1, 5)]
        await wait_all_tasks_blocked()
        assert front.statistics.pending_count == 4
        answers = [await answer_of(reply) for reply in replies]
        assert front.served.elapsed_s() == BATCH_S
        assert [value_of(answer) for answer in answers] == [7] * 5
        assert [answer.id for answer in answers] == ["0", "1", "2", "3", "4"]
        assert front.counts() == {
            "success": 5,
            "queue": 5,
            "compute": 1,
            "hit": 4,
            "miss": 1,
            "inferences": 1,
            "executions": 1,
        }
        assert front.statistics.queue.ns == 4 * (BATCH_S - 2 * TICK_S) * 1e9
        assert front.statistics.success.ns == (5 * BATCH_S - 8 * TICK_S) * 1e9


async def test_different_requests_at_once_do_not_wait_for_each_other(
    autojump_clock: MockClock,
) -> None:
    async with caching_front(model_config(instances=2), seconds=BATCH_S) as front:
        replies = [front.submit(number, str(number)) for number in (1, 2)]
        assert [value_of(await answer_of(reply)) for reply in replies] == [1, 2]
        assert front.served.elapsed_s() == BATCH_S


async def test_the_first_may_leave_without_harm_to_those_who_wait(
    autojump_clock: MockClock,
) -> None:
    async with caching_front(seconds=BATCH_S) as front:
        first, second, third = (front.submit(7, str(index)) for index in range(3))
        await wait_all_tasks_blocked()
        first.close()
        assert front.statistics.failures[FailureReason.CANCELED] == 1
        answers = [await answer_of(reply) for reply in (second, third)]
        assert [(value_of(answer), answer.id) for answer in answers] == [(7, "1"), (7, "2")]
        assert front.served.elapsed_s() == BATCH_S
        assert front.counts() == {
            "success": 2,
            "fail": 1,
            "queue": 2,
            "compute": 1,
            "hit": 1,
            "miss": 2,
            "inferences": 1,
            "executions": 1,
        }


async def test_one_that_waits_may_leave(autojump_clock: MockClock) -> None:
    async with caching_front(seconds=BATCH_S) as front:
        first, second = front.submit(7, "a"), front.submit(7, "b")
        await wait_all_tasks_blocked()
        second.close()
        assert front.statistics.failures[FailureReason.CANCELED] == 1
        assert front.statistics.pending_count == 0
        assert value_of(await answer_of(first)) == 7
        assert front.counts()["success"] == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_may_make_the_client_of_the_next_one_leave(
    autojump_clock: MockClock, fails: bool
) -> None:
    async with caching_front(backend=failing("0" if fails else ""), seconds=BATCH_S) as front:
        first, second, third = (front.submit(7, str(index)) for index in range(3))
        first.notify = second.close
        assert value_of(await answer_of(third)) == 7
        assert front.statistics.failures[FailureReason.CANCELED] == 1
        counts = front.counts()
        assert (counts["success"], counts["fail"]) == ((1, 2) if fails else (2, 1))
        assert "pending" not in counts


@pytest.mark.parametrize("first_to_leave", [0, 1])
async def test_when_the_last_leaves_the_execution_is_cancelled(
    autojump_clock: MockClock, first_to_leave: int
) -> None:
    async with caching_front(seconds=BATCH_S) as front:
        busy = front.submit(1, "busy")
        await wait_all_tasks_blocked()
        replies = [front.submit(7, "a"), front.submit(7, "b")]
        await wait_all_tasks_blocked()
        for reply in (replies[first_to_leave], replies[1 - first_to_leave]):
            reply.close()
        await wait_all_tasks_blocked()
        assert front.statistics.failures[FailureReason.CANCELED] == 2
        assert front.statistics.pending_count == 0
        await answer_of(busy)
        assert value_of(await front.ask(7, "c")) == 7
        assert front.served.backend.batches == [["busy"], ["c"]]


async def test_if_the_first_fails_the_others_are_executed_side_by_side(
    autojump_clock: MockClock,
) -> None:
    batching = pb.ModelDynamicBatching(max_queue_delay_microseconds=0)
    config = model_config(batching=batching)
    async with caching_front(config, backend=failing("0"), seconds=BATCH_S) as front:
        replies = [front.submit(7, str(index)) for index in range(5)]
        answers = [await answer_of(reply) for reply in replies]
        assert [answer.error is None for answer in answers] == [False, True, True, True, True]
        assert front.served.backend.batches == [["0"], ["1", "2", "3", "4"]]
        assert front.served.elapsed_s() == 2 * BATCH_S
        counts = front.counts()
        assert (counts["fail"], counts["success"], counts["miss"]) == (1, 4, 5)
        assert "hit" not in counts


async def test_if_a_stop_ends_the_first_the_others_are_refused_too(
    autojump_clock: MockClock,
) -> None:
    async with caching_front(seconds=BATCH_S, drain_s=TICK_S) as front:
        replies = [front.submit(7, str(index)) for index in range(3)]
        await wait_all_tasks_blocked()
        front.served.stop_soon(TICK_S)
        for reply in replies:
            error = (await answer_of(reply)).error
            assert error is not None
            assert error.code is ErrorCode.UNAVAILABLE
        with pytest.raises(RequestError):
            front.submit(8, "late")
        assert front.counts()["fail"] == 4


async def test_a_request_of_another_priority_does_not_wait_for_one_that_may_be_behind(
    autojump_clock: MockClock,
) -> None:
    batching = pb.ModelDynamicBatching(priority_levels=2, default_priority_level=2)
    config = model_config(batching=batching, max_batch_size=1)
    async with caching_front(config, seconds=BATCH_S) as front:
        replies = [front.submit(1, "busy")]
        await wait_all_tasks_blocked()
        replies += [front.submit(2, "x"), front.submit(7, "low"), front.submit(7, "low2")]
        replies += [front.submit(7, "high", priority=1)]
        for reply in replies:
            await answer_of(reply)
        assert front.served.backend.batches == [["busy"], ["high"], ["x"], ["low"]]


async def test_answers_in_order_wait_for_what_was_dispatched_before(
    autojump_clock: MockClock,
) -> None:
    batching = pb.ModelDynamicBatching(preserve_ordering=True)
    async with caching_front(model_config(batching=batching), seconds=BATCH_S) as front:
        await front.ask(7, "a")
        slow = front.submit(1, "slow")
        await wait_all_tasks_blocked()
        hit = front.submit(7, "b")
        assert not hit.has_response
        left = front.submit(7, "c")
        left.close()
        assert value_of(await answer_of(hit)) == 7
        assert front.served.elapsed_s() == 2 * BATCH_S
        assert slow.has_response
        assert front.counts()["hit"] == 2


async def fill(front: Front, count: int) -> list[int]:
    """Ask one thing often; return how many requests each batch had."""
    replies = [front.submit(7, str(index)) for index in range(count)]
    for reply in replies:
        assert value_of(await answer_of(reply)) == 7
    return [len(ids) for ids in front.served.backend.batches]


async def test_only_so_many_wait_for_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching_module, "FOLLOWERS_MAX", 2)
    async with caching_front(seconds=BATCH_S) as front:
        assert await fill(front, 5) == [1, 1, 1]  # the first, and the two beyond those who wait
        assert (front.counts()["hit"], front.counts()["miss"]) == (2, 3)


async def test_only_so_many_different_ones_are_in_flight(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching_module, "FLIGHTS_MAX", 1)
    async with caching_front(seconds=BATCH_S) as front:
        replies = [front.submit(number, str(number)) for number in (1, 2, 2)]
        assert [value_of(await answer_of(reply)) for reply in replies] == [1, 2, 2]
        assert front.statistics.execution_count == 3
        await front.ask(2, "not kept")
        assert front.statistics.execution_count == 4
