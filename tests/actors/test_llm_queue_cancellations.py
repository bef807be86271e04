"""Requests to a model that generates text which end before an engine takes them: why is counted."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import model_config, serving
from tritrio.protocol.llm_statistics import LLM_BACKEND, CancelReason
from tritrio.protocol.pb import inference as pb


def llm_config() -> pb.ModelConfig:
    config = model_config(max_batch_size=1, batching=None)
    config.backend = LLM_BACKEND
    return config


async def test_what_ends_a_request_in_the_queue_is_told_apart(autojump_clock: MockClock) -> None:
    async with serving(llm_config(), seconds=100.0, drain_s=4.0) as served:
        counted = served.version.statistics.llm
        assert counted is not None
        running = served.submit(0)
        await wait_all_tasks_blocked()

        left, expired = served.submit(1), served.submit(2)
        expired.expires_s = trio.current_time() + 1.0
        served.submit(3, timeout_us=2_000_000)
        stopped = [served.submit(4), served.submit(5)]
        left.close()
        await trio.sleep(1.0)
        expired.close()
        await trio.sleep(2.0)
        assert counted.cancelled == {
            CancelReason.CLIENT: 1,
            CancelReason.DEADLINE: 1,
            CancelReason.QUEUE_TIMEOUT: 1,
            CancelReason.SLOW_READER: 0,
            CancelReason.SHUTDOWN: 0,
        }
    assert counted.cancelled[CancelReason.SHUTDOWN] == len(stopped)
    assert running.has_response  # what an engine has taken it counts itself


async def test_a_queue_that_is_full_cancels_nothing(autojump_clock: MockClock) -> None:
    config = llm_config()
    config.dynamic_batching = pb.ModelDynamicBatching(
        default_queue_policy=pb.ModelQueuePolicy(max_queue_size=1)
    )
    async with serving(config, seconds=1.0) as served:
        replies = [served.submit(0)]
        await wait_all_tasks_blocked()
        replies += [served.submit(1), served.submit(2)]
        for reply in replies:
            await reply.receive()
        statistics = served.version.statistics
        assert statistics.fail.count == 1
        assert statistics.llm is not None
        assert sum(statistics.llm.cancelled.values()) == 0
