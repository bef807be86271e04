"""What both servers say to HTTP/2 clients that ping without pause, frame by frame."""

from __future__ import annotations

import socket
import struct

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from .raw_grpc import HEADERS, READ_LIMIT_S, READY, framed
from .servers import HOST, Server, Servers

PING, GOAWAY, ACK = 6, 7, 1


class _Client:
    """A client that pings and looks at raw frames."""

    def __init__(self, server: Server) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._socket = socket.create_connection((HOST, server.ports.grpc), timeout=READ_LIMIT_S)
        self._data = b""
        self._stream_id = 1

    def close(self) -> None:
        self._socket.close()

    def call(self) -> None:
        """Begin and complete a call, without waiting for it."""
        self._h2.send_headers(self._stream_id, list(HEADERS.items()))
        self._h2.send_data(self._stream_id, framed(READY), end_stream=True)
        self._stream_id += 2

    def ping(self, number: int) -> tuple[str, ...]:
        """Ping; what the server says to it until its answer, or the end."""
        payload = struct.pack(">Q", number)
        self._h2.ping(payload)
        try:
            self._socket.sendall(self._h2.data_to_send())
            return self._said(payload)
        except (ConnectionError, BrokenPipeError):
            return ("closed",)

    def _said(self, payload: bytes) -> tuple[str, ...]:
        while True:
            kind, flags, body = self._frame()
            if kind == PING and flags == ACK:
                assert body == payload
                return ("pong",)
            if kind == GOAWAY:
                return (str(int.from_bytes(body[4:8], "big")), body[8:].decode())
            if kind < 0:
                return ("closed",)

    def _frame(self) -> tuple[int, int, bytes]:
        """The next frame; kind -1 at the end."""
        while len(self._data) < 9 or len(self._data) < 9 + int.from_bytes(self._data[:3], "big"):
            data = self._socket.recv(65_536)
            if not data:
                return -1, 0, b""
            self._data += data
        end = 9 + int.from_bytes(self._data[:3], "big")
        frame, self._data = self._data[:end], self._data[end:]
        return frame[3], frame[4], frame[9:]


def _idle(server: Server) -> list[tuple[str, ...]]:
    client = _Client(server)
    try:
        return [client.ping(number) for number in range(1, 6)]
    finally:
        client.close()


def _with_calls(server: Server) -> list[tuple[str, ...]]:
    client = _Client(server)
    answers = []
    try:
        for number in range(1, 20, 2):
            client.call()
            answers += [client.ping(number), client.ping(number + 1)]
    finally:
        client.close()
    return answers


@pytest.mark.reference
def test_idle_client_has_four_pings_answered_and_is_then_told_to_calm_down(
    servers: Servers,
) -> None:
    expected = [("pong",)] * 4 + [("11", "too_many_pings")]
    assert _idle(servers.reference) == expected
    assert _idle(servers.ours) == expected


@pytest.mark.reference
def test_client_that_calls_between_its_pings_has_all_answered(servers: Servers) -> None:
    assert _with_calls(servers.reference) == [("pong",)] * 20
    assert _with_calls(servers.ours) == [("pong",)] * 20
