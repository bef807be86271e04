"""The way back of one request."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import infer_request
from tritrio.actors.reply import Reply
from tritrio.protocol.requests import InferResponse


def response(number: int, *, final: bool = True) -> InferResponse:
    made = InferResponse("model", "1", str(number))
    made.final = final
    return made


async def test_response_reaches_the_task_that_waits(autojump_clock: MockClock) -> None:
    reply = Reply(infer_request(1))
    sent = response(1)
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            assert await reply.receive() is sent

        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        reply.send(sent)
    assert reply.done
    assert not reply.request.cancelled


async def test_responses_that_nobody_waits_for_yet_are_kept_in_order(
    autojump_clock: MockClock,
) -> None:
    reply = Reply(infer_request(1))
    sent = [response(n, final=n == 2) for n in range(3)]
    for each in sent:
        reply.send(each)
    assert [await reply.receive() for _ in range(3)] == sent
    assert not reply.has_response
    with pytest.raises(trio.WouldBlock):
        reply.receive_nowait()


async def test_nothing_is_sent_after_the_final_response(autojump_clock: MockClock) -> None:
    reply = Reply(infer_request(1))
    reply.send(response(1))
    reply.send(response(2))
    assert (await reply.receive()).id == "1"
    assert not reply.has_response


def test_close_cancels_and_tells_the_holder_once() -> None:
    reply = Reply(infer_request(1))
    told: list[bool] = []
    reply.on_close = lambda: told.append(reply.request.cancelled)
    reply.close()
    reply.close()
    assert told == [True]
    assert reply.done
    reply.send(response(1))
    assert not reply.has_response


def test_close_after_the_final_response_cancels_nothing() -> None:
    reply = Reply(infer_request(1))
    told: list[bool] = []
    reply.on_close = lambda: told.append(True)
    reply.send(response(1))
    reply.close()
    assert told == []
    assert not reply.request.cancelled
    assert not reply.has_response


async def test_cancelled_wait_loses_no_response(autojump_clock: MockClock) -> None:
    reply = Reply(infer_request(1))
    with trio.move_on_after(1.0) as scope:
        await reply.receive()
    assert scope.cancelled_caught
    reply.send(response(1))
    assert (await reply.receive()).id == "1"


async def test_cancelled_task_leaves_a_response_that_is_there_alone(
    autojump_clock: MockClock,
) -> None:
    reply = Reply(infer_request(1))
    reply.send(response(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await reply.receive()
    assert scope.cancelled_caught
    assert reply.receive_nowait().id == "1"


async def test_notify_is_called_for_each_response_unless_a_task_waits(
    autojump_clock: MockClock,
) -> None:
    reply = Reply(infer_request(1))
    told: list[str] = []
    reply.notify = lambda: told.append(reply.receive_nowait().id)
    reply.send(response(1, final=False))
    assert told == ["1"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reply.receive)
        await wait_all_tasks_blocked()
        reply.send(response(2))
    assert told == ["1"]


async def test_the_holder_is_told_of_each_response_that_is_received(
    autojump_clock: MockClock,
) -> None:
    reply = Reply(infer_request(1))
    told: list[None] = []
    reply.on_receive = lambda: told.append(None)
    for number in range(2):
        reply.send(response(number, final=False))
    assert len(told) == 0
    reply.receive_nowait()
    assert len(told) == 1
    await reply.receive()
    assert len(told) == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reply.receive)
        await wait_all_tasks_blocked()
        reply.send(response(2))
        assert len(told) == 3
    reply.close()
    assert len(told) == 3


async def test_a_receiver_that_fails_does_not_harm_the_sender(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ValueError("a fault of the receiver")

    reply = Reply(infer_request(1))
    reply.notify = fail
    reply.send(InferResponse("m", "1"))
    assert reply.done
    assert "a fault of the receiver" in caplog.text
    assert [getattr(record, "request_id", None) for record in caplog.records] == [reply.request.id]
