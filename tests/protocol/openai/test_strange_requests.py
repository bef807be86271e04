"""Whatever stands in a place of a request of OpenAI's API is read, or refused by its name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tritrio.protocol.openai.chat_request import parse_chat
from tritrio.protocol.openai.completion_request import parse_completion
from tritrio.protocol.openai.errors import OpenAiError

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
WHOLE_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "a", "name": "n"},
    ],
    "tools": [WEATHER],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": True,
    "logprobs": True,
    "top_logprobs": 2,
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "temperature": 0.5,
    "n": 2,
    "stop": ["a"],
    "logit_bias": {"3": 1},
    "stop_token_ids": [3],
    "stream": True,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"a": 1},
    "reasoning_effort": "low",
    "add_generation_prompt": True,
    "modalities": ["text"],
}
WHOLE_COMPLETION: dict[str, Any] = {
    "model": "m",
    "prompt": ["a", [1, 2]],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    },
    "logprobs": 3,
    "best_of": 1,
    "echo": False,
    "suffix": None,
}
STRANGE: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**63,
    "",
    "x" * 500,
    [],
    [None],
    [[]],
    {},
    {"type": []},
]


def places(value: Any) -> Any:
    """Every list and object in a value, with each key in it."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@pytest.mark.parametrize(
    ("parse", "document"), [(parse_chat, WHOLE_CHAT), (parse_completion, WHOLE_COMPLETION)]
)
def test_whatever_stands_in_a_place_is_read_or_refused(parse: Any, document: Any) -> None:
    assert parse(orjson.dumps(document)).model == "m"
    refusals = []
    for within, key in places(document):
        right = within[key]
        for strange in STRANGE:
            within[key] = strange
            try:
                parse(orjson.dumps(document))
            except OpenAiError as error:
                refusals.append(error)
        within[key] = right
    assert len(refusals) > 100
    assert all(error.param is not None and len(error.body) < 2000 for error in refusals)
