"""What keeps requests out of OpenAI's API: keys, limits, restricted calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trio.testing import MockClock

from tests.support.http_client import request_bytes
from tests.support.memory_server import memory_server
from tests.support.openai_calls import call, complete


async def test_keys(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking, openai_api_keys=("sk-a", "sk-b")) as server:
        client = server.http()
        for headers in (
            [],
            ["Authorization: Bearer sk-c"],
            ["Authorization: Basic sk-a"],
            ["Authorization: Bearer sk-a", "Authorization: Bearer sk-a"],
            ["Authorization: Bearer "],
        ):
            for data in (
                call("completions", headers=headers, model="talk", prompt="a"),
                request_bytes("/v1/models", headers=headers),
                request_bytes("/v1/nothing", headers=headers),
            ):
                client.send(data)
                answer = await client.response()
                assert answer.status == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json["error"]["code"] == "invalid_api_key"
                assert "sk-" not in answer.body.decode()
        for key in ("sk-a", "sk-b"):
            headers = [f"Authorization: Bearer {key}"]
            client.send(call("completions", headers=headers, model="talk", prompt="a"))
            assert (await client.response()).status == 200
        client.get("/v2/health/ready")
        assert (await client.response()).status == 200


async def test_a_large_body_without_a_key_is_not_received(
    autojump_clock: MockClock, talking: Path
) -> None:
    keys: dict[str, Any] = {"openai_api_keys": ("sk-a",), "http_input_bytes_max": 100}
    async with memory_server(talking, **keys) as server:
        for size in (101, 1_000_000):
            client = server.http()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n"
            client.send(head.encode())
            answer = await client.response()
            assert (answer.status, answer.json["error"]["code"]) == (401, "invalid_api_key")


async def test_a_body_has_a_limit(autojump_clock: MockClock, talking: Path) -> None:
    async with memory_server(talking, http_input_bytes_max=100) as server:
        client = server.http()
        client.send(call("completions", model="talk", prompt="a" * 100))
        answer = await client.response()
        assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")
        client = server.http()
        client.send(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 101\r\n\r\n")
        assert (await client.response()).status == 413  # before the body comes
        client = server.http()
        chunked = "Transfer-Encoding: chunked"
        client.send(request_bytes("/v1/completions", method="POST", headers=[chunked]))
        client.send(b"78\r\n" + b" " * 120 + b"\r\n0\r\n\r\n")
        assert (await client.response()).status == 413


async def test_restricted_calls_and_forwarded_headers(
    autojump_clock: MockClock, talking: Path
) -> None:
    rules: dict[str, Any] = {
        "http_restricted_apis": ("inference:admin=secret",),
        "http_header_forward_pattern": "^x_",
    }
    async with memory_server(talking, **rules) as server:
        client = server.http()
        answer = await complete(client, "a")
        assert (answer.status, answer.json["error"]["code"]) == (403, "restricted_api")
        client.get("/v1/models")
        assert (await client.response()).status == 200
        for header, status in (("x_a: b", 200), ("x_priority: 1", 200)):
            headers = ["admin: secret", header]
            client.send(call("completions", headers=headers, model="talk", prompt="a"))
            assert (await client.response()).status == status


async def test_keys_alone_rule_the_calls_of_openai(
    autojump_clock: MockClock, talking: Path
) -> None:
    rules: dict[str, Any] = {
        "openai_api_keys": ("sk-a",),
        "http_restricted_apis": ("inference,metadata:admin=secret",),
    }
    async with memory_server(talking, **rules) as server:
        client = server.http()
        for header, first, second in (
            ("Authorization: Bearer sk-a", 200, 403),
            ("admin: secret", 401, 400),
        ):
            client.send(call("completions", headers=[header], model="talk", prompt="a"))
            assert (await client.response()).status == first
            client.send(request_bytes("/v1/models", headers=[header]))
            assert (await client.response()).status == first
            client.send(request_bytes("/v2/models/talk/generate", b"no JSON", headers=[header]))
            assert (await client.response()).status == second
