"""What the calls for log settings ask of whoever logs, and the line that each call leaves."""

from __future__ import annotations

import logging
from typing import Final, Protocol, final

import orjson
import trio

from ..protocol.binary_codec import parse_header_length
from ..protocol.errors import RequestError
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import HttpResponse, error_sentence
from ..protocol.http_session import HttpFailure
from ..protocol.infer_wire import peek_request_id
from ..protocol.log_settings import LogSettings
from ..protocol.requests import InferRequest
from ..protocol.tensors import Buffer
from .http_stream import HttpStream

_log = logging.getLogger("tritrio.calls")

PATH_CHARS_MAX: Final = 256
"""Of a path in a line: names are shorter, and clients can send what they like."""

ID_CHARS_MAX: Final = 256
"""Of a request's id in a line, likewise: thousands of lines may wait for a slow file."""


REASON_CHARS_MAX: Final = 1024
"""Of a reason in a line, likewise: ours are a sentence, those of a model may be a traceback."""

PEEKED_BYTES_MAX: Final = 64 * 1024
"""JSON up to this size is searched for a request's id, which takes a fraction of a millisecond."""

GONE: Final = "the connection ended before the answer"
"""Why a call has no status of its own."""


class LogControl(Protocol):
    """Holds the settings; a change holds from the next line on."""

    @property
    def settings(self) -> LogSettings:
        """What holds now."""

    def update(self, settings: LogSettings) -> None:
        """Let these settings hold; the file stays what it is."""


@final
class CallLog:
    """Writes a verbose line for every call that has been answered.

    Attributes:
      enabled: Whether to; whoever answers a call looks at this and does nothing else if not.
    """

    __slots__ = ("enabled",)

    def __init__(self) -> None:
        self.enabled = False

    def answered_http(
        self,
        call: HttpRequest,
        answer: HttpResponse | HttpStream | None,
        arrived_s: float,
        request: InferRequest | None = None,
    ) -> None:
        """Write the line of one HTTP request, as `answered` does.

        Args:
          call: The request.
          answer: What it was answered with; None for nothing.
          arrived_s: When it came, in trio's seconds.
          request: Which inference it was, if that is known; else its id is looked for in the body.
        """
        text = f"HTTP {call.method.decode()} {call.path.decode('latin-1')}"
        extra = {"request_id": _id_in_body(call)} if request is None else about(request)
        if answer is None:
            self.answered(text, "CANCELLED", arrived_s, extra, reason=GONE)
        else:
            reason = answer.reason if isinstance(answer, HttpStream) else error_sentence(answer)
            self.answered(text, answer.status, arrived_s, extra, reason=reason)

    def refused_http(self, failure: HttpFailure) -> None:
        """Write the line of an HTTP request that was refused before all of it was read."""
        now_s = trio.current_time()
        self.answered("HTTP request, not read", failure.status, now_s, reason=failure.message)

    def answered(
        self,
        call: str,
        status: int | str,
        arrived_s: float,
        extra: dict[str, str] | None = None,
        *,
        reason: str = "",
    ) -> None:
        """Write the line of one call.

        Args:
          call: The protocol, method and path.
          status: What it was answered with.
          arrived_s: When it came, in trio's seconds.
          extra: Which inference it was, if it was one: see `about`.
          reason: Why it was refused or failed, if it was.
        """
        took_ms = (trio.current_time() - arrived_s) * 1e3
        call, reason = call[:PATH_CHARS_MAX], reason[:REASON_CHARS_MAX].rstrip()
        if not reason:
            _log.debug("%s %s, %.3f ms", call, status, took_ms, extra=extra)
            return
        extra = {**(extra or {}), "reason": reason}
        _log.debug("%s %s, %.3f ms: %s", call, status, took_ms, reason, extra=extra)


def about(request: InferRequest | None) -> dict[str, str]:
    """Return the `extra` of a line about a request: its id and its model, as it names them."""
    if request is None:
        return {}
    return {
        "request_id": request.id[:ID_CHARS_MAX],
        "model": request.model_name,
        "version": request.model_version,
    }


def about_message(message: Buffer) -> dict[str, str]:
    """Return the `extra` of a line about a ModelInferRequest that was not read, or not kept."""
    return {"request_id": peek_request_id(message)[:ID_CHARS_MAX]}


def _id_in_body(call: HttpRequest) -> str:
    """Return the id in the JSON of a body; "" if it has none, or is too large to look."""
    body = call.body
    try:
        length = parse_header_length(
            call.headers.get(b"inference-header-content-length"), len(body)
        )
        length = len(body) if length is None else length
        document = orjson.loads(body[:length]) if length <= PEEKED_BYTES_MAX else None
    except (RequestError, orjson.JSONDecodeError):
        return ""
    name = document.get("id") if isinstance(document, dict) else None
    return name[:ID_CHARS_MAX] if isinstance(name, str) else ""
