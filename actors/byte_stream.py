"""How a connection's bytes come and go, over a socket or in memory.

The socket form works on the bare non-blocking socket: it waits for readability before it reads
and writes at once without waiting, since a keep-alive connection is nearly always drained and
writable. That spares a system call and two scheduler passes a request.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol, final

import trio

from ..protocol.tensors import Buffer

RECEIVE_BYTES_MAX = 256 * 1024
"""Most bytes taken from a socket at once; large bodies arrive in few reads, and one connection
cannot hold the loop for longer than it takes to copy this much."""

JOIN_BYTES_MAX = 64 * 1024
"""Buffers up to this total are joined into one write; copying more costs more than it saves."""

SEND_BUFFERS_MAX = 512
"""Most buffers in one gathered write; well under the kernel's limit of 1024."""


class ByteStream(Protocol):
    """A connection's two directions. One task receives, one task sends."""

    @property
    def sent_bytes(self) -> int:
        """Bytes written so far.

        It grows during a long `send_all`, which so shows whether the peer still takes any.
        """

    async def receive_some(self) -> bytes:
        """Wait for some bytes; empty at the end of the peer's direction.

        Raises:
          trio.BrokenResourceError: the connection was reset.
        """

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Write every buffer in order; may return without a checkpoint.

        Raises:
          trio.BrokenResourceError: the peer is gone.
        """

    def send_nowait(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Write what can be written without waiting; not while `send_all` waits.

        Returns:
          What is left to write; empty if nothing is.

        Raises:
          trio.BrokenResourceError: the peer is gone.
        """

    async def send_eof(self) -> None:
        """End our direction; the peer's stays open."""

    async def aclose(self) -> None:
        """Close both directions."""


@final
class SocketStream:
    """A `ByteStream` over a connected stream socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer that vanished while it is owed an answer is noticed in the end, too.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = sock
        self.sent_bytes = 0
        self._more = False  # the last read filled its buffer, so the next will find bytes

    @classmethod
    def from_trio(cls, stream: trio.SocketStream) -> SocketStream:
        """Take the socket over from a stream that `trio.serve_listeners` accepted."""
        return cls(socket.socket(fileno=stream.socket.detach()))

    async def receive_some(self) -> bytes:
        """See `ByteStream`."""
        if self._more:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._socket)
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES_MAX)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                raise trio.BrokenResourceError from error
            else:
                self._more = len(data) == RECEIVE_BYTES_MAX
                return data

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """See `ByteStream`."""
        rest = self.send_nowait(buffers)
        while rest:
            await self.wait_writable()
            rest = self.send_nowait(rest)

    def send_nowait(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """See `ByteStream`."""
        if len(buffers) == 1:
            data = buffers[0]
        elif sum(map(len, buffers)) <= JOIN_BYTES_MAX:
            data = b"".join(buffers)
        else:
            return self._send_gathered(buffers)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return [data]
        except OSError as error:
            raise trio.BrokenResourceError from error
        self.sent_bytes += sent
        return [] if sent == len(data) else [memoryview(data)[sent:]]

    def _send_gathered(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        rest: list[Buffer] = [memoryview(buffer) for buffer in buffers]
        try:
            sent = self._socket.sendmsg(rest[:SEND_BUFFERS_MAX])
        except BlockingIOError:
            return rest
        except OSError as error:
            raise trio.BrokenResourceError from error
        self.sent_bytes += sent
        first = 0
        while first < len(rest) and sent >= len(rest[first]):
            sent -= len(rest[first])
            first += 1
        del rest[:first]
        if sent:
            rest[0] = memoryview(rest[0])[sent:]
        return rest

    async def wait_readable(self) -> None:
        """Wait until there is something to receive, or the end."""
        await trio.lowlevel.wait_readable(self._socket)

    async def wait_writable(self) -> None:
        """Wait until the socket takes bytes again."""
        await trio.lowlevel.wait_writable(self._socket)

    async def send_eof(self) -> None:
        """See `ByteStream`."""
        await trio.lowlevel.checkpoint()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError from error

    def close(self) -> None:
        """Close both directions, without a checkpoint."""
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    async def aclose(self) -> None:
        """See `ByteStream`."""
        self.close()
        await trio.lowlevel.checkpoint()
