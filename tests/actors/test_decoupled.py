"""Decoupled models whose clients leave, or read slower than the model writes.

What blocks a model's thread runs on the real clock: a virtual one sees no threads.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import infer, model_config, serving
from tests.support.fake_device import EchoBackend
from tritrio.actors import _response_gate
from tritrio.actors._completion import Completion
from tritrio.actors._completion_order import CompletionOrder
from tritrio.actors._device_link import DeviceLink
from tritrio.actors._response_gate import (
    RESPONSES_HELD_BACK_MAX,
    RESPONSES_WAITING_MAX,
    ResponseGate,
)
from tritrio.actors.instance import Instance
from tritrio.actors.messages import Execute, Infer, InstanceIdle, SchedulerMessage
from tritrio.backends.base import Batch, InstancePlace
from tritrio.protocol.errors import ErrorCode, FailureReason
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.statistics import ModelStatistics

PATIENCE_S = 30.0
BLOCKED_S = 0.1
"""How long a thread must stay where it is to count as blocked."""


def part(number: int, *, final: bool = False) -> InferResponse:
    return InferResponse("model", "1", str(number), final=final)


async def test_a_request_whose_client_left_ends_at_once_whatever_its_model_does(
    autojump_clock: MockClock,
) -> None:
    backend, kept = EchoBackend(), list[Batch]()

    def before(batch: Batch) -> bool:
        kept.append(batch)
        return True

    backend.before = before
    async with serving(model_config(decoupled=True), backend=backend) as served:
        reply = served.submit(0)
        await wait_all_tasks_blocked()
        reply.close()
        statistics = served.version.statistics
        assert statistics.failures[FailureReason.CANCELED] == 1
        for final in (False, True):
            kept[0].respond(0, part(0, final=final))
        await wait_all_tasks_blocked()
        assert (statistics.success.count, statistics.fail.count) == (0, 1)
        served.submit(1).close()  # while it waits
        await wait_all_tasks_blocked()
        assert statistics.failures[FailureReason.CANCELED] == 2
    assert served.elapsed_s() == 0  # the stop waits for nobody


async def test_a_stop_that_waits_for_a_decoupled_request_ends_when_its_client_leaves(
    autojump_clock: MockClock,
) -> None:
    backend = EchoBackend()
    backend.before = lambda _: True
    async with serving(model_config(decoupled=True), backend=backend) as served:
        replies = [served.submit(number) for number in range(2)]
        await wait_all_tasks_blocked()
        served.stop_soon(60.0)
        for reply in replies:
            await trio.sleep(2.0)
            reply.close()
    assert served.elapsed_s() == 4.0


async def test_the_event_loop_is_never_blocked_by_responses_that_wait(
    autojump_clock: MockClock,
) -> None:
    backend = EchoBackend()
    count = RESPONSES_WAITING_MAX * 3

    def before(batch: Batch) -> bool:
        for number in range(count):
            batch.respond(0, part(number, final=number == count - 1))
        return True

    backend.before = before
    async with serving(model_config(decoupled=True), backend=backend) as served:
        reply = served.submit(0)
        await wait_all_tasks_blocked()
        assert [(await reply.receive()).id for _ in range(count)] == list(map(str, range(count)))


def test_an_open_gate_lets_every_thread_through() -> None:
    gate = ResponseGate()
    assert all(gate.enter() for _ in range(RESPONSES_WAITING_MAX))
    gate.leave()
    assert gate.enter()
    gate.open()
    assert not any(gate.enter() for _ in range(3))


@dataclass
class Talker:
    """A decoupled model that does what it is told, and notes how far it came."""

    talk: Callable[[Batch], None]
    ended: threading.Event = field(default_factory=threading.Event)

    def load(self) -> None: ...

    def unload(self) -> None: ...

    def execute(self, batch: Batch) -> None:
        self.talk(batch)
        self.ended.set()


@dataclass
class Threaded:
    """An instance on a real thread."""

    talker: Talker
    device: DeviceLink
    completion: Completion
    outbox: trio.MemorySendChannel[Execute]
    inbox: trio.MemoryReceiveChannel[SchedulerMessage]
    nursery: trio.Nursery

    def execute(self, *infers: Infer) -> None:
        self.completion.dispatched(list(infers))
        self.outbox.send_nowait(Execute(list(infers), 0.0))

    async def idle(self) -> None:
        with trio.fail_after(PATIENCE_S):
            assert isinstance(await self.inbox.receive(), InstanceIdle)


@asynccontextmanager
async def on_a_thread(
    talk: Callable[[Batch], None],
    order: CompletionOrder | None = None,
    *,
    hang_s: float = inf,
) -> AsyncIterator[Threaded]:
    to_instance, inbox = trio.open_memory_channel[Execute](1)
    outbox, from_instance = trio.open_memory_channel[SchedulerMessage](8)
    completion = Completion("model", "1", ModelStatistics(), order)
    place, talker = InstancePlace("model_0"), Talker(talk)
    device = DeviceLink(place)
    device.start()
    instance = Instance(
        index=0,
        name=place.name,
        inbox=inbox,
        outbox=outbox,
        device=device,
        model=talker,
        completion=completion,
        decoupled=True,
        hang_s=hang_s,
    )
    async with trio.open_nursery() as nursery, inbox, outbox, from_instance:
        nursery.start_soon(instance.run)
        threaded = Threaded(talker, device, completion, to_instance, from_instance, nursery)
        await threaded.idle()
        yield threaded
        to_instance.close()
    device.stop()


FLOOD = 3 * RESPONSES_WAITING_MAX


def flood(batch: Batch) -> None:
    """Send many more responses than may wait."""
    for number in range(FLOOD):
        batch.respond(0, part(number, final=number == FLOOD - 1))


async def test_a_model_goes_on_as_its_client_reads() -> None:
    async with on_a_thread(flood) as threaded:
        slow = infer(0)
        threaded.execute(slow)
        await wait_all_tasks_blocked()
        assert not await trio.to_thread.run_sync(threaded.talker.ended.wait, BLOCKED_S)
        with trio.fail_after(PATIENCE_S):
            responses = [await slow.reply.receive() for _ in range(FLOOD)]
        await threaded.idle()
        assert [int(response.id) for response in responses] == list(range(FLOOD))
        assert threaded.completion.statistics.success.count == 1


async def test_a_model_whose_client_does_not_read_is_blocked_until_the_client_leaves() -> None:
    async with on_a_thread(flood) as threaded:
        deaf = infer(0)
        threaded.execute(deaf)
        await wait_all_tasks_blocked()
        assert not await trio.to_thread.run_sync(threaded.talker.ended.wait, BLOCKED_S)
        deaf.reply.close()
        await threaded.idle()
        assert threaded.talker.ended.is_set()
        assert threaded.completion.statistics.failures[FailureReason.CANCELED] == 1


async def test_a_client_that_takes_nothing_for_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_response_gate, "STALLED_MAX_S", BLOCKED_S)
    async with on_a_thread(flood) as threaded:
        deaf = infer(0)
        threaded.execute(deaf)
        await threaded.idle()
        with trio.fail_after(PATIENCE_S):
            responses = [await deaf.reply.receive() for _ in range(RESPONSES_WAITING_MAX + 1)]
        error = responses[-1].error
        assert error is not None
        assert error.code is ErrorCode.UNAVAILABLE
        assert "no response for 0.1 s" in error.message
        assert deaf.request.cancelled
        assert threaded.completion.statistics.fail.count == 1


async def test_waiting_for_a_slow_client_is_not_hanging() -> None:
    async with on_a_thread(flood, hang_s=BLOCKED_S) as threaded:
        slow = infer(0)
        threaded.execute(slow)
        await trio.to_thread.run_sync(threaded.talker.ended.wait, 3 * BLOCKED_S)
        with trio.fail_after(PATIENCE_S):
            responses = [await slow.reply.receive() for _ in range(FLOOD)]
        await threaded.idle()
        assert [response.error for response in responses] == [None] * FLOOD
        assert not threaded.device.abandoned


async def test_a_request_that_is_held_back_fails_when_it_makes_too_many_responses() -> None:
    def talk(batch: Batch) -> None:
        for number in range(RESPONSES_HELD_BACK_MAX + 1):
            batch.respond(1, part(number))
        for index in range(2):
            batch.respond(index, part(-1, final=True))

    async with on_a_thread(talk, CompletionOrder()) as threaded:
        infers = [infer(number) for number in range(2)]
        threaded.execute(*infers)
        await threaded.idle()
        assert (await infers[0].reply.receive()).error is None
        with trio.fail_after(PATIENCE_S):
            responses = [
                await infers[1].reply.receive() for _ in range(RESPONSES_HELD_BACK_MAX + 1)
            ]
        error = responses[-1].error
        assert error is not None
        assert "preserve_ordering" in error.message


async def test_a_cancelled_instance_lets_its_blocked_model_end() -> None:
    async with on_a_thread(flood) as threaded:
        deaf = infer(0)
        threaded.execute(deaf)
        await wait_all_tasks_blocked()
        assert not await trio.to_thread.run_sync(threaded.talker.ended.wait, BLOCKED_S)
        threaded.nursery.cancel_scope.cancel()
    assert threaded.talker.ended.is_set()
    assert not threaded.device.abandoned
    assert deaf.reply.done


async def test_a_response_that_is_held_back_in_order_blocks_no_model() -> None:
    def talk(batch: Batch) -> None:
        for number in range(RESPONSES_WAITING_MAX + 1):
            batch.respond(1, part(number))
        for index in range(2):
            batch.respond(index, part(-1, final=True))

    async with on_a_thread(talk, CompletionOrder()) as threaded:
        infers = [infer(number) for number in range(2)]
        threaded.execute(*infers)
        await threaded.idle()
        assert (await infers[0].reply.receive()).final
        for number in range(RESPONSES_WAITING_MAX + 1):
            assert (await infers[1].reply.receive()).id == str(number)
