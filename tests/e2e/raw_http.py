"""HTTP/1.1 by hand, over a blocking socket with a time limit."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

HOST = "127.0.0.1"
LIMIT_S = 20.0


@dataclass(slots=True)
class Answer:
    """A whole response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    def error(self) -> str:
        """The text of an error answer, which must be nothing but that."""
        assert self.headers["content-type"] == "application/json"
        (text,) = self.json().values()
        assert list(self.json()) == ["error"]
        assert isinstance(text, str)
        return text


def connect(port: int) -> socket.socket:
    """A connection to the server."""
    return socket.create_connection((HOST, port), timeout=LIMIT_S)


def request(
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> bytes:
    """The bytes of a request; a Content-Length is added where there is a body."""
    fields = {"Host": "test", **(headers or {})}
    if body and "Transfer-Encoding" not in fields:
        fields.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def receive(connection: socket.socket, method: str = "POST") -> Answer:
    """The next answer on a connection."""
    response = HTTPResponse(connection, method=method)
    response.begin()
    body = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, body)


def exchange(
    connection: socket.socket,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send a request and take its answer."""
    connection.sendall(request(method, path, body, headers))
    return receive(connection, method)


def ask(port: int, method: str, path: str, body: bytes = b"") -> Answer:
    """One request on a connection of its own."""
    with connect(port) as connection:
        return exchange(connection, method, path, body)


def infer_body(values: list[float], shape: list[int] | None = None) -> bytes:
    """An inference request in JSON for INPUT0 FP32."""
    tensor = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": [len(values)] if shape is None else shape,
        "data": values,
    }
    return json.dumps({"inputs": [tensor]}).encode()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection that owes nothing; waits for it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
