"""Requests as bytes, and what a session makes of them."""

from tritrio.protocol.http_session import (
    HttpEvent,
    HttpFailure,
    HttpLimits,
    HttpRequest,
    HttpSession,
)

HOST = b"Host: a\r\n"
GET = b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST /i HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
DEFAULT = HttpLimits()
SMALL = HttpLimits(
    head_bytes_max=200, headers_max=5, target_bytes_max=40, body_bytes_max=64, chunks_max=4
)


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /i HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


def chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    return CHUNKED + b"".join(framed) + b"0\r\n" + trailers + b"\r\n"


def with_header(line: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\n" + HOST + line + b"\r\n\r\n"


def with_line(line: bytes) -> bytes:
    return line + b"\r\n" + HOST + b"\r\n"


def head_of(size: int) -> bytes:
    return GET[:-2] + b"X: " + b"x" * (size - len(GET) - 5) + b"\r\n\r\n"


def events_of(*pieces: bytes, limits: HttpLimits = DEFAULT) -> list[HttpEvent]:
    session = HttpSession(limits)
    return [event for piece in pieces for event in session.receive_data(piece)]


def request_of(data: bytes) -> HttpRequest:
    (event,) = events_of(data)
    assert isinstance(event, HttpRequest), event
    return event


def failure_of(data: bytes, limits: HttpLimits = DEFAULT) -> HttpFailure:
    events = events_of(data, limits=limits)
    assert isinstance(events[-1], HttpFailure), events
    return events[-1]


def one_by_one(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]
