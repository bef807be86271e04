"""The head of one HTTP/1.1 request: its limits, and the checks between llhttp and `HttpRequest`.

llhttp refuses most malformed heads; the rules here are what it leaves open of RFC 9110 and
RFC 9112, above all those that keep two servers from reading one stream of bytes differently.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from .http_response import HttpResponse

if TYPE_CHECKING:
    from .trace import Trace

HEAD_BYTES_MAX: Final = 64 * 1024
"""Request line and headers; eight times the 8 KiB that proxies commonly forward."""
HEADERS_MAX: Final = 256
"""Headers of one request; browsers, proxies and tracing together add a few dozen."""
TARGET_BYTES_MAX: Final = 8 * 1024
"""Request target; RFC 9112 asks for at least 8,000 bytes, and our longest is a few names."""
BODY_BYTES_MAX: Final = 16 * 1024**3
"""One body; tensors above 2 GiB are legal, and the byte budget of the server stops most sooner."""
CHUNKS_MAX: Final = 65_536
"""Non-empty chunks of one body, Triton's limit: tiny ones cost far more than they carry."""
CONTENT_LENGTH_DIGITS_MAX: Final = 19
"""Digits of the largest signed 64-bit number."""

HTTP_1_1: Final = b"HTTP/1.1"
HTTP_1_0: Final = b"HTTP/1.0"
_SHOWN_BYTES: Final = 16  # of a faulty version, in the message that refuses it
_UNREPEATABLE: Final = (b"content-length", b"host", b"transfer-encoding")


@dataclass(slots=True)
class HttpRequest:
    """One request: complete as an event, or only its head where `admit` sees it.

    Attributes:
      method: The method as sent, upper case, such as `b"POST"`.
      target: The request target in origin form, or `b"*"`; an absolute URL is cut to its path.
      path: The target up to its query, still percent-encoded.
      version: `HTTP_1_1` or `HTTP_1_0`.
      headers: Lower-case name -> value without outer blanks; repeats are joined with `b", "`.
        Shared with later requests of the same head, so it must not be changed.
      raw_headers: (name, value) in the order sent, names in the case sent; shared likewise.
      content_length: The announced body size in bytes; None without a Content-Length.
      keep_alive: Whether the client lets the connection serve another request.
      expects_continue: Whether the client holds its body back until it is told to send it.
      body: The whole body, owned by the receiver: `bytes` if it came in one segment, else a
        `bytearray`; empty while only the head is known.
      received_ns: When its head was there, by the monotonic clock, if anything may be traced.
      trace: The trace of the inference that it asks for, if that is sampled.
    """

    method: bytes
    target: bytes
    path: bytes
    version: bytes
    headers: dict[bytes, bytes]
    raw_headers: list[tuple[bytes, bytes]]
    content_length: int | None
    keep_alive: bool
    expects_continue: bool
    body: bytes | bytearray = b""
    received_ns: int = 0
    trace: Trace | None = None

    def same_again(self) -> HttpRequest:
        """Return a request with this head and no body yet."""
        return HttpRequest(
            self.method,
            self.target,
            self.path,
            self.version,
            self.headers,
            self.raw_headers,
            self.content_length,
            self.keep_alive,
            self.expects_continue,
        )


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one connection may send; the constants of this module say why each default is so.

    Attributes:
      head_bytes_max: Request line, headers and their line ends; beyond it 431.
      headers_max: Header lines; beyond it 431.
      target_bytes_max: Request target; beyond it 414.
      body_bytes_max: One body; beyond it 400.
      chunks_max: Non-empty chunks of one body; beyond it 400.
    """

    head_bytes_max: int = HEAD_BYTES_MAX
    headers_max: int = HEADERS_MAX
    target_bytes_max: int = TARGET_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    chunks_max: int = CHUNKS_MAX


class Refused(Exception):  # noqa: N818 - a verdict on the client, not an error of ours
    """The connection cannot go on; raised by the parsers, caught by the session.

    Attributes:
      status: The status to answer with.
      message: The text to answer with.
      own_response: The answer, if it is not the one of the v2 protocol.
    """

    def __init__(self, status: int, message: str, own_response: HttpResponse | None = None) -> None:
        super().__init__(message)
        self.status: Final = status
        self.message: Final = message
        self.own_response: Final = own_response


def feed(parser: HttpRequestParser, data: bytes | memoryview) -> None:
    """Hand bytes to a parser; a fault it finds is refused with 400."""
    try:
        parser.feed_data(data)
    except HttpParserUpgrade:
        pass  # An offer to change protocols may be ignored: RFC 9110 7.8.
    except HttpParserError as error:
        raise Refused(400, f"expected an HTTP/1.1 request, got a fault in it: {error}") from error


def parse_head(head: bytes, limits: HttpLimits) -> HttpRequest:
    """Turn a whole head into a request without its body.

    Args:
      head: From the first byte of the request line to the empty line, inclusive.
      limits: What the client may send.

    Raises:
      Refused: The head is malformed, ambiguous or over a limit.
    """
    line = parse_request_line(head, limits)
    fields = _Fields()
    feed(HttpRequestParser(fields), head)
    return _checked(line, fields.raw, limits)


def parse_request_line(head: bytes, limits: HttpLimits) -> tuple[bytes, bytes, bytes]:
    """Return method, target in origin form, and version; which characters they hold is unchecked.

    Args:
      head: The first bytes of a head, the end of its first line among them.
      limits: What the client may send.

    Raises:
      Refused: The line does not have this form, or is over a limit.
    """
    end = head.find(b"\n")
    if not head.startswith(b"\r", end - 1):
        raise Refused(400, "expected CR LF at the end of the request line, got LF alone")
    parts = head[: end - 1].split(b" ")
    if len(parts) != 3:
        raise Refused(400, "expected a request line of method, target and HTTP version")
    method, target, version = parts
    if version not in {HTTP_1_1, HTTP_1_0}:
        status = 505 if version.startswith(b"HTTP/") else 400
        shown = version[:_SHOWN_BYTES].decode("latin-1")
        raise Refused(status, f"expected HTTP/1.1 or HTTP/1.0, got {shown!r}")
    if method == b"CONNECT":
        raise Refused(501, "this server is no proxy: CONNECT is not supported")
    if len(target) > limits.target_bytes_max:
        raise target_too_long(limits)
    if not target.startswith(b"/") or b"#" in target:
        target = _origin_form(target)
    return method, target, version


class _Fields:
    """Where the parser puts the headers of one head."""

    __slots__ = ("raw",)

    def __init__(self) -> None:
        self.raw: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.raw.append((name, value.rstrip()))  # The parser leaves trailing blanks on.


def _checked(
    line: tuple[bytes, bytes, bytes], raw: list[tuple[bytes, bytes]], limits: HttpLimits
) -> HttpRequest:
    """Check what llhttp leaves open in the headers it has accepted."""
    method, target, version = line
    if len(raw) > limits.headers_max:
        raise Refused(431, f"a request may have {limits.headers_max} headers, got {len(raw)}")
    headers = {name.lower(): value for name, value in raw}
    if len(headers) != len(raw):
        headers = _join_repeated(raw)
    is_1_1 = version == HTTP_1_1
    if is_1_1 and b"host" not in headers:
        raise Refused(400, "expected a Host header, as HTTP/1.1 requires, got none")
    content_length = None
    if b"content-length" in headers:
        content_length = _content_length(headers[b"content-length"], limits)
    elif b"transfer-encoding" in headers:
        _check_transfer_encoding(headers[b"transfer-encoding"], version)
    keep_alive = is_1_1
    if b"connection" in headers:
        keep_alive = _keep_alive(headers[b"connection"], default=is_1_1)
    expects_continue = False
    if is_1_1 and b"expect" in headers:  # An HTTP/1.0 client could not read an interim answer.
        if headers[b"expect"].lower() != b"100-continue":
            raise Refused(417, "the only expectation known is 100-continue, got another")
        expects_continue = bool(content_length) or b"transfer-encoding" in headers
    return HttpRequest(
        method,
        target,
        target.split(b"?", 1)[0],
        version,
        headers,
        raw,
        content_length,
        keep_alive,
        expects_continue,
    )


def target_too_long(limits: HttpLimits) -> Refused:
    """Return the refusal of a request target beyond its limit."""
    return Refused(414, f"a request target may have {limits.target_bytes_max} bytes, got more")


def path_of_url(path: bytes) -> bytes:
    """Return a path as it is, and that of an absolute URL, which some servers pass on as a path."""
    if not path.startswith(b"/"):
        with suppress(Refused):
            return _origin_form(path)
    return path


def _origin_form(target: bytes) -> bytes:
    """Return the path and query of an absolute URL (RFC 9112 3.2.2), or `b"*"` as it is."""
    if target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    if b"#" in target or not separator or scheme.lower() not in {b"http", b"https"}:
        raise Refused(400, "expected a path or an http URL without fragment as request target")
    authority = rest.split(b"/", 1)[0].split(b"?", 1)[0]
    reduced = rest[len(authority) :]
    return reduced if reduced.startswith(b"/") else b"/" + reduced


def _join_repeated(raw: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in raw:
        values.setdefault(name.lower(), []).append(value)
    for name in _UNREPEATABLE:
        if len(values.get(name, ())) > 1:
            raise Refused(400, f"expected one {name.decode()} header, got {len(values[name])}")
    return {name: b", ".join(several) for name, several in values.items()}


def _content_length(text: bytes, limits: HttpLimits) -> int:
    """Return the announced body size; llhttp has let nothing but digits pass."""
    if len(text) > CONTENT_LENGTH_DIGITS_MAX:
        limit = CONTENT_LENGTH_DIGITS_MAX
        raise Refused(400, f"Content-Length may have {limit} digits, got {len(text)}")
    size = int(text)
    if size > limits.body_bytes_max:
        raise Refused(400, f"a body may have {limits.body_bytes_max} bytes, got {size} announced")
    return size


def _check_transfer_encoding(coding: bytes, version: bytes) -> None:
    if version == HTTP_1_0:
        raise Refused(400, "expected no Transfer-Encoding in an HTTP/1.0 request, got one")
    if coding.lower() != b"chunked":
        raise Refused(501, "the only Transfer-Encoding known is chunked, got another")


def _keep_alive(connection: bytes, *, default: bool) -> bool:
    options = [option.strip() for option in connection.lower().split(b",")]
    return b"close" not in options and (default or b"keep-alive" in options)
