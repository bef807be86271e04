"""The replies of several requests, as one."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tritrio.actors._openai_replies import Replies
from tritrio.actors.reply import Reply
from tritrio.protocol.requests import InferRequest, InferResponse


def three() -> tuple[Replies, list[Reply]]:
    replies = Replies()
    each = [Reply(InferRequest("m")) for _ in range(3)]
    for reply in each:
        replies.add(reply)
    return replies, each


async def test_whoever_has_something_to_say_is_heard(autojump_clock: MockClock) -> None:
    replies, each = three()
    for _ in range(2):
        each[2].send(InferResponse("m", "1", final=False))
        each[1].send(InferResponse("m", "1", final=False))
    taken = [await replies.next() for _ in range(4)]
    assert [index for index, _ in filter(None, taken)] == [1, 2, 1, 2]

    async def say(index: int) -> None:
        await trio.sleep(index + 1)
        each[index].send(InferResponse("m", "1"))

    async with trio.open_nursery() as nursery:
        for index in range(3):
            nursery.start_soon(say, index)
        ends = [await replies.next() for _ in range(4)]
    assert [end and end[0] for end in ends] == [0, 1, 2, None]
    assert not any(reply.request.cancelled for reply in each)


async def test_closing_cancels_what_has_not_ended(autojump_clock: MockClock) -> None:
    replies, each = three()
    each[1].send(InferResponse("m", "1"))
    replies.close()
    assert [reply.request.cancelled for reply in each] == [True, False, True]
    assert await replies.next() is None
