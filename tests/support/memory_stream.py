"""A connection in memory that behaves like TCP where it matters: capacity, resets, half-closes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

import trio

from tritrio.protocol.tensors import Buffer

READ_BYTES_MAX = 64 * 1024


class Pipe:
    """One direction of a connection.

    Attributes:
      data: Sent and not yet received.
      capacity_bytes: As much of it fits; what the kernels' buffers are to a socket.
      ended: The sender sends no more.
      broken: Reset: both sides fail.
    """

    def __init__(self, capacity_bytes: float) -> None:
        self.data = bytearray()
        self.capacity_bytes = capacity_bytes
        self.ended = False
        self.broken = False
        self._waiting = trio.lowlevel.ParkingLot()

    def put(self, data: Buffer) -> int:
        """Take as much as fits and return how much that was."""
        if self.broken:
            raise trio.BrokenResourceError
        size = int(min(len(data), self.capacity_bytes - len(self.data)))
        self.data += memoryview(data)[:size]
        self._waiting.unpark_all()
        return size

    def end(self) -> None:
        self.ended = True
        self._waiting.unpark_all()

    def reset(self) -> None:
        """Fail both sides at once; what was not received is lost."""
        self.broken = True
        self.data.clear()
        self._waiting.unpark_all()

    async def get(self, size_max: int = READ_BYTES_MAX) -> bytes:
        """Wait for some bytes; empty at the end."""
        await trio.lowlevel.checkpoint()
        while not (self.data or self.ended or self.broken):
            await self._waiting.park()
        if self.broken:
            raise trio.BrokenResourceError
        data = bytes(self.data[:size_max])
        del self.data[:size_max]
        self._waiting.unpark_all()
        return data

    async def wait_room(self) -> None:
        while len(self.data) >= self.capacity_bytes and not self.broken:
            await self._waiting.park()


class ServerEnd:
    """A `ByteStream`: the server's end."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.sent_bytes = 0
        self.closed = False

    async def receive_some(self) -> bytes:
        return await self._incoming.get()

    def send_nowait(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        data = b"".join(buffers)
        sent = self._outgoing.put(data)
        self.sent_bytes += sent
        return [data[sent:]] if sent < len(data) else []

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        rest = self.send_nowait(buffers)
        while rest:
            await self._outgoing.wait_room()
            rest = self.send_nowait(rest)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._outgoing.broken:
            raise trio.BrokenResourceError
        self._outgoing.end()

    async def aclose(self) -> None:
        """Close as TCP does: with bytes unread it resets, and the reset overtakes what we sent."""
        self.closed = True
        if self._incoming.data:
            self._outgoing.reset()
        self._outgoing.end()
        self._incoming.reset()
        await trio.lowlevel.checkpoint()


class End(Protocol):
    """What a client talks through."""

    def write(self, data: bytes) -> None: ...
    async def read(self, size_max: int = ...) -> bytes: ...
    def half_close(self) -> None: ...
    def close(self) -> None: ...
    def reset(self) -> None: ...


class ClientEnd:
    """The client's end; writing never waits."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def write(self, data: bytes) -> None:
        """Send; bytes to a server that closed are lost, as in TCP until its reset comes."""
        if not self._outgoing.broken:
            self._outgoing.put(data)

    async def read(self, size_max: int = READ_BYTES_MAX) -> bytes:
        return await self._incoming.get(size_max)

    def half_close(self) -> None:
        self._outgoing.end()

    def close(self) -> None:
        """Send FIN, and answer whatever still comes with a reset."""
        self._outgoing.end()
        self._incoming.reset()

    def reset(self) -> None:
        self._outgoing.reset()
        self._incoming.reset()


def connection(capacity_bytes: float = inf) -> tuple[ClientEnd, ServerEnd]:
    """Return both ends; `capacity_bytes` bounds what the client leaves unread."""
    up, down = Pipe(inf), Pipe(capacity_bytes)
    return ClientEnd(down, up), ServerEnd(up, down)
