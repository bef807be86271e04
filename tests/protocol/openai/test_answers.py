"""Answers are what the official client's types say, whole and as events."""

from __future__ import annotations

from itertools import count
from typing import Any

import orjson
import pytest

from tritrio.protocol.errors import PromptTooLongError, RequestError
from tritrio.protocol.llm_tensors import LlmChoice, LlmToken, TokenLogprobs
from tritrio.protocol.openai.answers import Answer, ChatAnswer, CompletionAnswer, Header
from tritrio.protocol.openai.errors import OpenAiError, from_request_error
from tritrio.protocol.openai.generation import ToolUse
from tritrio.protocol.openai.logprobs import completion_logprobs
from tritrio.protocol.openai.tool_calls import make_reader

HEADER = Header("an-id", 1_700_000_000, "m", "m-1")
CALL = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
PLACES = [
    TokenLogprobs(LlmToken(5, "é", -0.5, 1, "é".encode()), (LlmToken(6, "�", -1.0, 2, b"\xc3"),))
]

pytestmark = pytest.mark.slow  # the client's types take their time


def completion(*, prompts: int = 1, n: int = 1, include_usage: bool = False) -> CompletionAnswer:
    return CompletionAnswer(
        HEADER, begins=[""] * prompts, n=n, include_usage=include_usage, logprobs=True
    )


def chat(
    use: ToolUse = ToolUse.AUTO, *, parallel: bool = True, include_usage: bool = False
) -> ChatAnswer:
    ids = count()
    return ChatAnswer(
        HEADER,
        n=1,
        include_usage=include_usage,
        logprobs=True,
        tool_use=use,
        parallel_tool_calls=parallel,
        make_reader=lambda: make_reader(use, "weather", "hermes", lambda: f"call_{next(ids)}"),
    )


def said(answer: Answer, *texts: str, reason: str | None = "stop") -> bytes:
    """Take texts, the last with a reason; the events."""
    events = b""
    for index, text in enumerate(texts):
        last = reason if index == len(texts) - 1 else None
        choice = LlmChoice(text=text, finish_reason=last, output_tokens=1, logprobs=PLACES)
        events += answer.push(0, [choice], 7)
    return events


def objects(events: bytes) -> list[bytes]:
    """The objects of events, without what ends them."""
    found = [each.removeprefix(b"data: ") for each in events.split(b"\n\n")]
    assert found[-2:] == [b"[DONE]", b""]
    return found[:-2]


@pytest.mark.parametrize("texts", [["Hello", " you"], [CALL], ["Well. ", CALL]])
@pytest.mark.parametrize("reason", ["stop", "length", None])
def test_chats_are_as_the_client_expects(texts: list[str], reason: str | None) -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    answer = chat(include_usage=True)
    events = said(answer, *texts, reason=reason) + answer.end()
    chunks = [
        ChatCompletionChunk.model_validate_json(each, strict=True) for each in objects(events)
    ]
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    called = any(delta.tool_calls for delta in deltas)
    assert called == (CALL in texts)
    expected = "tool_calls" if called and reason != "length" else reason or "stop"
    assert chunks[-2].choices[0].finish_reason == expected
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7 + len(texts)
    answer = chat()
    said(answer, *texts, reason=reason)
    document = answer.document()
    whole = ChatCompletion.model_validate_json(document, strict=True)
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == expected
    assert bool(message.tool_calls) == called
    assert (message.content or "") == "".join(delta.content or "" for delta in deltas)
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    assert [each.bytes for each in whole.choices[0].logprobs.content] == [[195, 169]] * len(texts)


def test_completions_are_as_the_client_expects() -> None:
    from openai.types import Completion

    answer = completion()
    said(answer, "a", "b", reason="length")
    whole = Completion.model_validate_json(answer.document(), strict=True)
    assert whole.choices[0].text == "ab"
    assert whole.choices[0].finish_reason == "length"
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.text_offset == [0, 1]


def test_events_are_exactly_these_bytes() -> None:
    answer = completion(include_usage=True)
    answer._logprobs = False
    begin = (
        b'data: {"id":"an-id","object":"text_completion","created":1700000000,"model":"m",'
        b'"system_fingerprint":"m-1","choices":['
    )
    choice = b'{"index":0,"text":"a","logprobs":null,"finish_reason":"stop"}'
    usage = b'{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}'
    assert said(answer, "a") == begin + choice + b'],"usage":null}\n\n'
    assert answer.end() == begin + b'],"usage":' + usage + b"}\n\ndata: [DONE]\n\n"


def test_tokens_without_text_make_no_events() -> None:
    answer = completion()
    answer._logprobs = False
    assert said(answer, "", reason=None) == b""


def test_a_text_that_has_ended_has_no_more_events() -> None:
    for answer in (completion(), chat()):
        assert said(answer, "a") != b""
        assert said(answer, "") == b""


def test_only_the_first_call_counts_if_there_may_be_one() -> None:
    answer = chat(parallel=False)
    said(answer, CALL + CALL)
    (made,) = orjson.loads(answer.document())["choices"][0]["message"]["tool_calls"]
    assert made["id"] == "call_0"


def test_usage_is_left_out_where_the_model_does_not_count() -> None:
    answer = completion()
    answer.push(0, [LlmChoice(text="a")], None)
    assert "usage" not in orjson.loads(answer.document())


def test_a_model_has_to_answer_as_many_texts_as_it_was_asked_for() -> None:
    with pytest.raises(RequestError, match="asked for 2 texts, but answered 1"):
        completion(n=2).push(0, [LlmChoice(text="a")], 1)


def test_a_word_of_a_model_for_why_it_ended_is_stop() -> None:
    answer = completion()
    said(answer, "a", reason="abort")
    assert orjson.loads(answer.document())["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("name", "status", "kind", "code"),
    [
        ("INVALID_ARG", 400, "invalid_request_error", None),
        ("UNSUPPORTED", 400, "invalid_request_error", None),
        ("NOT_FOUND", 404, "invalid_request_error", "model_not_found"),
        ("UNAVAILABLE", 503, "overloaded_error", "overloaded"),
        ("INTERNAL", 500, "server_error", "internal_error"),
        ("UNKNOWN", 500, "server_error", "internal_error"),
    ],
)
def test_errors_have_the_shape_of_the_api(
    name: str, status: int, kind: str, code: str | None
) -> None:
    from tritrio.protocol.errors import ErrorCode

    error = from_request_error(RequestError(ErrorCode[name], "why"))
    assert isinstance(error, OpenAiError)
    document: dict[str, Any] = orjson.loads(error.response().body)  # type: ignore[arg-type]
    param = "model" if status == 404 else None
    expected = {"message": "why", "type": kind, "param": param, "code": code}
    assert (error.response().status, document) == (status, {"error": expected})
    header = (b"Retry-After", b"1")
    assert (header in error.response().headers) == (status == 503)


def test_a_prompt_that_is_too_long_has_a_code() -> None:
    error = from_request_error(PromptTooLongError("why"))
    assert (error.status, error.message, error.code) == (400, "why", "context_length_exceeded")


def test_the_tokens_of_one_character_are_all_where_it_is() -> None:
    pieces = (b"a", "\U0001f984".encode()[:2], "\U0001f984".encode()[2:], "é".encode())
    tokens = [
        TokenLogprobs(LlmToken(1, piece.decode("utf-8", "replace"), -1.0, 1, piece))
        for piece in (*pieces, b"z")
    ]
    document, offset = completion_logprobs(tokens[:2], 0)
    assert document["text_offset"] == [0, 1]
    document, offset = completion_logprobs(tokens[2:], offset)
    assert document["text_offset"] == [1, 2, 3]
    assert offset == len("a\U0001f984éz")
