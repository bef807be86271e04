"""Server-sent events, the text in them, and what a chat remembers."""

from __future__ import annotations

import io
import json

import pytest

from tritrio.chat.conversation import Conversation
from tritrio.chat.events import (
    MESSAGE_CHARS_MAX,
    ChatError,
    answer_text,
    error_message,
    event_data,
    one_line,
    printable,
)


def events(stream: bytes) -> list[str]:
    return list(event_data(io.BytesIO(stream)))


def part(**delta: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta}]})


def test_data_is_that_of_complete_events() -> None:
    stream = b"data: a\n\ndata:b\r\n\r\n: keeps alive\n\n\nevent: x\ndata: c\n\ndata: cut"
    assert events(stream) == ["a", "b", "c"]


def test_lines_of_one_event_are_joined() -> None:
    assert events("data: grün\ndata:  zwei\n\n".encode()) == ["grün\n zwei"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert events(b"data: \xff!\n\n") == ["\ufffd!"]


def test_an_answer_is_the_text_of_its_parts_up_to_the_end() -> None:
    data = [
        part(role="assistant", content=""),
        part(content="Hello"),
        part(content=" there"),
        part(),
        part(content=None),
        '{"choices": [], "usage": {"total_tokens": 7}}',
        "[DONE]",
        part(content="never"),
    ]
    coming = iter(data)
    assert list(answer_text(coming)) == ["Hello", " there"]
    assert list(coming) == []  # a server whose last bytes nobody takes thinks that its client left


@pytest.mark.parametrize(("reason", "cut"), [("length", True), ("stop", False)])
def test_an_answer_says_whether_it_was_cut(reason: str, cut: bool) -> None:
    last = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    answer = answer_text([part(content="a"), last, '{"choices": []}', "[DONE]"])
    assert next(answer) == "a"
    with pytest.raises(StopIteration) as ended:
        next(answer)
    assert ended.value.value is cut


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the server went away before the answer was complete"),
        (['{"error": {"message": "out of\\nmemory"}}'], "out of memory"),
        (['{"error": {}}'], "the server failed without saying why"),
        (["nonsense"], "expected an answer in JSON, got nonsense"),
        (['{"choices": [{}]}'], 'expected a part of an answer, got {"choices": [{}]}'),
        (["[1]"], "expected a part of an answer, got [1]"),
    ],
)
def test_what_came_before_a_failure_is_there(data: list[str], message: str) -> None:
    answer = answer_text([part(content="begun"), *data])
    assert next(answer) == "begun"
    with pytest.raises(ChatError) as failed:
        next(answer)
    assert str(failed.value) == message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"error": {"message": "no"}}, "no"),
        ({"error": "no"}, "no"),
        ({"error": {"message": 3}}, ""),
        ({"detail": "no"}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_messages_of_errors(document: object, message: str) -> None:
    assert error_message(document) == message


def test_a_text_cannot_control_the_terminal() -> None:
    assert printable("a\x1b[2J\tb\r\n\x9bc\x7f") == "a[2J\tb\nc"
    assert (
        one_line("a\n\n b" + "c" * MESSAGE_CHARS_MAX) == "a b" + "c" * (MESSAGE_CHARS_MAX - 3) + "…"
    )


def said(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in conversation.messages]


def test_a_chat_remembers_turns_as_far_as_they_came() -> None:
    conversation = Conversation("Be brief.")
    conversation.ask("one?")
    conversation.answered("One.")
    conversation.ask("nobody answers")
    conversation.answered("")
    conversation.ask("two?")
    conversation.answered("Tw")  # stopped
    conversation.ask("go on")
    assert said(conversation) == [
        ("system", "Be brief."),
        ("user", "one?"),
        ("assistant", "One."),
        ("user", "two?"),
        ("assistant", "Tw"),
        ("user", "go on"),
    ]
    conversation.reset()
    assert said(conversation) == [("system", "Be brief.")]
    assert Conversation().messages == []
