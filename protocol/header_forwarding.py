"""Headers that reach the model: those whose names match a pattern become request parameters.

Source: `--http-header-forward-pattern` and `--grpc-header-forward-pattern` of Triton. Patterns are
of RE2 there, too: however one is made, matching takes time in proportion to the name.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, final

import re2

from .errors import invalid_argument
from .http_request import HttpRequest
from .request_parameters import RESERVED_PREFIX
from .requests import Parameters
from .wording import quoted

RESERVED_NAMES: Final = frozenset(
    (
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    )
)
"""Parameters that mean something to the server, which a header must not set."""
GRPC_ERROR_KEY: Final = "triton_grpc_error"
"""Metadata key with which a client asks that errors end its stream as gRPC errors; it is meant for
the server, so it is neither forwarded nor refused."""

KEPT_NAMES_MAX: Final = 1024
"""Names whose match is kept; clients of one service send the same few dozen."""

IGNORES_CASE: Final = "(?i)"
"""What Triton puts in front of each pattern; one that begins with "(?-i)" takes it back."""


@final
class HeaderForwarding:
    """Picks what is forwarded; made once at the start.

    Args:
      pattern: Searched for in names, without regard to case unless it begins with "(?-i)".
      option: The option that it comes from, for messages.

    Raises:
      RequestError: INVALID_ARG; it is no pattern of RE2.
    """

    def __init__(self, pattern: str, option: str) -> None:
        options = re2.Options()
        options.log_errors = False
        try:
            compiled = re2.compile(IGNORES_CASE + pattern, options)
        except re2.error as error:
            raise invalid_argument(
                f"{option} must be a regular expression of RE2, got {quoted(pattern)}: "
                f"{_reason(error)}"
            ) from None
        self._matches = lru_cache(KEPT_NAMES_MAX)(lambda name: bool(compiled.search(name)))

    def _forwards(self, name: str) -> bool:
        if not self._matches(name):
            return False
        lower = name.lower()
        if lower in RESERVED_NAMES or lower.startswith(RESERVED_PREFIX):
            raise invalid_argument(
                f"the header {quoted(name)} would be forwarded as a parameter, but that name is "
                "reserved"
            )
        return True

    def http_parameters(self, request: HttpRequest) -> Parameters:
        """Return the parameters that the headers of an HTTP request make.

        Args:
          request: Its headers count in the case they were sent in; of several the last does.
            Values are read as UTF-8, and as Latin-1 where they are not.

        Raises:
          RequestError: INVALID_ARG; a name that would be forwarded is reserved.
        """
        parameters: Parameters = {}
        for raw_name, value in request.raw_headers:
            name = raw_name.decode("latin-1")
            if self._forwards(name):
                try:
                    parameters[name] = value.decode()
                except UnicodeDecodeError:
                    parameters[name] = value.decode("latin-1")
        return parameters

    def grpc_parameters(self, metadata: Mapping[str, Sequence[str | bytes]]) -> Parameters:
        """Return the parameters that the metadata of a gRPC call make.

        Args:
          metadata: Values by lower-case key; the last of a key counts. Binary ones are forwarded
            in base64, as they are sent.

        Raises:
          RequestError: INVALID_ARG; a key that would be forwarded is reserved.
        """
        parameters: Parameters = {}
        for key, values in metadata.items():
            if key != GRPC_ERROR_KEY and self._forwards(key):
                value = values[-1]
                if isinstance(value, bytes):
                    value = b64encode(value).decode("ascii")
                parameters[key] = value
        return parameters


def header_forwarding(pattern: str, option: str) -> HeaderForwarding | None:
    """Return what forwards headers that match a pattern, or None for the pattern "".

    Raises:
      RequestError: INVALID_ARG; see `HeaderForwarding`.
    """
    return HeaderForwarding(pattern, option) if pattern else None


def _reason(error: re2.error) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
