"""The lifespan scope of an ASGI application that has nothing to start or stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


async def answer_lifespan(
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Agree to the start and to the shutdown.

    The protocol lets an application refuse the scope instead, but servers log that as a fault.
    """
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
