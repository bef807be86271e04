"""Equal requests before a model whose queue has timeouts: each keeps its own."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_caching import BATCH_S, value_of
from tests.support.builders import model_config
from tests.support.caching import answer_of, caching_front
from tests.support.limits import TICK_S
from tritrio.actors._flight import counts_own_timeouts, has_queue_timeouts
from tritrio.protocol.pb import inference as pb

TICKS_16_US = 15625


def timeouts(us: int, *, level: int = 0) -> pb.ModelDynamicBatching:
    policy = pb.ModelQueuePolicy(default_timeout_microseconds=us, allow_timeout_override=True)
    if level:
        return pb.ModelDynamicBatching(priority_levels=2, priority_queue_policy={level: policy})
    return pb.ModelDynamicBatching(default_queue_policy=policy)


def test_a_queue_has_timeouts_where_a_policy_has_one() -> None:
    assert not has_queue_timeouts(pb.ModelConfig())
    assert not has_queue_timeouts(pb.ModelConfig(dynamic_batching=pb.ModelDynamicBatching()))
    assert not has_queue_timeouts(pb.ModelConfig(dynamic_batching=timeouts(0)))
    assert has_queue_timeouts(pb.ModelConfig(dynamic_batching=timeouts(1)))
    assert has_queue_timeouts(pb.ModelConfig(dynamic_batching=timeouts(1, level=2)))


async def test_where_queues_have_timeouts_each_request_keeps_its_own(
    autojump_clock: MockClock,
) -> None:
    config = model_config(batching=timeouts(10**9), max_batch_size=1)
    shares = not has_queue_timeouts(config)
    async with caching_front(config, shares_executions=shares, seconds=BATCH_S) as front:
        busy = front.submit(1, "busy")
        await wait_all_tasks_blocked()
        patient = front.submit(7, "patient")
        hasty = front.submit(7, "hasty", timeout_us=TICKS_16_US)
        error = (await answer_of(hasty)).error
        assert front.served.elapsed_s() == 16 * TICK_S
        assert error is not None
        assert "timed out in the queue" in error.message
        assert [value_of(await answer_of(reply)) for reply in (busy, patient)] == [1, 7]
        assert value_of(await front.ask(7, "later", timeout_us=TICKS_16_US)) == 7
        assert front.served.elapsed_s() == 2 * BATCH_S


def test_a_timeout_of_a_request_counts_where_nothing_or_a_policy_says_so() -> None:
    assert counts_own_timeouts(pb.ModelConfig())
    assert not counts_own_timeouts(pb.ModelConfig(dynamic_batching=pb.ModelDynamicBatching()))
    assert not counts_own_timeouts(pb.ModelConfig(dynamic_batching=timeouts(0)))
    assert counts_own_timeouts(pb.ModelConfig(dynamic_batching=timeouts(1)))
    assert counts_own_timeouts(pb.ModelConfig(dynamic_batching=timeouts(1, level=2)))
    fixed = pb.ModelQueuePolicy(default_timeout_microseconds=1)
    batching = pb.ModelDynamicBatching(default_queue_policy=fixed)
    assert not counts_own_timeouts(pb.ModelConfig(dynamic_batching=batching))


async def test_a_request_with_a_timeout_does_not_wait_for_an_equal_one_beyond_it(
    autojump_clock: MockClock,
) -> None:
    async with caching_front(model_config(), seconds=BATCH_S) as front:
        patient = front.submit(7, "patient")
        await wait_all_tasks_blocked()
        hasty = front.submit(7, "hasty", timeout_us=TICKS_16_US)
        follower = front.submit(7, "follower")
        error = (await answer_of(hasty)).error
        assert front.served.elapsed_s() == 16 * TICK_S
        assert error is not None
        assert error.message == "the request timed out in the queue after 15.6 ms"
        assert [value_of(await answer_of(reply)) for reply in (patient, follower)] == [7, 7]
        assert front.served.elapsed_s() == BATCH_S
        assert value_of(await front.ask(7, "later", timeout_us=TICKS_16_US)) == 7
        assert front.served.backend.batches == [["patient"]]
        counts = front.counts()
        assert (counts["hit"], counts["miss"], counts["fail"]) == (2, 2, 1)


@pytest.mark.parametrize(("counts", "executions"), [(False, 1), (True, 2)])
async def test_where_timeouts_of_requests_do_not_count_they_share_an_execution(
    autojump_clock: MockClock, counts: bool, executions: int
) -> None:
    config = model_config(batching=pb.ModelDynamicBatching(), max_batch_size=1)
    async with caching_front(config, counts_own_timeouts=counts, seconds=BATCH_S) as front:
        replies = [front.submit(7, str(number), timeout_us=TICKS_16_US) for number in range(2)]
        assert [value_of(await answer_of(reply)) for reply in replies] == [7, 7]
        assert front.statistics.execution_count == executions
