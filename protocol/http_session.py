"""One HTTP/1.1 server connection as a sans-io session: bytes go in, whole requests come out.

llhttp polices the bytes; the session adds limits, and decides where a message ends and the next
begins. A head (request line and headers) is held until its empty line has come and then parsed at
once, by a parser of its own, so what a request means never depends on how its bytes were cut into
segments. A body with a Content-Length goes round the parser. No memory is set aside for what a
client merely announces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, final

from .http_chunked import ChunkDecoder
from .http_request import (
    HttpLimits,
    HttpRequest,
    Refused,
    parse_head,
    parse_request_line,
    target_too_long,
)
from .http_response import HttpResponse, error_response

__all__ = [
    "CONTINUE",
    "Admit",
    "HttpContinue",
    "HttpEvent",
    "HttpFailure",
    "HttpLimits",
    "HttpRequest",
    "HttpSession",
    "HttpState",
]

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What to write for an `HttpContinue`."""
BLANK_BYTES_MAX: Final = 8
"""CR and LF skipped before a request line: four empty lines, where old clients send one."""
REPEATED_HEAD_BYTES_MAX: Final = 4 * 1024
"""Longest head that is kept to recognise its repetition; ten thousand connections keep 40 MiB."""

_HEAD_END: Final = b"\r\n\r\n"
_A: Final = ord("A")
_Z: Final = ord("Z")


@dataclass(slots=True)
class HttpContinue:
    """The client waits before it sends a body: write `CONTINUE`, after all earlier answers."""


@dataclass(slots=True)
class HttpFailure:
    """The session cannot go on: answer with `response`, then close the connection.

    Attributes:
      status: The status of the answer.
      message: What it says.
      own_response: The answer, if it is not the one of the v2 protocol.
    """

    status: int
    message: str
    own_response: HttpResponse | None = None

    @property
    def response(self) -> HttpResponse:
        """The answer."""
        return self.own_response or error_response(self.status, self.message)


HttpEvent: TypeAlias = HttpRequest | HttpContinue | HttpFailure
Admit: TypeAlias = Callable[[HttpRequest], HttpFailure | None]


class HttpState(Enum):
    """What a session waits for, which decides the read timeout that applies."""

    IDLE = "the first byte of a request"
    HEAD = "the rest of a request head"
    BODY = "the rest of a request body"
    CLOSED = "nothing: the client asked to close after its last request, or left"
    FAILED = "nothing: a request was refused"


@final
class HttpSession:
    """The server's side of one connection; owns the bytes of the request it is reading.

    Args:
      limits: What the client may send.
      admit: Called once for each request, when its head is complete and before any
        `HttpContinue`; a failure it returns refuses the request there.
    """

    __slots__ = (
        "_admit",
        "_blank_bytes",
        "_body",
        "_body_bytes_missing",
        "_chunks",
        "_end",
        "_head",
        "_head_bytes",
        "_last_head",
        "_last_request",
        "_limits",
        "_line_checked",
        "_request",
    )

    def __init__(self, limits: HttpLimits, *, admit: Admit | None = None) -> None:
        self._limits = limits
        self._admit = admit
        self._end: HttpState | None = None  # CLOSED or FAILED
        self._blank_bytes = 0  # skipped before the request line
        self._head = bytearray()  # an unfinished head
        self._line_checked = False  # the request line in _head
        self._request: HttpRequest | None = None  # whose body is coming
        self._head_bytes = 0  # of _request
        self._last_head = b""
        self._last_request: HttpRequest | None = None  # its head alone
        self._body = bytearray()
        self._body_bytes_missing = 0
        self._chunks: ChunkDecoder | None = None

    @property
    def state(self) -> HttpState:
        """What the session waits for."""
        if self._end is not None:
            return self._end
        if self._request is not None:
            return HttpState.BODY
        return HttpState.HEAD if self._head else HttpState.IDLE

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of the unfinished request: its head, and its body as far as it has come."""
        if self._request is None:
            return len(self._head)
        chunks = self._chunks
        return self._head_bytes + len(self._body if chunks is None else chunks.body)

    @property
    def body_bytes_missing(self) -> int:
        """Bytes still to come of an announced body; 0 if none is, or if it is chunked."""
        return self._body_bytes_missing

    def receive_data(self, data: bytes) -> list[HttpEvent]:
        """Take the next bytes of the connection and say what they complete, in order.

        After an `HttpFailure`, or a request without `keep_alive`, data is discarded.

        Args:
          data: What was read, of any length; slices of it are copied.

        Returns:
          The events; as many as fit in `data` if the client pipelines.
        """
        events: list[HttpEvent] = []
        position = 0
        size = len(data)
        try:
            while position < size and self._end is None:
                if self._request is None:
                    position = self._receive_head(data, position, events)
                elif self._chunks is None:
                    position = self._receive_sized_body(data, position, events)
                else:
                    position = self._receive_chunked_body(self._chunks, data, position, events)
        except Refused as refusal:
            self.fail()
            events.append(HttpFailure(refusal.status, refusal.message, refusal.own_response))
        return events

    def receive_eof(self) -> list[HttpEvent]:
        """Take note that the client sends no more; a failure if it left within a request."""
        if self._end is not None:
            return []
        state = self.state
        if state is HttpState.IDLE:
            self._end = HttpState.CLOSED
            return []
        part = "head" if state is HttpState.HEAD else "body"
        message = f"expected the rest of the request {part}, got the end of the connection"
        self.fail()
        return [HttpFailure(400, message)]

    def fail(self) -> None:
        """Give up: let go of the unfinished request and discard what comes.

        For whoever runs the session and refuses more of it, such as after a read timeout.
        """
        self._end = HttpState.FAILED
        self._head = self._body = bytearray()
        self._request = self._chunks = None
        self._body_bytes_missing = 0

    def _receive_head(self, data: bytes, position: int, events: list[HttpEvent]) -> int:
        if self._head:
            return self._resume_head(data, position, events)
        if self._blank_bytes or not _A <= data[position] <= _Z:
            position = self._skip_blank_lines(data, position)
            if position == len(data):
                return position
        end = data.find(_HEAD_END, position) + len(_HEAD_END)
        if end < len(_HEAD_END) or end - position > self._limits.head_bytes_max:
            return self._resume_head(data, position, events)
        self._begin(data[position:end], events)
        return end

    def _skip_blank_lines(self, data: bytes, position: int) -> int:
        """Step over empty lines, which RFC 9112 2.2 tells to ignore, to what can be a method."""
        while position < len(data) and data[position] == b"\r\n"[self._blank_bytes % 2]:
            self._blank_bytes += 1
            position += 1
            if self._blank_bytes > BLANK_BYTES_MAX:
                raise Refused(400, "expected a request line, got one empty line after another")
        if position < len(data) and (self._blank_bytes % 2 or not _A <= data[position] <= _Z):
            raise Refused(400, f"expected an HTTP/1.1 request, got byte {data[position]:#04x}")
        return position

    def _resume_head(self, data: bytes, position: int, events: list[HttpEvent]) -> int:
        """Hold what came of a head; parse it once it is whole."""
        head = self._head
        held = len(head)
        limit = self._limits.head_bytes_max
        head += data[position : position + limit + 1 - held]
        end = head.find(_HEAD_END, max(0, held - len(_HEAD_END) + 1)) + len(_HEAD_END)
        if len(_HEAD_END) <= end <= limit:
            self._head = bytearray()
            self._line_checked = False
            self._begin(bytes(head[:end]), events)
            return position + end - held
        if not self._line_checked and head.find(b"\n", held, limit) >= 0:
            # Another protocol is refused when it comes, not when the wait for a head times out.
            parse_request_line(bytes(head), self._limits)
            self._line_checked = True
        if len(head) > limit:
            if not self._line_checked:
                raise target_too_long(self._limits)
            raise Refused(431, f"request line and headers may have {limit} bytes, got more")
        return len(data)

    def _begin(self, head: bytes, events: list[HttpEvent]) -> None:
        """Start the request of a whole head; it is complete at once if it has no body."""
        self._blank_bytes = 0
        if head == self._last_head and self._last_request is not None:
            # Clients repeat their heads, and parsing one costs ten times this comparison.
            request = self._last_request.same_again()
        else:
            request = parse_head(head, self._limits)
            if len(head) <= REPEATED_HEAD_BYTES_MAX:
                self._last_head = head
                self._last_request = request.same_again()
        if self._admit is not None:
            failure = self._admit(request)
            if failure is not None:
                raise Refused(failure.status, failure.message, failure.own_response)
        if request.content_length is not None:
            self._body_bytes_missing = request.content_length
        elif b"transfer-encoding" in request.headers:
            self._chunks = ChunkDecoder(self._limits)
        if not self._body_bytes_missing and self._chunks is None:
            self._complete(request, events)
            return
        self._request = request
        self._head_bytes = len(head)
        if request.expects_continue:
            events.append(HttpContinue())

    def _receive_sized_body(self, data: bytes, position: int, events: list[HttpEvent]) -> int:
        request = self._request
        assert request is not None
        end = position + self._body_bytes_missing
        if end > len(data):
            self._body += memoryview(data)[position:]
            self._body_bytes_missing = end - len(data)
            return len(data)
        if self._body:
            self._body += memoryview(data)[position:end]
            request.body = self._body
            self._body = bytearray()
        else:
            request.body = data[position:end]
        self._body_bytes_missing = 0
        self._complete(request, events)
        return end

    def _receive_chunked_body(
        self, chunks: ChunkDecoder, data: bytes, position: int, events: list[HttpEvent]
    ) -> int:
        request = self._request
        assert request is not None
        position = chunks.receive_data(data, position)
        if chunks.is_complete:
            request.body = chunks.body
            self._chunks = None
            self._complete(request, events)
        return position

    def _complete(self, request: HttpRequest, events: list[HttpEvent]) -> None:
        self._request = None
        if not request.keep_alive:
            self._end = HttpState.CLOSED
        events.append(request)
