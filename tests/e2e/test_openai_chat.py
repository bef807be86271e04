"""Chats through the official client of OpenAI's API, with the example smollm2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

from tests.support.server_process import ServerProcess, running_server

from .models import copy_example

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FRANCE: Any = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]
SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 20}},
    "required": ["town"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def server(weights: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("chat")
    copy_example(place, "smollm2")
    with running_server(place, place / "log") as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://{server.http_url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "messages": FRANCE, "temperature": 0}
    raw = client.chat.completions.with_raw_response.create(**asked, logprobs=True, top_logprobs=2)
    whole = ChatCompletion.model_validate_json(raw.text, strict=True)
    (choice,) = whole.choices
    assert choice.message.content is not None
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    assert whole.usage is not None
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    spelled = bytes(byte for token in choice.logprobs.content for byte in token.bytes or ())
    assert spelled.decode().startswith(choice.message.content)
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    with client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = stream
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content
    assert last.usage == whole.usage


def test_a_seed_makes_texts_repeatable(client: openai.OpenAI) -> None:
    made = [
        client.chat.completions.create(
            model="smollm2", messages=FRANCE, temperature=1.5, seed=11, n=3, max_tokens=8
        )
        for _ in range(2)
    ]
    texts = [[choice.message.content for choice in each.choices] for each in made]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_an_answer_has_the_form_that_is_asked_for(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="smollm2",
        messages=FRANCE,
        temperature=0,
        max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    )
    assert list(json.loads(made.choices[0].message.content or "")) == ["town"]


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, "stop"),
    ],
)
def test_a_call_of_a_tool_can_be_had(client: openai.OpenAI, choice: Any, reason: str) -> None:
    made = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        temperature=0,
        max_tokens=100,
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    (call,) = made.choices[0].message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.function.name == "weather"
    assert list(json.loads(call.function.arguments)) == ["town"]
    assert made.choices[0].finish_reason == reason


@pytest.mark.parametrize(
    "members",
    [
        {"logit_bias": {"99999999": 1}},
        {"max_tokens": 2, "extra_body": {"min_tokens": 5}},
        {"messages": [{"role": "user", "content": "word " * 5000}]},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "nonsense"}},
            }
        },
    ],
)
def test_what_the_model_cannot_do_is_the_fault_of_the_request(
    client: openai.OpenAI, members: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**{"model": "smollm2", "messages": FRANCE, **members})
