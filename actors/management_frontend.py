"""The management frontend: `/metrics`, an ASGI application on hypercorn's trio worker.

Here are middleware and people, not throughput; the data path never passes through it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, final

import trio
from prometheus_client import CollectorRegistry

from .metrics_collector import CONTENT_TYPE, render

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

GRACE_S = 1.0
"""How long a scrape in progress may take once the server stops; a scrape takes milliseconds."""


@final
class ManagementApplication:
    """The ASGI application of the management port.

    `GET /metrics` is the Prometheus text; any other path an empty 200 and any other method on it
    a 405, as Triton's metrics port answers.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI scope."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            status, body = self._answer(scope["method"], scope["path"])
            headers = [
                (b"content-type", CONTENT_TYPE.encode()),
                (b"content-length", str(len(body)).encode()),
            ]
            if scope["method"] == "HEAD":
                body = b""
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _answer(self, method: str, path: str) -> tuple[int, bytes]:
        if path != "/metrics":
            return 200, b""
        if method != "GET":
            return 405, b""
        return 200, render(self._registry)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def serve_asgi(
    application: Callable[[Scope, Receive, Send], Awaitable[None]],
    listeners: list[trio.SocketListener],
    *,
    stop: trio.Event,
    grace_s: float = GRACE_S,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application on hypercorn until `stop` is set.

    Args:
      application: The application.
      listeners: Bound sockets; hypercorn gets duplicates of them, so the caller closes its own.
      stop: Set to end the serving.
      grace_s: Seconds that requests in progress have then.
      task_status: Started once the sockets are served.
    """
    # Hypercorn takes a third of a second to import, and a server without metrics needs none of it.
    from hypercorn.config import Config  # noqa: PLC0415
    from hypercorn.trio import serve  # noqa: PLC0415

    config = Config()
    config.bind = [f"fd://{listener.socket.dup().detach()}" for listener in listeners]
    config.graceful_timeout = grace_s
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("tritrio.hypercorn")
    port = listeners[0].socket.getsockname()[1]

    async def cut() -> None:
        # A client that never reads makes hypercorn wait in a shield without a deadline; only
        # shutting its connections down gets it out.
        await stop.wait()
        await trio.sleep(2 * grace_s)
        shut_down_connections(port)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut)
        await serve(
            application,  # type: ignore[arg-type] # hypercorn spells the same protocol as TypedDicts
            config,
            shutdown_trigger=stop.wait,
            task_status=task_status,  # type: ignore[arg-type] # it reports its addresses
        )
        nursery.cancel_scope.cancel()


def shut_down_connections(port: int) -> None:
    """Shut down every socket of this process whose local port is `port`."""
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # not a socket, or closed meanwhile
        with connection:
            try:
                if connection.getsockname()[1] == port:
                    connection.shutdown(socket.SHUT_RDWR)
            except (OSError, IndexError):
                continue  # not of the internet family, or not connected
