"""ASGI applications on hypercorn's trio worker, above all the management port's `/metrics`.

Here are middleware and people, not throughput; the data path passes through it only where
somebody asks for hypercorn as the HTTP server.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, final

import trio
from prometheus_client import CollectorRegistry

from ..protocol.http_request import path_of_url
from ..protocol.management_codec import error_body
from ._asgi_lifespan import answer_lifespan
from .metrics_collector import CONTENT_TYPE, render_in_turns
from .tls_stream import HANDSHAKE_S

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

JSON = "application/json"
_METHOD_NOT_ALLOWED = error_body("Method Not Allowed")  # the words that clients know

IDLE_S = 5.0
"""A keep-alive connection without a request. Hypercorn holds the descriptors of those that their
clients have closed for just as long, so that a longer one would let a few clients use them up;
scrapers and probes that come less often than this connect anew at no cost that matters here."""


@final
class ManagementApplication:
    """The ASGI application of the management port.

    `GET /metrics` is the Prometheus text and any other path an empty 200; other methods, HEAD
    included, are a 405, as Triton's metrics port answers.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI scope."""
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # before it is accepted: 403
        elif scope["type"] == "http":
            path = path_of_url(scope["path"].encode()).decode()
            status, body = await self._answer(scope["method"], path)
            headers = [
                (b"content-type", (CONTENT_TYPE if status == 200 else JSON).encode()),
                (b"content-length", str(len(body)).encode()),
            ]
            if status == 405:
                headers.append((b"allow", b"GET"))
            if scope["method"] == "HEAD":
                body = b""
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _answer(self, method: str, path: str) -> tuple[int, bytes]:
        if method != "GET":
            return 405, _METHOD_NOT_ALLOWED
        if path.removesuffix("/") != "/metrics":
            return 200, b""
        return 200, await render_in_turns(self._registry)


@final
class AsgiFrontend:
    """Serves an ASGI application on hypercorn; stops as `Frontend` does.

    Lifetime: `run` serves until cancelled or until a shutdown has ended. `begin_shutdown` closes
    the port and every idle connection; `drained` waits for the requests in progress.

    Args:
      name: What people call it, such as "HTTP".
      application: The application.
      grace_s: Seconds that requests in progress have after `begin_shutdown`.
      on_shutdown: Called when the shutdown begins.
      tls: Certificates and rules of HTTPS; None for HTTP.
    """

    def __init__(
        self,
        name: str,
        application: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        grace_s: float,
        on_shutdown: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._name = name
        self._application = application
        self._on_shutdown = on_shutdown
        self._tls = tls
        self._grace_s = grace_s
        self._stop = trio.Event()
        self._ended = trio.Event()

    def __str__(self) -> str:
        """Say what a stop waits for."""
        return f"{self._name} has {'nothing' if self._ended.is_set() else 'something'} to end"

    async def run(
        self,
        listeners: list[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the listeners, which are taken over."""
        # It takes a third of a second to import, and a server without metrics needs none of it.
        from hypercorn.config import Config  # noqa: PLC0415
        from hypercorn.trio import serve  # noqa: PLC0415

        tls = self._tls

        class TlsConfig(Config):
            """Takes the context that we made, where hypercorn would make one of files."""

            ssl_enabled = tls is not None

            def create_ssl_context(self) -> ssl.SSLContext | None:
                return tls

        logger = logging.getLogger("tritrio.hypercorn")
        logger.setLevel(logging.WARNING)  # it announces ports in its own words
        config = TlsConfig()
        config.ssl_handshake_timeout = HANDSHAKE_S
        config.graceful_timeout = self._grace_s
        config.keep_alive_timeout = IDLE_S
        config.include_server_header = False
        config.h11_pass_raw_headers = True  # names that are forwarded keep their case
        config.accesslog = None
        config.errorlog = logger
        place = _place(listeners[0].socket.getsockname())
        assert place is not None
        config.bind = [f"fd://{listener.socket.detach()}" for listener in listeners]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cut, place)
            await serve(
                self._application,  # type: ignore[arg-type] # the same protocol as TypedDicts
                config,
                shutdown_trigger=self._stop.wait,
                task_status=task_status,  # type: ignore[arg-type] # it reports its addresses
            )
            nursery.cancel_scope.cancel()
        self._ended.set()

    async def _cut(self, place: int | str) -> None:
        """Leave hypercorn no connection to wait for once the grace is over.

        It writes in a shield without a deadline, so a client that never reads would hold it, and a
        cancelled server with it, for ever.
        """
        try:
            await self._stop.wait()
            await trio.sleep(self._grace_s)
        finally:
            shut_down_connections(place)

    def begin_shutdown(self) -> None:
        """Close the port and idle connections; requests in progress have the grace."""
        self._stop.set()
        self._on_shutdown()

    async def drained(self) -> None:
        """Wait until the last request has ended, once `begin_shutdown` was called."""
        await self._ended.wait()


def shut_down_connections(place: int | str) -> None:
    """Shut down every socket of this process at a local port, or on the path of a unix socket."""
    for name in os.listdir("/dev/fd"):
        try:
            number = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        try:
            connection = socket.socket(fileno=number)
        except OSError:
            os.close(number)  # not a socket
            continue
        with connection:
            try:
                if _place(connection.getsockname()) == place:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # not connected


def _place(address: Any) -> int | str | None:
    """Return the port of an internet address, the path of a unix one, and None of any other."""
    match address:
        case str():
            return address
        case (_, int(port), *_):
            return port
        case _:
            return None
