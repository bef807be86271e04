"""HTTP/1.1 responses as bytes: status line, headers and body, ready to be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from math import ceil
from typing import Final, TypeAlias

import orjson

JOINED_BYTES_MAX: Final = 64 * 1024
"""Buffers up to this size are copied into one write; above it a copy costs more than a write."""

JSON_CONTENT_TYPE: Final = (b"Content-Type", b"application/json")

Buffer: TypeAlias = bytes | bytearray | memoryview

BinaryHeaders: TypeAlias = Callable[[int], list[tuple[bytes, bytes]]]
"""Returns the headers that tell how many bytes of JSON come before binary tensors."""

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


@dataclass(slots=True)
class HttpResponse:
    """One response with a body of known size.

    Attributes:
      status: The status code, one that `http.HTTPStatus` knows.
      headers: (name, value); without Content-Length and Connection, which the encoder adds.
      body: The body, or its parts in order, such as a JSON part and binary tensors. Contiguous
        buffers; they must stay unchanged until written.
    """

    status: int
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes | Sequence[Buffer] = b""


def octet_stream(header_length: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a v2 response with tensors behind a JSON part of this length."""
    return [
        (b"Content-Type", b"application/octet-stream"),
        (b"Inference-Header-Content-Length", b"%d" % header_length),
    ]


def encode_response(
    response: HttpResponse, *, keep_alive: bool, head_only: bool = False, http_10: bool = False
) -> list[bytes | memoryview]:
    """Turn a response into the buffers to write, small ones joined and large ones not copied.

    The status line says HTTP/1.1 to an HTTP/1.0 client too: it states what the server speaks
    (RFC 9110 2.5).

    Args:
      response: What to send.
      keep_alive: Whether the connection stays open after it.
      head_only: Whether it answers a HEAD request, so that the body is only measured.
      http_10: Whether the client speaks HTTP/1.0.

    Returns:
      Buffers of bytes, in order; one alone unless a part of the body exceeds `JOINED_BYTES_MAX`.

    Raises:
      ValueError: A header would break out of its line.
    """
    fields = _fields(response.headers)
    body = response.body
    parts = (body,) if isinstance(body, bytes) else body
    size = 0
    for part in parts:
        size += part.nbytes if isinstance(part, memoryview) else len(part)
    connection = _connection(keep_alive=keep_alive, http_10=http_10)
    line = _STATUS_LINES[response.status]
    head = b"%b%bContent-Length: %d\r\n%b\r\n" % (line, fields, size, connection)
    if head_only:
        return [head]
    if size <= JOINED_BYTES_MAX:
        return [b"".join((head, *parts))]
    return _join_small(head, parts)


def encode_stream_head(
    status: int, headers: Sequence[tuple[bytes, bytes]], *, keep_alive: bool, http_10: bool = False
) -> bytes:
    """Return what comes before a body of unknown size, which then goes out in chunks.

    An HTTP/1.0 client knows no chunks: its body ends with the connection, so `keep_alive` has to
    be False.

    Raises:
      ValueError: A header would break out of its line.
    """
    framing = b"" if http_10 else b"Transfer-Encoding: chunked\r\n"
    connection = _connection(keep_alive=keep_alive, http_10=http_10)
    return b"%b%b%b%b\r\n" % (_STATUS_LINES[status], _fields(headers), framing, connection)


def encode_chunk(piece: Buffer) -> list[Buffer]:
    """Return one piece of a body as a chunk; it must not be empty, which would end the body."""
    size = piece.nbytes if isinstance(piece, memoryview) else len(piece)
    head = b"%x\r\n" % size
    if size <= JOINED_BYTES_MAX:
        return [b"".join((head, piece, b"\r\n"))]
    return [head, piece, b"\r\n"]


LAST_CHUNK: Final = b"0\r\n\r\n"
"""What ends a body that went out in chunks."""


def _fields(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    fields = b"".join([b"%b: %b\r\n" % header for header in headers])
    if not fields.count(b"\r") == fields.count(b"\n") == len(headers):
        raise ValueError(f"expected headers without line ends, got {headers!r}")
    return fields


def _connection(*, keep_alive: bool, http_10: bool) -> bytes:
    if not keep_alive:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if http_10 else b""


def error_response(
    status: int, message: str, *, retry_after_s: float | None = None
) -> HttpResponse:
    """Return the answer that reports a failure, `{"error":message}`.

    Args:
      status: The status code.
      message: One sentence.
      retry_after_s: When it is worth to try again, in seconds; sent as `Retry-After`, which
        counts whole seconds and here at least one (RFC 9110 10.2.3). None says nothing.
    """
    text = message.encode("utf-8", "replace").decode()  # Echoed input may hold lone surrogates.
    headers = [JSON_CONTENT_TYPE]
    if retry_after_s is not None:
        headers.append((b"Retry-After", b"%d" % max(1, ceil(retry_after_s))))
    return HttpResponse(status, headers, orjson.dumps({"error": text}))


NOT_FOUND: Final = error_response(404, "Not Found")
"""The answer to a path without a route; shared, so never changed."""
METHOD_NOT_ALLOWED: Final = error_response(405, "Method Not Allowed")
"""The answer to a route that lacks the method; shared, so never changed."""


def _join_small(head: bytes, parts: Sequence[Buffer]) -> list[bytes | memoryview]:
    """Join neighbours as long as they stay small together; leave large parts as views of bytes."""
    buffers: list[bytes | memoryview] = []
    small: list[Buffer] = [head]
    small_bytes = len(head)
    for part in parts:
        view = memoryview(part).cast("B")
        if small_bytes + view.nbytes <= JOINED_BYTES_MAX:
            small.append(view)
            small_bytes += view.nbytes
            continue
        if small:
            buffers.append(b"".join(small))
        if view.nbytes > JOINED_BYTES_MAX:
            buffers.append(view)
            small, small_bytes = [], 0
        else:
            small, small_bytes = [view], view.nbytes
    if small:
        buffers.append(b"".join(small))
    return buffers


def error_sentence(response: HttpResponse) -> str:
    """Return what an `error_response` says, or one of OpenAI's API; "" for any other response."""
    if response.status < 400 or not isinstance(response.body, bytes):
        return ""
    try:
        document = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return ""
    sentence = document.get("error") if isinstance(document, dict) else None
    if isinstance(sentence, dict):
        sentence = sentence.get("message")
    return sentence if isinstance(sentence, str) else ""
