"""What becomes of sequences when their model stops, on virtual time."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.limits import TICK_S
from tests.support.remembering import (
    BOTH,
    Strategy,
    answered,
    direct,
    error_of,
    history,
    numbered,
    oldest,
    sequence_config,
)
from tests.support.sequences import Sequences, sequences
from tritrio.actors.messages import Infer, Reschedule, Retry
from tritrio.actors.reply import Reply
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.requests import InferRequest


def iterative(number: int) -> InferRequest:
    return numbered(number, 0)


@BOTH
async def test_while_a_model_stops_sequences_under_way_continue_and_none_starts(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), max_batch_size=2)
    async with sequences(config, seconds=0.25) as served:
        replies = [served.submit(number, number, ">") for number in (1, 2, 3)]
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.stop, 60.0)
            await wait_all_tasks_blocked()
            refused = error_of(await served.ask(4, 4, ">"))
            assert refused.code is ErrorCode.UNAVAILABLE
            assert "may continue" in refused.message
            assert served.elapsed_s() == 0
            ends = [served.submit(11, 1, "."), served.submit(12, 2, ".")]
            for number, reply in enumerate(ends, 1):
                assert answered(await reply.receive()) == history(number, 10 + number)
            for number, reply in enumerate(replies, 1):
                assert answered(await reply.receive()) == history(number)
        # The third came from the backlog; that it is not over does not hold up the stop.
        assert served.elapsed_s() == 0.75
    assert (0, 3, "unload") in served.model.ends


@BOTH
async def test_a_stop_gives_the_slot_of_an_idle_sequence_to_one_that_waits(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), max_batch_size=1, idle_ticks=102400)
    async with sequences(config, seconds=0.25) as served:
        assert answered(await served.ask(1, 1, ">")) == history(1)
        waiting = served.submit(2, 2, ">")
        await wait_all_tasks_blocked()
        await served.stop(60.0)
        assert answered(await waiting.receive()) == history(2)
        assert served.elapsed_s() == 0.5
    assert served.model.ends == [(0, 1, "unload"), (0, 2, "unload")]


@pytest.mark.parametrize(
    "strategy",
    [partial(direct, 2048, 1.0), partial(oldest, delay_ticks=2048)],
    ids=["direct", "oldest"],
)
async def test_a_stop_does_not_wait_for_company_or_for_idle_sequences(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), idle_ticks=102400, implicit=False)
    async with sequences(config) as served:
        reply = served.submit(1, 1, ">")
        await trio.sleep(TICK_S)
        await served.stop(60.0)
        assert answered(await reply.receive()) == history(1)
        assert served.elapsed_s() == TICK_S
    assert served.model.ends == [(0, 1, "unload")]


@BOTH
async def test_a_finished_sequence_and_a_stop_at_once_leave_nothing(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy())) as served:
        assert answered(await served.ask(1, 7, ">")) == history(1)
        last = served.submit(2, 7, ".")
        await served.stop(60.0)
        assert answered(await last.receive()) == history(1, 2)
    assert served.model.ends == [(0, 7, "end")]


@BOTH
async def test_at_the_deadline_of_a_stop_everything_left_is_answered(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), max_batch_size=1)
    async with sequences(config, seconds=1.0) as served:
        replies = [
            served.submit(1, 1, ">"),
            served.submit(2, 1),
            served.submit(3, 1, ">"),
            served.submit(4, 4, ">"),
        ]
        await wait_all_tasks_blocked()
        await served.stop(0.5)
        for reply in replies:
            assert error_of(await reply.receive()).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() >= 0.5


@BOTH
async def test_a_stop_without_any_instance_left_refuses_what_waits(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy(), max_batch_size=1)) as served:
        served.restarts_after_s = None
        served.devices.deadly.add("1")
        replies = [served.submit(1, 1, ">"), served.submit(2, 2, ">")]
        await wait_all_tasks_blocked()
        await served.stop(60.0)
        assert [error_of(await reply.receive()).code for reply in replies] == [
            ErrorCode.UNAVAILABLE
        ] * 2
        assert served.elapsed_s() == 0


async def test_a_model_that_does_not_listen_is_told_nothing(autojump_clock: MockClock) -> None:
    async with sequences(sequence_config(direct())) as served:
        served.batcher._hears_ends = lambda _: False
        await served.ask(1, 1, ">.")
        await served.ask(2, 2, ">")
        assert served.policy.take_ends(0) == []
    assert served.model.ends == []


async def test_a_stop_waits_for_a_busy_instance_to_tell_it_of_the_rest(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(direct()), ends_s=0.25) as served:
        await served.ask(1, 1, ">")
        await served.ask(2, 2, ">.")
        await served.stop(60.0)
        assert served.elapsed_s() == 0.5
    assert served.model.ends == [(0, 2, "end"), (0, 1, "unload")]


async def test_what_a_batcher_holds_when_it_is_closed_is_answered(
    autojump_clock: MockClock,
) -> None:
    served = Sequences(sequence_config(direct(), iterative=True))
    infers = [Infer(request, Reply(request), 0.0) for request in map(iterative, range(1, 5))]
    served.statistics.pending_count = 2
    lost = RequestError(ErrorCode.UNAVAILABLE, "lost")
    served.batcher._handled = infers[0]
    served.to_batcher.send_nowait(infers[1])
    served.to_batcher.send_nowait(Reschedule(infers[2]))
    served.to_batcher.send_nowait(Retry(0, [infers[3]], lost))
    served.batcher.close()
    served.batcher.close()
    for infer in infers:
        assert error_of(await infer.reply.receive()).code is ErrorCode.UNAVAILABLE
    assert served.statistics.pending_count == 0
    assert served.statistics.fail.count == 4
