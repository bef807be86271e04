"""Requests as the endpoints of the clouds get them."""

from __future__ import annotations

from tritrio.protocol.http_request import HttpRequest

from .http_bytes import HOST, request_of


def http_request(
    method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> HttpRequest:
    """A whole request."""
    fields = {"content-length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
    head = f"{method} {path} HTTP/1.1\r\n".encode() + HOST + lines + b"\r\n"
    return request_of(head + body)
