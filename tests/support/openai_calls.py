"""Calls of OpenAI's API over connections in memory, and a chat template for its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tests.support.http_client import HttpClient, Response, request_bytes
from tests.support.memory_server import MemoryServer
from tritrio.backends.llm.text import Text, TextStream
from tritrio.protocol.errors import invalid_argument


class FakeText(Text):
    """A chat template that prints the last message, or the tools if it is "tools"."""

    vocabulary_size = 1000
    end_tokens = frozenset[int]()
    can_chat = True

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        assert add_generation_prompt
        content: str = messages[-1]["content"]
        if content == "refuse":
            raise invalid_argument("the template takes nothing")
        return orjson.dumps([tools, variables]).decode() if content == "tools" else content

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        raise NotImplementedError

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        raise NotImplementedError

    def token_text(self, token: int) -> str:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        raise NotImplementedError


def teach(server: MemoryServer, *models: str) -> None:
    """Give models a chat template."""
    for model in models or ("talk",):
        server.core.router.table.find(model).text = FakeText()


def call(path: str, *, headers: Sequence[str] = (), **members: Any) -> bytes:
    return request_bytes(f"/v1/{path}", orjson.dumps(members), headers=headers)


async def complete(client: HttpClient, prompt: Any, **members: Any) -> Response:
    client.send(call("completions", **{"model": "talk", "prompt": prompt, **members}))
    return await client.response()


async def chat(client: HttpClient, content: str, **members: Any) -> Response:
    messages = [{"role": "user", "content": content}]
    client.send(call("chat/completions", **{"model": "talk", "messages": messages, **members}))
    return await client.response()


async def events(client: HttpClient) -> list[Any]:
    """The events of a stream, its head included: the objects, and the text of the last."""
    head = await client.head()
    assert head.status == 200
    assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
    body = b""
    while chunk := await client.chunk():
        body += chunk
    assert body.endswith(b"\n\n")
    found: list[Any] = []
    for event in body[:-2].split(b"\n\n"):
        assert event.startswith(b"data: ")
        data = event.removeprefix(b"data: ")
        found.append("[DONE]" if data == b"[DONE]" else orjson.loads(data))
    return found
