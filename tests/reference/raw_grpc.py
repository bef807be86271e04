"""A gRPC call written frame by frame, for what no client library would send."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from tritonclient.grpc import service_pb2 as pb

from .cases import Case, Json
from .servers import HOST, Server

READ_LIMIT_S = 10.0
STATUS_NAMES = {str(code.value[0]): code.name for code in grpc.StatusCode}
HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "localhost",
    ":path": "/inference.GRPCInferenceService/ModelReady",
    "te": "trailers",
    "content-type": "application/grpc",
}
READY = pb.ModelReadyRequest(name="identity").SerializeToString()


def framed(message: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """A message with its prefix, which may say another length."""
    return struct.pack(">BI", flag, len(message) if length is None else length) + message


@dataclass(frozen=True, slots=True)
class RawCall:
    """One call; `changes` replaces headers, or drops those that are None."""

    body: bytes
    changes: tuple[tuple[str, str | None], ...] = ()

    def headers(self) -> list[tuple[str, str]]:
        """The header fields to send."""
        fields = {**HEADERS, **dict(self.changes)}
        return [(name, value) for name, value in fields.items() if value is not None]


@dataclass(frozen=True, slots=True)
class RawSeen:
    """What came back.

    Attributes:
      status: The name of the gRPC status; without one, `HTTP n`, `RESET n` or `CLOSED`.
      json: The body in hexadecimal.
      coding: The coding of its messages, or None.
    """

    status: str
    json: Json
    errors: tuple[str, ...] = ()
    coding: str | None = None

    def comparable(self) -> dict[str, Any]:
        """Everything but error texts."""
        return {"status": self.status, "json": self.json}


def exchange(server: Server, case: Case[RawCall]) -> RawSeen:
    """Make the case's call on a connection of its own."""
    call = case.request
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    client.send_headers(1, call.headers(), end_stream=not call.body)
    if call.body:
        client.send_data(1, call.body, end_stream=True)
    with socket.create_connection((HOST, server.ports.grpc), timeout=READ_LIMIT_S) as connection:
        connection.sendall(client.data_to_send())
        answer = _Answer()
        while not answer.ended:
            data = connection.recv(1)  # or h2 would refuse what may follow the end of the stream
            for event in client.receive_data(data) if data else [ConnectionTerminated()]:
                answer.add(event)
            connection.sendall(client.data_to_send())
    return answer.seen()


class _Answer:
    def __init__(self) -> None:
        self.ended = False
        self._fields: dict[str, str] = {}
        self._body = b""
        self._fate = "CLOSED"

    def add(self, event: Event) -> None:
        match event:
            case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                self._fields |= {str(name): str(value) for name, value in headers or ()}
            case DataReceived(data=data):
                self._body += data or b""
            case StreamReset(error_code=code):
                self._fate = f"RESET {code}"
                self.ended = True
            case StreamEnded() | ConnectionTerminated():
                self.ended = True

    def seen(self) -> RawSeen:
        http_status = self._fields.get(":status")
        if (number := self._fields.get("grpc-status")) is not None:
            status = STATUS_NAMES[number]
        elif http_status not in {None, "200"}:
            status = f"HTTP {http_status}"
        else:
            status = self._fate
        message = self._fields.get("grpc-message")
        errors = (message,) if message else ()
        return RawSeen(status, self._body.hex(), errors, self._fields.get("grpc-encoding"))
