"""OpenAI's API of the whole server, in memory: answers, events, errors, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.http_client import request_bytes
from tests.support.memory_server import memory_server
from tests.support.openai_calls import call, chat, complete, events, teach
from tests.support.talking import write_talking_model
from tritrio.actors.http_openai import failed
from tritrio.protocol.errors import RequestError, invalid_argument
from tritrio.protocol.openai.errors import OpenAiError

HELLO = [{"role": "user", "content": "Hi|!"}]
TOOL = {"type": "function", "function": {"name": "weather"}}
CALL = '<tool_call>|{"name": "weather", |"arguments": {"town": "Rome"}}|</tool_call>'


async def test_a_completion(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        answer = await complete(server.http(), "a|b|c")
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        body = answer.json
        assert body.pop("id").startswith("cmpl-")
        assert isinstance(body.pop("created"), int)
        choice = {"index": 0, "text": "abc", "logprobs": None, "finish_reason": "stop"}
        assert body == {
            "object": "text_completion",
            "model": "talk",
            "system_fingerprint": "talk-1",
            "choices": [choice],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
        }
        assert server.counts("talk") == (1, 0, 0)


async def test_every_prompt_has_its_choices(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        answer = await complete(server.http(), ["a|b", [3, 4], "c"], n=2, max_tokens=1)
        choices = answer.json["choices"]
        assert [each["index"] for each in choices] == list(range(6))
        assert [each["text"] for each in choices] == ["a", "1a", " 3", "1 3", "c", "1c"]
        reasons = [each["finish_reason"] for each in choices]
        assert reasons == ["length"] * 4 + ["stop"] * 2
        usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
        assert answer.json["usage"] == usage
        assert server.counts("talk") == (3, 0, 0)


async def test_the_model_gets_what_was_said(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        answer = await complete(client, "!sampling", temperature=0, stop="x", user="u")
        given = orjson.loads(answer.json["choices"][0]["text"])
        assert given == {"max_tokens": 16, "stop": "x", "temperature": 0}
        teach(server)
        answer = await chat(client, "!sampling", response_format={"type": "json_object"})
        given = orjson.loads(answer.json["choices"][0]["message"]["content"])
        assert given == {"max_tokens": None, "structured_outputs": {"json_object": True}}


async def test_a_prompt_comes_back_in_front(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        answer = await complete(client, "a|b", echo=True)
        assert answer.json["choices"][0]["text"] == "a|bab"
        client.send(call("completions", model="talk", prompt="a|b", echo=True, stream=True))
        found = await events(client)
        texts = [each["choices"][0]["text"] for each in found[:-1]]
        assert texts == ["a|ba", "b"]


async def test_the_events_of_a_completion(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        client.send(call("completions", model="talk", prompt="a|b", stream=True))
        *chunks, done = await events(client)
        assert done == "[DONE]"
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert [chunk["choices"] for chunk in chunks] == [
            [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}],
            [{"index": 0, "text": "b", "logprobs": None, "finish_reason": "stop"}],
        ]
        assert not any("usage" in chunk for chunk in chunks)


async def test_a_chat_and_its_events(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        teach(server)
        client = server.http()
        answer = await chat(client, "a|b")
        assert answer.json["id"].startswith("chatcmpl-")
        assert answer.json["object"] == "chat.completion"
        message = {"role": "assistant", "content": "ab", "refusal": None}
        assert answer.json["choices"] == [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        ]
        options = {"include_usage": True}
        client.send(
            call(
                "chat/completions",
                model="talk",
                messages=HELLO,
                stream=True,
                stream_options=options,
            )
        )
        *chunks, last, done = await events(client)
        assert done == "[DONE]"
        assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
            {"role": "assistant", "content": "", "refusal": None},
            {"content": "Hi"},
            {"content": "!"},
            {},
        ]
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None, None, None, "stop"]
        assert all(chunk["usage"] is None for chunk in chunks)
        assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
        assert last["choices"] == []
        usage = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
        assert last["usage"] == usage


async def test_log_probabilities(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        teach(server)
        client = server.http()
        answer = await chat(client, "a|é", logprobs=True, top_logprobs=1)
        other = {"token": "other", "bytes": list(b"other"), "logprob": -9999.0}
        assert answer.json["choices"][0]["logprobs"] == {
            "content": [
                {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": [other]},
                {"token": "é", "bytes": [195, 169], "logprob": -0.5, "top_logprobs": [other]},
            ],
            "refusal": None,
        }
        whole = {
            "tokens": ["ab", "c"],
            "token_logprobs": [-0.5, -0.5],
            "top_logprobs": [{"other": -9999.0, "ab": -0.5}, {"other": -9999.0, "c": -0.5}],
            "text_offset": [0, 2],
        }
        answer = await complete(client, "ab|c", logprobs=1)
        assert answer.json["choices"][0]["logprobs"] == whole
        client.send(call("completions", model="talk", prompt="ab|c", logprobs=1, stream=True))
        *chunks, _ = await events(client)
        pieces = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        assert {key: pieces[0][key] + pieces[1][key] for key in whole} == whole


async def test_calls_of_tools(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        teach(server)
        client = server.http()
        answer = await chat(client, "tools", tools=[TOOL], chat_template_kwargs={"a": 1})
        content = answer.json["choices"][0]["message"]["content"]
        assert orjson.loads(content) == [[TOOL], {"a": 1}]
        answer = await chat(client, CALL, tools=[TOOL])
        (choice,) = answer.json["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        (made,) = choice["message"]["tool_calls"]
        assert made["id"].startswith("call_")
        function = {"name": "weather", "arguments": '{"town": "Rome"}'}
        assert (made["type"], made["function"]) == ("function", function)
        answer = await chat(client, CALL)  # nobody asked for calls
        assert answer.json["choices"][0]["message"]["content"] == CALL.replace("|", "")


async def test_the_events_of_calls_of_tools(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        teach(server)
        client = server.http()
        named = {"type": "function", "function": {"name": "weather"}}
        for content, choice, reason, pieces in (
            (CALL, "auto", "tool_calls", ['{"town": "Rome"}']),
            ('{"town": |"Rome"}', named, "stop", ['{"town": ', '"Rome"}']),
        ):
            messages = [{"role": "user", "content": content}]
            members: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice, "stream": True}
            client.send(call("chat/completions", model="talk", messages=messages, **members))
            *chunks, done = await events(client)
            assert done == "[DONE]"
            choices = [chunk["choices"][0] for chunk in chunks]
            deltas = [made for each in choices for made in each["delta"].get("tool_calls", ())]
            assert [each["function"]["arguments"] for each in deltas] == pieces
            assert [each["index"] for each in deltas] == [0] * len(pieces)
            assert deltas[0]["function"]["name"] == "weather"
            assert [("id" in each) for each in deltas] == [True] + [False] * (len(pieces) - 1)
            assert choices[-1]["finish_reason"] == reason


async def test_a_failure_before_the_first_event_decides_the_status(
    autojump_clock: MockClock, talking: Path
) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        for prompt, status, kind in (
            ("!fail", 500, "server_error"),
            ("!busy", 503, "overloaded_error"),
            ("!crowd", 500, "server_error"),
        ):
            for stream in (False, True):
                answer = await complete(client, prompt, stream=stream)
                assert answer.status == status
                error = answer.json["error"]
                assert error["type"] == kind
                assert error.keys() == {"message", "type", "param", "code"}
                assert ("retry-after" in answer.headers) == (status == 503)


async def test_a_later_failure_is_the_last_event(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        client.send(call("completions", model="talk", prompt=["a|!fail", "b|c"], stream=True))
        *chunks, last = await events(client)
        assert all("choices" in chunk for chunk in chunks)
        assert last["error"]["type"] == "server_error"
        assert (await complete(client, "a")).status == 200  # the connection goes on


async def test_what_models_cannot_do_is_said(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        for model, members, status, param, code in (
            ("nobody", {}, 404, "model", "model_not_found"),
            ("plain", {}, 404, "model", "model_not_found"),
            ("small", {"prompt": [1]}, 400, "prompt", None),
            ("small", {"logprobs": 1}, 400, "logprobs", None),
            ("talk", {"temperature": -1}, 400, "temperature", None),
        ):
            answer = await complete(client, **{"prompt": "a", "model": model, **members})
            error = answer.json["error"]
            assert (answer.status, error["param"], error["code"]) == (status, param, code)
        answer = await chat(client, "a")  # without a template
        assert (answer.status, answer.json["error"]["param"]) == (404, "model")
        teach(server)
        answer = await chat(client, "refuse")
        assert (answer.status, answer.json["error"]["message"]) == (
            400,
            "the template takes nothing",
        )
        client.send(request_bytes("/v1/completions", b"{"))
        assert (await client.response()).status == 400
        answer = await complete(client, "a", model="small")
        assert answer.json["choices"][0]["text"] == "a"
        assert server.counts("talk") == (0, 2, 0)


@pytest.mark.parametrize("error", [invalid_argument("why"), OpenAiError(400, "why")])
def test_a_call_that_failed_lets_its_request_go(error: RequestError | OpenAiError) -> None:
    with pytest.raises(type(error)) as caught:
        raise error
    assert caught.value.__traceback__ is not None
    assert failed(error).status == 400
    assert error.__traceback__ is None


async def test_the_models_that_can_do_it_are_named(
    autojump_clock: MockClock, talking: Path
) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        answer = await complete(client, "a", model="nobody")
        assert answer.json["error"]["message"] == (
            "expected the name of a known model, got 'nobody'; models for /v1/completions are "
            "['small', 'talk']"
        )
        answer = await chat(client, "a", model="nobody")  # there is none for it
        message = "expected the name of a known model, got 'nobody'"
        assert answer.json["error"]["message"] == message
        teach(server)
        answer = await chat(client, "a", model="small")
        assert answer.json["error"]["message"] == (
            "expected a model that has a chat template, got 'small', which has none: only models "
            "of the backend 'llm' do; models for /v1/chat/completions are ['talk']"
        )
    restricted = ("metadata:admin=secret",)
    async with memory_server(talking, http_restricted_apis=restricted) as server:
        answer = await complete(server.http(), "a", model="nobody")
        assert answer.json["error"]["message"] == message  # not for those who may not list them


async def test_the_models_are_those_that_can_be_asked(
    autojump_clock: MockClock, talking: Path
) -> None:
    async with memory_server(talking) as server:
        client = server.http()
        client.get("/v1/models")
        body = (await client.response()).json
        assert body["object"] == "list"
        assert [each["id"] for each in body["data"]] == ["small", "talk"]
        client.get("/v1/models/talk")
        model = (await client.response()).json
        assert model == body["data"][1]
        assert isinstance(model.pop("created"), int)
        assert model == {
            "id": "talk",
            "object": "model",
            "owned_by": "tritrio",
            "supported_endpoints": ["/v1/completions"],
        }
        teach(server)
        client.get("/v1/models/talk")
        model = (await client.response()).json
        assert model["supported_endpoints"] == ["/v1/chat/completions", "/v1/completions"]
        for name in ("plain", "nobody"):
            client.get(f"/v1/models/{name}")
            answer = await client.response()
            assert (answer.status, answer.json["error"]["param"]) == (404, "model")
        client.get("/v1/files")
        answer = await client.response()
        assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize("name", ["text_input", "text_output"])
async def test_a_model_whose_tensors_have_those_names_and_no_text_is_none_of_them(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    write_talking_model(tmp_path, "numbers")
    file = tmp_path / "numbers" / "config.pbtxt"
    text = f'name: "{name}" data_type: TYPE_'
    config = file.read_text()
    assert f"{text}STRING" in config
    file.write_text(config.replace(f"{text}STRING", f"{text}FP32"))
    async with memory_server(tmp_path) as server:
        client = server.http()
        client.get("/v1/models")
        assert (await client.response()).json["data"] == []
        answer = await complete(client, "a", model="numbers")
        message = "expected a model that generates text, got 'numbers', which does not"
        assert (answer.status, answer.json["error"]["message"]) == (404, message)
        assert not server.executions


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_every_prompt(
    autojump_clock: MockClock, talking: Path, stream: bool
) -> None:
    async with memory_server(talking, seconds={"talk": 1.0}) as server:
        client = server.http()
        client.send(call("completions", model="talk", prompt=["a", "b", "c"], stream=stream))
        await wait_all_tasks_blocked()
        client.end.close()
        await wait_all_tasks_blocked()
        assert server.counts("talk") == (0, 3, 0)
        assert len(server.executions) == 1


async def test_a_large_chat_is_read_on_a_thread(talking: Path) -> None:
    async with memory_server(talking) as server:
        teach(server)
        text = "a" * 300_000
        answer = await chat(server.http(), text)
        assert answer.json["choices"][0]["message"]["content"] == text
