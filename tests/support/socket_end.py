"""The client's end of a real connection."""

from __future__ import annotations

import contextlib
import socket
import struct

import trio

from tests.support.server_process import HOST


class SocketEnd:
    """What `ClientEnd` is in memory, over a socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._ended = False
        self._waits = trio.socket.from_stdlib_socket(self._socket)  # non-blocking from here on

    def write(self, data: bytes) -> None:
        """Send; what is small fits the socket's buffer at once."""
        if data and not self._ended:
            try:
                sent = self._socket.send(data)
            except (BrokenPipeError, ConnectionResetError):
                return
            assert sent == len(data), "requests are small"

    async def read(self, size_max: int = 65_536) -> bytes:
        try:
            return await self._waits.recv(size_max)
        except (OSError, trio.ClosedResourceError) as error:
            raise trio.BrokenResourceError from error

    async def drain(self) -> None:
        """Read to the end, for nothing."""
        with contextlib.suppress(trio.BrokenResourceError):
            while await self.read():
                pass

    def half_close(self) -> None:
        self._ended = True
        with contextlib.suppress(OSError):  # reset meanwhile
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        self._ended = True
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._waits.close()

    def reset(self) -> None:
        self.close(reset=True)
