"""What is done for an execution ends once nobody waits for any of its requests."""

from __future__ import annotations

from tests.support.builders import infer
from tritrio.actors._execution_watch import ExecutionWatch
from tritrio.protocol.requests import InferResponse


def test_the_last_client_that_leaves_ends_it_and_the_scheduler_hears_of_each() -> None:
    infers = [infer(number) for number in range(3)]
    heard: list[int] = []
    cancelled: list[str] = []
    for number, each in enumerate(infers):
        each.reply.on_close = lambda number=number: heard.append(number)
    watch = ExecutionWatch[str](infers, cancelled.append)
    watch.add("call")
    watch.add("other")
    infers[1].reply.close()
    infers[0].reply.send(InferResponse("model", "1"))
    assert cancelled == []
    infers[2].reply.close()
    assert cancelled == ["call", "other"]
    assert heard == [1, 2]


def test_a_part_that_comes_too_late_is_cancelled_at_once() -> None:
    infers = [infer(0)]
    cancelled: list[str] = []
    watch = ExecutionWatch[str](infers, cancelled.append)
    infers[0].reply.close()
    watch.add("call")
    assert cancelled == ["call"]


def test_answers_end_nothing() -> None:
    infers = [infer(0)]
    cancelled: list[str] = []
    watch = ExecutionWatch[str](infers, cancelled.append)
    watch.add("call")
    infers[0].reply.send(InferResponse("model", "1"))
    watch.add("later")
    assert cancelled == []


def test_replies_are_left_as_they_were_unless_others_have_hooked_in_since() -> None:
    first, second = infer(0), infer(1)

    def own() -> None: ...

    first.reply.on_close = second.reply.on_close = own
    watch = ExecutionWatch[str]([first, second], lambda _: None)
    watch.add("a")
    watch.add("b")
    later = second.reply.on_close = lambda: None
    assert not watch.remove("a")
    assert first.reply.on_close is not own
    assert watch.remove("b")
    assert first.reply.on_close is own
    assert second.reply.on_close is later
