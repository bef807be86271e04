"""What the calls for log settings ask of whoever logs, and the line that each call leaves."""

from __future__ import annotations

import logging
from typing import Final, Protocol, final

import trio

from ..protocol.http_request import HttpRequest
from ..protocol.log_settings import LogSettings
from ..protocol.requests import InferRequest

_log = logging.getLogger("tritrio.calls")

PATH_CHARS_MAX: Final = 256
"""Of a path in a line: names are shorter, and clients can send what they like."""

ID_CHARS_MAX: Final = 256
"""Of a request's id in a line, likewise: thousands of lines may wait for a slow file."""


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
        self, call: HttpRequest, status: int, arrived_s: float, request: InferRequest | None
    ) -> None:
        """Write the line of one HTTP request, as `answered` does."""
        path = call.path.decode("latin-1")
        self.answered(f"HTTP {call.method.decode()} {path}", status, arrived_s, request)

    def answered(
        self, call: str, status: int | str, arrived_s: float, request: InferRequest | None = None
    ) -> None:
        """Write the line of one call.

        Args:
          call: The protocol, method and path.
          status: What it was answered with.
          arrived_s: When it came, in trio's seconds.
          request: Which inference it was, if it was one.
        """
        took_ms = (trio.current_time() - arrived_s) * 1e3
        _log.debug("%s %s, %.3f ms", call[:PATH_CHARS_MAX], status, took_ms, extra=about(request))


def about(request: InferRequest | None) -> dict[str, str]:
    """Return the `extra` of a line about a request: its id and its model, as it names them."""
    if request is None:
        return {}
    return {
        "request_id": request.id[:ID_CHARS_MAX],
        "model": request.model_name,
        "version": request.model_version,
    }
