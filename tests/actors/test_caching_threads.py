"""The response cache where it takes time: one in a network, and large requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_caching import BATCH_S, failing, value_of
from tests.support.builders import infer_request, model_config
from tests.support.caching import (
    NetworkCache,
    VirtualThreads,
    access_to,
    answer_of,
    caching_front,
)
from tests.support.limits import TICK_S
from tritrio.actors import caching as caching_module
from tritrio.actors._cache_access import BUSY_LOG_S, INSERT_MAX_S, LOOKUP_MAX_S, REST_S
from tritrio.actors.caching import HASHED_ON_LOOP_BYTES_MAX
from tritrio.memory.response_cache import CacheBusyError, LocalCache, request_key
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALL_S = 16 * TICK_S


async def test_what_one_server_inserted_another_finds(autojump_clock: MockClock) -> None:
    cache = NetworkCache()
    calls = VirtualThreads(CALL_S)
    async with caching_front(access=access_to(cache, calls=calls), seconds=BATCH_S) as front:
        assert value_of(await front.ask(7, "a")) == 7
        assert front.served.elapsed_s() == CALL_S + BATCH_S  # the insertion is not waited for
        await trio.sleep(2 * CALL_S)
        assert front.statistics.cache_miss.ns == 2 * CALL_S * 1e9
    async with caching_front(access=access_to(cache, calls=calls), seconds=BATCH_S) as front:
        response = await front.ask(7, "b")
        assert (value_of(response), response.id) == (7, "b")
        assert front.served.elapsed_s() == CALL_S
        assert front.counts() == {"success": 1, "queue": 1, "hit": 1}
        assert front.statistics.cache_hit.ns == front.statistics.success.ns == CALL_S * 1e9
        assert front.statistics.queue.ns == 0


async def test_models_in_two_namespaces_share_nothing(autojump_clock: MockClock) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    seen = []
    for namespace in ("/a", "/b", "/a"):
        async with caching_front(access=access, namespace=namespace) as front:
            assert value_of(await front.ask(7, "x")) == 7
            await trio.sleep(2 * CALL_S)  # for the insertion
            seen.append((front.counts().get("miss"), front.counts().get("hit")))
    assert seen == [(1, None), (1, None), (None, 1)]


async def test_equal_requests_are_looked_up_once(autojump_clock: MockClock) -> None:
    cache = NetworkCache()
    access = access_to(cache, calls=VirtualThreads(CALL_S))
    async with caching_front(access=access, seconds=BATCH_S) as front:
        for expected in ({"hit": 2, "miss": 1}, {"hit": 5, "miss": 1}):
            replies = [front.submit(7, str(index)) for index in range(3)]
            assert [(await answer_of(reply)).id for reply in replies] == ["0", "1", "2"]
            counts = front.counts()
            assert {name: counts[name] for name in expected} == expected
            await trio.sleep(BATCH_S)
        assert cache.lookups == 2
        assert front.served.backend.batches == [["0"]]


async def test_while_an_answer_is_inserted_equal_requests_get_it(
    autojump_clock: MockClock,
) -> None:
    cache = NetworkCache()
    access = access_to(cache, calls=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        await front.ask(7, "a")
        assert cache.entries == {}
        reply = front.submit(7, "b")
        assert reply.has_response
        assert value_of(reply.receive_nowait()) == 7
        assert cache.lookups == 1


async def test_a_cache_that_hangs_holds_no_request_longer_than_its_bound(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    calls = VirtualThreads(1000.0)
    cache = NetworkCache()
    access = access_to(cache, calls=calls)
    with caplog.at_level(logging.INFO, "tritrio"):
        async with caching_front(access=access) as front:
            replies = [front.submit(number, "a") for number in range(50)]
            for number, reply in enumerate(replies):
                assert value_of(await answer_of(reply)) == number
            assert front.served.elapsed_s() == LOOKUP_MAX_S
            assert value_of(await front.ask(7, "at rest")) == 7
            assert front.served.elapsed_s() == LOOKUP_MAX_S
            await trio.sleep(REST_S)
            calls.seconds = 0.0
            assert value_of(await front.ask(7, "well again")) == 7
            assert cache.lookups == 1
            counts = front.counts()
            assert (counts["miss"], counts["success"]) == (52, 52)
    assert [record.getMessage() for record in caplog.records if "cache" in record.message] == [
        "the response cache is not used for 1 s: a look-up took more than 0.25 s",
        "the response cache is used again",
    ]


async def test_faults_of_the_cache_are_misses_and_are_logged_once_a_rest(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    cache = NetworkCache()
    cache.fault = True
    async with caching_front(access=access_to(cache)) as front:
        for index in range(20):
            assert value_of(await front.ask(7, str(index))) == 7
            await trio.sleep(REST_S / 4)
        counts = front.counts()
        assert (counts["miss"], counts["executions"]) == (20, 20)
        assert cache.lookups == 5
    lines = [record.getMessage() for record in caplog.records if "cache" in record.message]
    assert lines == ["the response cache is not used for 1 s: redis at host:1: no route"] * 5


class PooledCache(NetworkCache):
    """A cache whose connections are all in use for some calls."""

    def __init__(self) -> None:
        super().__init__()
        self.in_use = True

    def _check(self) -> None:
        if self.in_use:
            raise CacheBusyError("all in use")


async def test_a_cache_without_a_free_connection_is_a_miss_but_not_left_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PooledCache()
    with caplog.at_level(logging.INFO, "tritrio"):
        async with caching_front(access=access_to(cache)) as front:
            for index in range(3):
                assert value_of(await front.ask(7, str(index))) == 7
                await front.landed()
            assert (front.counts()["miss"], cache.lookups, cache.entries) == (3, 3, {})
            cache.in_use = False
            for index in range(2):
                assert value_of(await front.ask(7, str(index))) == 7
                await front.landed()
            assert (front.counts()["hit"], cache.lookups) == (1, 5)
            await trio.sleep(BUSY_LOG_S)
            cache.in_use = True
            await front.ask(8, "later")
            await front.landed()
    lines = [(line.levelname, line.args) for line in caplog.records if "cache" in line.message]
    assert lines == [("INFO", (1,)), ("INFO", (6,))]


async def test_connections_in_use_after_a_fault_may_be_those_that_hang(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    cache, calls = PooledCache(), VirtualThreads(1000.0)
    async with caching_front(access=access_to(cache, calls=calls)) as front:
        await front.ask(1, "hangs")
        await trio.sleep(REST_S)
        calls.seconds = 0.0
        for number in range(2, 5):
            assert value_of(await front.ask(number, "at rest")) == number
        assert cache.lookups == 1
    reasons = [line.args[1] for line in caplog.records if isinstance(line.args, tuple)]
    assert reasons == ["a look-up took more than 0.25 s", "all in use"]


class OneThread(VirtualThreads):
    """Runs one job at a time; the others wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._lock = trio.Lock()

    async def __call__(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        async with self._lock:
            return await super().__call__(job, *args)


async def test_look_ups_that_wait_for_others_for_too_long_are_no_fault(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    cache = NetworkCache()
    calls = OneThread(LOOKUP_MAX_S * 3 / 4)
    with caplog.at_level(logging.INFO, "tritrio"):
        async with caching_front(access=access_to(cache, calls=calls)) as front:
            replies = [front.submit(number, "a") for number in range(4)]
            for number, reply in enumerate(replies):
                assert value_of(await answer_of(reply)) == number
            assert front.served.elapsed_s() == LOOKUP_MAX_S
            await front.landed()
            assert cache.lookups == 1
            await front.ask(9, "looked up at once")
            assert cache.lookups == 2
    lines = [line.levelname for line in caplog.records if "cache" in line.message]
    assert lines == ["INFO"]


async def test_after_a_look_up_in_vain_one_with_a_timeout_is_executed_by_itself(
    autojump_clock: MockClock,
) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    async with caching_front(access=access, seconds=BATCH_S) as front:
        replies = [front.submit(7, "patient"), front.submit(7, "hasty", timeout_us=15625)]
        replies += [front.submit(7, "follows")]
        assert value_of(await answer_of(replies[0])) == 7
        assert value_of(await answer_of(replies[2])) == 7
        error = (await answer_of(replies[1])).error
        assert error is not None
        assert error.message == "the request timed out in the queue after 15.6 ms"
        assert front.served.backend.batches == [["patient"]]


async def test_an_insertion_that_hangs_is_given_up(autojump_clock: MockClock) -> None:
    calls = VirtualThreads()
    access = access_to(NetworkCache(), calls=calls)
    async with caching_front(access=access, seconds=BATCH_S) as front:
        reply = front.submit(7, "a")
        await wait_all_tasks_blocked()
        calls.seconds = 1000.0
        assert value_of(await answer_of(reply)) == 7
        await trio.sleep(INSERT_MAX_S - TICK_S)
        assert front.caching._flights
        await trio.sleep(2 * TICK_S)
        assert not front.caching._flights


async def test_who_leaves_during_a_look_up_is_gone_at_once(autojump_clock: MockClock) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        first, second = front.submit(7, "a"), front.submit(7, "b")
        await wait_all_tasks_blocked()
        assert front.statistics.pending_count == 2
        first.close()
        assert front.statistics.failures[FailureReason.CANCELED] == 1
        assert front.statistics.pending_count == 1
        second.close()
        assert front.statistics.pending_count == 0
        await front.caching.settle()
        assert front.served.elapsed_s() == 0.0
        assert front.counts() == {"fail": 2}
        assert front.served.backend.batches == []


async def test_the_heir_of_a_look_up_is_executed(autojump_clock: MockClock) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        first, second = front.submit(7, "a"), front.submit(7, "b")
        await wait_all_tasks_blocked()
        first.close()
        assert (await answer_of(second)).id == "b"
        assert front.served.backend.batches == [["b"]]
        counts = front.counts()
        assert (counts["fail"], counts["success"], counts["miss"]) == (1, 1, 1)


async def test_after_a_look_up_in_vain_those_who_may_not_wait_are_executed(
    autojump_clock: MockClock,
) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    batching = pb.ModelDynamicBatching(priority_levels=2, default_priority_level=2)
    config = model_config(batching=batching, max_batch_size=1)
    async with caching_front(config, access=access) as front:
        replies = [front.submit(7, "low"), front.submit(7, "high", priority=1)]
        replies += [front.submit(7, "low2")]
        for reply in replies:
            assert value_of(await answer_of(reply)) == 7
        assert front.served.backend.batches == [["high"], ["low"]]


async def test_a_look_up_that_a_stop_overtakes_is_refused(autojump_clock: MockClock) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        replies = [front.submit(7, str(index)) for index in range(2)]
        await wait_all_tasks_blocked()
        await front.served.model.stop(trio.current_time() + 1)
        for reply in replies:
            error = (await answer_of(reply)).error
            assert error is not None
            assert error.code is ErrorCode.UNAVAILABLE
        assert front.counts()["fail"] == 2


async def test_a_stop_that_settles_first_answers_what_is_looked_up(
    autojump_clock: MockClock,
) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        reply = front.submit(7, "a")
        await front.caching.settle()
        assert front.served.elapsed_s() == CALL_S
        await front.served.model.stop(trio.current_time() + 1)
        assert value_of(await answer_of(reply)) == 7


async def test_a_front_that_ends_lets_its_look_ups_go_to_the_scheduler(
    autojump_clock: MockClock,
) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        reply = front.submit(7, "a")
        await wait_all_tasks_blocked()
        front.caching.close()
        assert value_of(await answer_of(reply)) == 7
        assert front.served.elapsed_s() == 0.0
        assert value_of(await front.ask(7, "b")) == 7
        assert front.counts()["executions"] == 2


async def test_after_a_failure_nothing_is_inserted(autojump_clock: MockClock) -> None:
    cache = NetworkCache()
    async with caching_front(access=access_to(cache), backend=failing("a")) as front:
        assert (await front.ask(7, "a")).error is not None
        await wait_all_tasks_blocked()
        assert cache.entries == {}


LARGE = (HASHED_ON_LOOP_BYTES_MAX // 4 + 1,)


@pytest.mark.parametrize("cache", [LocalCache(2**24), NetworkCache()])
async def test_a_large_request_is_hashed_on_a_thread(
    autojump_clock: MockClock, cache: LocalCache | NetworkCache
) -> None:
    hashing = VirtualThreads(CALL_S)
    access = access_to(cache, hashing=hashing)
    async with caching_front(access=access, seconds=BATCH_S) as front:
        replies = [front.submit(7, index, shape=LARGE) for index in ("a", "b")]
        assert [value_of(await answer_of(reply)) for reply in replies] == [7, 7]
        assert front.served.elapsed_s() == CALL_S + BATCH_S
        assert value_of(await front.ask(7, "c", shape=LARGE)) == 7
        assert front.served.elapsed_s() == 2 * CALL_S + BATCH_S
        assert front.statistics.execution_count == 1
        assert (front.counts()["hit"], front.counts()["miss"]) == (2, 1)
        request = infer_request(7, shape=LARGE)
        assert access.load_name() != "1"  # which is that of this front
        load = "" if cache.blocking else "1"
        assert cache.lookup(request_key("model", "1", load, request)) is not None


async def test_the_largest_that_is_hashed_at_once_needs_no_thread(
    autojump_clock: MockClock,
) -> None:
    access = access_to(LocalCache(2**24), hashing=VirtualThreads(1000.0))
    async with caching_front(access=access) as front:
        await front.ask(7, "a", shape=(HASHED_ON_LOOP_BYTES_MAX // 4,))
        assert front.served.elapsed_s() == 0.0


async def test_who_leaves_while_it_is_hashed_is_gone_at_once(autojump_clock: MockClock) -> None:
    access = access_to(LocalCache(2**24), hashing=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        reply = front.submit(7, "a", shape=LARGE)
        await wait_all_tasks_blocked()
        reply.close()
        assert front.counts() == {"fail": 1}
        await front.caching.settle()
        assert front.counts() == {"fail": 1}


async def test_more_large_requests_than_can_be_hashed_skip_the_cache(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching_module, "HASHINGS_MAX", 1)
    access = access_to(LocalCache(2**24), hashing=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        replies = [front.submit(7, index, shape=LARGE) for index in ("a", "b")]
        assert value_of(await answer_of(replies[1])) == 7
        assert front.served.elapsed_s() == 0.0
        assert value_of(await answer_of(replies[0])) == 7
        assert front.counts()["miss"] == 2


async def test_a_large_request_that_a_stop_overtakes_is_refused(
    autojump_clock: MockClock,
) -> None:
    access = access_to(LocalCache(2**24), hashing=VirtualThreads(CALL_S))
    async with caching_front(access=access) as front:
        reply = front.submit(7, "a", shape=LARGE)
        await wait_all_tasks_blocked()
        await front.served.model.stop(trio.current_time() + 1)
        assert isinstance((await answer_of(reply)).error, RequestError)
