"""What requests of OpenAI's API ask for, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tritrio.protocol.openai.chat_request import parse_chat
from tritrio.protocol.openai.completion_request import parse_completion, parse_embedding
from tritrio.protocol.openai.errors import OpenAiError
from tritrio.protocol.openai.generation import GenerationRequest, ToolUse

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}


def chat(**members: Any) -> GenerationRequest:
    return parse_chat(orjson.dumps({"model": "m", "messages": HELLO, **members}))


def completion(**members: Any) -> GenerationRequest:
    return parse_completion(orjson.dumps({"model": "m", "prompt": "a", **members}))


def messages(*given: dict[str, Any]) -> list[dict[str, Any]]:
    asked = parse_chat(orjson.dumps({"model": "m", "messages": given})).chat
    assert asked is not None
    return asked.messages


def test_a_chat_goes_on_until_the_model_ends_it() -> None:
    asked = chat()
    assert (asked.model, asked.n, asked.stream, asked.logprobs) == ("m", 1, False, False)
    assert asked.sampling == {"max_tokens": None}
    assert asked.chat is not None
    assert asked.chat.messages == HELLO
    assert asked.chat.tool_use is ToolUse.NONE


def test_a_completion_has_sixteen_tokens() -> None:
    assert completion().sampling == {"max_tokens": 16}


@pytest.mark.parametrize("parse", [chat, completion])
def test_sampling_parameters_are_passed_on(parse: Any) -> None:
    given = {
        "n": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": -7,
        "stop": ["a", "b"],
        "logit_bias": {"7": -100},
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 80,
        "ignore_eos": True,
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    asked = parse(**given, max_tokens=90)
    assert asked.sampling == {**given, "max_tokens": 90}
    assert asked.n == 3


@pytest.mark.parametrize("parse", [chat, completion])
def test_whole_numbers_may_be_written_with_a_point(parse: Any) -> None:
    asked = parse(n=3.0, max_tokens=9.0)
    assert asked.n == 3
    assert isinstance(asked.n, int)


@pytest.mark.parametrize("parse", [chat, completion])
def test_what_is_null_or_of_no_effect_is_left_out(parse: Any) -> None:
    plain = parse()
    given = dict.fromkeys(["temperature", "stop", "n", "functions", "stream_options", "tools"])
    assert parse(**given, user="me", store=True, metadata={"a": "b"}, service_tier="auto") == plain


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("temperature", -1),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("n", 0),
        ("n", 10_000),
        ("n", True),
        ("stop", [1]),
        ("seed", 0.5),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}),
        ("presence_penalty", 3),
        ("max_tokens", 0),
        ("max_tokens", 2**63),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("guided_json", 3),
        ("guided_choice", []),
        ("response_format", "json"),
        ("functions", []),
        ("whatever", 1),
    ],
)
@pytest.mark.parametrize("parse", [chat, completion])
def test_the_member_that_is_wrong_is_named(parse: Any, member: str, value: Any) -> None:
    with pytest.raises(OpenAiError) as caught:
        parse(**{member: value})
    error = caught.value
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.param == member
    assert member in error.message


def test_an_unknown_name_is_cut_to_size() -> None:
    with pytest.raises(OpenAiError) as caught:
        chat(**{"x" * 5000: 1})
    assert len(caught.value.body) < 1000


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "messages"),
        ("Hello", "messages"),
        ([3], "messages[0]"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "function", "content": "a"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "assistant"}], "messages[0].content"),
        ([{"role": "tool", "content": "a"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "a", "audio": {}}], "messages[0].audio"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
    ],
)
def test_the_message_that_is_wrong_is_named(given: Any, param: str) -> None:
    with pytest.raises(OpenAiError) as caught:
        parse_chat(orjson.dumps({"model": "m", "messages": given}))
    assert caught.value.param == param
    assert caught.value.status == 400


def test_contents_become_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts, "name": "n"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "refusal": "never"},
    ) == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb", "name": "n"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "never"},
    ]


def test_earlier_calls_have_arguments_that_are_objects() -> None:
    function = {"name": "weather", "arguments": '{"town": "Rome"}'}
    call = {"id": "c1", "type": "function", "function": function}
    assert messages(
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "warm"},
    ) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"town": "Rome"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "warm"},
    ]
    for wrong in ("[]", "{", "[" * 100_000):
        function["arguments"] = wrong
        with pytest.raises(OpenAiError, match="a JSON object as a string"):
            messages({"role": "assistant", "tool_calls": [call]})


def test_the_newer_limit_of_tokens_counts() -> None:
    assert chat(max_tokens=3).sampling["max_tokens"] == 3
    assert chat(max_tokens=3, max_completion_tokens=4).sampling["max_tokens"] == 4


def test_alternatives_go_with_log_probabilities() -> None:
    assert chat(logprobs=True).sampling["logprobs"] == 0
    assert chat(logprobs=True, top_logprobs=5).sampling["logprobs"] == 5
    assert chat(logprobs=False).logprobs is False
    for members in ({"top_logprobs": 5}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(OpenAiError) as caught:
            chat(**members)
        assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("members", "guide"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": {"type": "string"}},
                }
            },
            {"json": {"type": "string"}},
        ),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"regex": "b"}}, {"regex": "b"}),
    ],
)
def test_answers_are_held_to_a_form(members: dict[str, Any], guide: dict[str, Any]) -> None:
    assert chat(**members).sampling["structured_outputs"] == guide
    assert completion(**members).sampling["structured_outputs"] == guide


def test_plain_text_is_no_form() -> None:
    assert "structured_outputs" not in chat(response_format={"type": "text"}).sampling


def test_an_answer_has_one_form() -> None:
    with pytest.raises(OpenAiError, match="got both"):
        chat(guided_regex="a", response_format={"type": "json_object"})


def test_tools_are_handed_on_unless_none_may_be_called() -> None:
    asked = chat(tools=[WEATHER]).chat
    assert asked is not None
    assert (asked.tools, asked.tool_use) == ([WEATHER], ToolUse.AUTO)
    asked = chat(tools=[WEATHER], tool_choice="none").chat
    assert asked is not None
    assert (asked.tools, asked.tool_use) == (None, ToolUse.NONE)


def test_a_named_tool_holds_the_answer_to_its_arguments() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    asked = chat(tools=[WEATHER, TIME], tool_choice=choice)
    assert asked.chat is not None
    assert (asked.chat.tool_use, asked.chat.tool_name) == (ToolUse.NAMED, "weather")
    assert asked.sampling["structured_outputs"] == {"json": WEATHER["function"]["parameters"]}


def test_a_required_call_holds_the_answer_to_an_array_of_calls() -> None:
    asked = chat(tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=False)
    schema = asked.sampling["structured_outputs"]["json"]
    names = [each["properties"]["name"]["const"] for each in schema["items"]["anyOf"]]
    assert names == ["weather", "time"]
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)


def test_an_answer_may_come_back_as_clients_keep_it() -> None:
    function = {"name": "weather", "arguments": "{}", "parsed_arguments": {"town": "Rome"}}
    kept = {
        "role": "assistant",
        "content": "a",
        "annotations": [],
        "parsed": {"a": 1},
        "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}],
    }
    asked = chat(messages=[*HELLO, kept]).chat
    assert asked is not None
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {}}}
    assert asked.messages[1] == {"role": "assistant", "content": "a", "tool_calls": [call]}


def test_references_of_required_tools_lead_to_their_own_definitions() -> None:
    parameters = {
        "$defs": {"node": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "properties": {"node": {"$ref": "#/$defs/node"}, "all": {"$ref": "#"}, "$ref": {}},
        "$ref": "other.json",
    }
    tree = {"type": "function", "function": {"name": "tree", "parameters": parameters}}
    asked = chat(tools=[WEATHER, tree], tool_choice="required")
    schema = asked.sampling["structured_outputs"]["json"]
    place = "#/items/anyOf/1/properties/arguments"
    assert schema["items"]["anyOf"][1]["properties"]["arguments"] == {
        "$defs": {"node": {"anyOf": [{"$ref": f"{place}/$defs/node"}, {"type": "null"}]}},
        "properties": {
            "node": {"$ref": f"{place}/$defs/node"},
            "all": {"$ref": place},
            "$ref": {},
        },
        "$ref": "other.json",
    }
    assert asked.chat is not None
    assert asked.chat.tools == [WEATHER, tree]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        (
            {
                "tools": [WEATHER],
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "tool_choice",
        ),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_a_choice_of_tools_that_cannot_be_is_refused(members: Any, param: str) -> None:
    with pytest.raises(OpenAiError) as caught:
        chat(**members)
    assert caught.value.param == param


def test_templates_get_variables() -> None:
    asked = chat(chat_template_kwargs={"a": 1}, reasoning_effort="low", add_generation_prompt=False)
    assert asked.chat is not None
    assert asked.chat.variables == {"a": 1, "reasoning_effort": "low"}
    assert asked.chat.add_generation_prompt is False


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a", [3]], ("a", (3,))),
    ],
)
def test_prompts_are_texts_or_tokens(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).prompts == expected
    assert parse_embedding(orjson.dumps({"model": "m", "input": prompt})).inputs == expected


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], [[1], 2.5], 3, {}, [-1], [2**31], [True], ["a"] * 5000]
)
def test_prompts_that_are_none_are_refused(prompt: Any) -> None:
    with pytest.raises(OpenAiError) as caught:
        completion(prompt=prompt)
    assert str(caught.value.param).startswith("prompt")
    with pytest.raises(OpenAiError) as caught:
        parse_embedding(orjson.dumps({"model": "m", "input": prompt}))
    assert str(caught.value.param).startswith("input")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True, "prompt": [1]}, "echo"),
        ({"model": ""}, "model"),
    ],
)
def test_what_completions_cannot_do_is_refused(members: Any, param: str) -> None:
    with pytest.raises(OpenAiError) as caught:
        completion(**members)
    assert caught.value.param == param


def test_embeddings_come_as_numbers_or_base64() -> None:
    body = {"model": "m", "input": "a", "dimensions": 3, "user": "me"}
    assert parse_embedding(orjson.dumps(body)).base64 is False
    asked = parse_embedding(orjson.dumps({**body, "encoding_format": "base64"}))
    assert (asked.base64, asked.dimensions) == (True, 3)
    with pytest.raises(OpenAiError) as caught:
        parse_embedding(orjson.dumps({**body, "encoding_format": "hex"}))
    assert caught.value.param == "encoding_format"
