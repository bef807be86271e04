"""One raw HTTP/1.1 request, and what a client sees of the answer."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import zlib
from dataclasses import dataclass
from typing import Any

from .cases import Case, Json, Mask
from .servers import HOST, Server

ANSWER_LIMIT_S = 10.0
NO_ANSWER = 0
"""Stands for the status where the server closed the connection, or hung, without an answer."""
COMPARED_HEADERS = ("content-type", "content-encoding", "accept-encoding", "transfer-encoding")
LENGTH_HEADER = "inference-header-content-length"


@dataclass(frozen=True, slots=True)
class Http:
    """A request as its bytes: nothing is added but Host and the framing of the body.

    Attributes:
      chunks: Sizes to cut the body into; then it goes out chunked.
      framed: False to send neither Content-Length nor Transfer-Encoding.
      framing_counts: Whether both answers must be chunked, or neither.
    """

    method: str
    path: str
    body: bytes = b""
    headers: tuple[str, ...] = ()
    chunks: tuple[int, ...] = ()
    framed: bool = True
    framing_counts: bool = True

    def wire(self) -> bytes:
        """The bytes to send."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", *self.headers]
        body = self.body
        if self.chunks:
            lines.append("Transfer-Encoding: chunked")
            body = self._chunked()
        elif self.framed:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _chunked(self) -> bytes:
        parts: list[bytes] = []
        position = 0
        for size in self.chunks:
            parts.append(b"%x\r\n%s\r\n" % (size, self.body[position : position + size]))
            position += size
        assert position == len(self.body)
        return b"".join([*parts, b"0\r\n\r\n"])


@dataclass(frozen=True, slots=True)
class HttpSeen:
    """What a client sees, split so that a difference is easy to read.

    Attributes:
      headers: The compared ones that are there.
      json: The body, or its JSON part, without its error text.
      order: The same as text, so that the order of keys and the kind of numbers count.
      blobs: The binary part, cut as the JSON part says.
      errors: The text of a body that is just `{"error": text}`, alone.
    """

    status: int
    headers: dict[str, str]
    json: Json
    order: str
    blobs: tuple[bytes, ...]
    errors: tuple[str, ...] = ()

    def comparable(self) -> dict[str, Any]:
        """Everything but error texts, and the content type of those and of empty bodies."""
        headers = dict(self.headers)
        if self.errors or not (self.order or any(self.blobs)):
            headers.pop("content-type", None)
        return {
            "status": self.status,
            "headers": headers,
            "json": self.json,
            "order": self.order,
            "blobs": self.blobs,
        }


def exchange(server: Server, case: Case[Http], limit_s: float = ANSWER_LIMIT_S) -> HttpSeen:
    """Send the case's request on its own connection and read the answer."""
    (seen,) = converse(server, [case.request], case.mask, limit_s)
    return seen


def converse(
    server: Server,
    requests: list[Http],
    mask: Mask | None = None,
    limit_s: float = ANSWER_LIMIT_S,
) -> list[HttpSeen]:
    """Send requests one after the other on one connection and read the answer to each."""
    address = (HOST, server.ports.http)
    with socket.create_connection(address, timeout=limit_s) as connection:
        return [_ask(connection, request, mask) for request in requests]


def _ask(connection: socket.socket, request: Http, mask: Mask | None) -> HttpSeen:
    with contextlib.suppress(OSError):  # refused early; the answer may be there all the same
        connection.sendall(request.wire())
    answer = http.client.HTTPResponse(connection, method=request.method)
    try:
        answer.begin()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return HttpSeen(NO_ANSWER, {}, None, "", ())
    headers = {name.lower(): value for name, value in answer.getheaders()}
    if not request.framing_counts:
        headers.pop("transfer-encoding", None)
    return _seen(answer.status, headers, body, mask)


def _seen(status: int, headers: dict[str, str], body: bytes, mask: Mask | None) -> HttpSeen:
    compared = {name: headers[name] for name in COMPARED_HEADERS if name in headers}
    coding = headers.get("content-encoding")
    if coding == "gzip":
        body = gzip.decompress(body)
    elif coding == "deflate":
        body = zlib.decompress(body)
    length = int(headers.get(LENGTH_HEADER, len(body)))
    text, rest = body[:length], body[length:]
    if not text:
        return HttpSeen(status, compared, None, "", (rest,))
    try:
        content = json.loads(text, parse_constant=str)
    except ValueError:
        return HttpSeen(status, compared, None, repr(text), (rest,))
    errors: tuple[str, ...] = ()
    if isinstance(content, dict) and list(content) == ["error"]:
        errors = (content["error"],)
        content = {"error": "a text"}
    elif mask is not None:
        content = mask(content)
    return HttpSeen(status, compared, content, json.dumps(content), _cut(content, rest), errors)


def _cut(content: Json, rest: bytes) -> tuple[bytes, ...]:
    """The blobs of `rest`, sized by the outputs' `binary_data_size`; left-overs come last."""
    blobs: list[bytes] = []
    outputs = content.get("outputs", ()) if isinstance(content, dict) else ()
    for output in outputs:
        if (size := output.get("parameters", {}).get("binary_data_size")) is not None:
            blobs.append(rest[:size])
            rest = rest[size:]
    return (*blobs, rest)
