"""What the ASGI application does with clients that say nothing, and with other protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from tests.support.memory_server import memory_server
from tritrio.actors.http_asgi import BODY_TIMEOUT_S, HttpApplication

POST = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/v2/models/plain/infer",
    "query_string": b"",
    "headers": [(b"content-length", b"1000")],
}


async def test_body_that_stops_coming_is_refused_in_time(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        application = HttpApplication(api=server.parts.http_api, budget=server.parts.budget)
        pieces = [b"{", b"  "]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await trio.sleep(1.0)
            if not pieces:
                await trio.sleep_forever()
            return {"type": "http.request", "body": pieces.pop(0), "more_body": True}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        began_s = trio.current_time()
        await application(POST, receive, send)
        assert trio.current_time() - began_s == 2.0 + BODY_TIMEOUT_S
        assert sent[0]["status"] == 408
        assert server.used_bytes == 0


async def test_client_that_leaves_while_it_is_answered_is_nobodys_fault(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        application = HttpApplication(api=server.parts.http_api, budget=server.parts.budget)

        async def receive() -> dict[str, Any]:
            await trio.sleep(1.0)
            return {"type": "http.request", "body": b"{}"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                raise trio.BusyResourceError("the connection is being closed")

        await application(POST, receive, send)
        assert server.used_bytes == 0


async def test_websocket_is_turned_away(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        application = HttpApplication(api=server.parts.http_api, budget=server.parts.budget)
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await application({"type": "websocket"}, trio.sleep_forever, send)
        assert sent == [{"type": "websocket.close"}]
