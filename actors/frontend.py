"""The frontend actor: one per listening protocol. Accepts connections and looks after them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, final

import trio

from ._connection_watch import TICK_S
from .byte_stream import ByteStream, SocketStream
from .tls_stream import TlsAcceptor

EXIT_TIMEOUT_PASSED = "the server exits, and its exit timeout has passed"
"""What clients are told whose requests a stop cuts off."""

_log = logging.getLogger("tritrio.frontend")


class Connection(Protocol):
    """A connection actor, as its frontend knows it."""

    async def run(self) -> None:
        """Serve the connection to its end; owns its stream."""

    def begin_shutdown(self) -> None:
        """Finish what is owed and close."""

    def tick(self) -> None:
        """Apply the timeouts."""

    def cut(self, reason: str) -> None:
        """End now; say why to those who are owed an answer, if that needs no wait."""


@final
class Frontend:
    """Runs a connection actor for every client.

    Lifetime: `run` serves until cancelled. `begin_shutdown` closes the listeners and tells every
    connection to go; `drained` waits for the last one.

    Args:
      name: What people call it, such as "HTTP".
      connect: Makes the connection actor for an accepted stream.
      tls: Makes the streams of sockets that are accepted TLS; None leaves them as they are.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[ByteStream], Connection],
        *,
        tls: TlsAcceptor | None = None,
    ) -> None:
        self._name = name
        self._connect = connect
        self._tls = tls
        self._connections: set[Connection] = set()
        self._draining = False
        self._accepting = trio.CancelScope()
        self._empty = trio.Event()

    def __str__(self) -> str:
        """Say what a stop waits for."""
        count = len(self._connections)
        return f"{self._name} has {count} connection{'' if count == 1 else 's'}"

    @property
    def connection_count(self) -> int:
        """Connections open right now."""
        return len(self._connections)

    async def run(
        self,
        listeners: list[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the listeners until cancelled; without any, serve what `serve` is given."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick_forever)
            task_status.started()
            if listeners:
                with self._accepting:  # its end closes the listeners
                    await trio.serve_listeners(
                        self._serve_socket, listeners, handler_nursery=nursery
                    )

    async def _tick_forever(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            for connection in list(self._connections):
                connection.tick()

    async def _serve_socket(self, stream: trio.SocketStream) -> None:
        plain = SocketStream.from_trio(stream)
        accepted = plain if self._tls is None else await self._tls.accept(plain)
        if accepted is not None:
            await self.serve(accepted)

    async def serve(self, stream: ByteStream) -> None:
        """Serve one connection to its end; owns the stream."""
        connection = self._connect(stream)
        self._connections.add(connection)
        try:
            if self._draining:
                connection.begin_shutdown()
            await connection.run()
        except Exception:  # the last line: one connection fails, the rest go on  # noqa: BLE001
            _log.exception("a fault of the server ended a connection")
        finally:
            self._connections.discard(connection)
            if self._draining and not self._connections:
                self._empty.set()

    def begin_shutdown(self) -> None:
        """Close the ports and idle connections; tell the others to go after their answers."""
        self._draining = True
        self._accepting.cancel()
        for connection in list(self._connections):
            connection.begin_shutdown()
        if not self._connections:
            self._empty.set()

    def cut(self) -> None:
        """End every connection now, without waiting; those owed an answer are told why."""
        for connection in list(self._connections):
            connection.cut(EXIT_TIMEOUT_PASSED)

    async def drained(self) -> None:
        """Wait until the last connection has closed, once `begin_shutdown` was called."""
        await self._empty.wait()
