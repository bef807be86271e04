"""Headers that reach the model: those whose names match a pattern become request parameters.

Source: `--http-header-forward-pattern` and `--grpc-header-forward-pattern` of Triton. Its patterns
are of RE2, ours of Python's `re`: what both know means the same, and what Python does not know is
refused at the start.
"""

from __future__ import annotations

import re
import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, final

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

NAME_CHARACTERS_MAX: Final = 128
"""Longer names are not forwarded: a pattern may look at a name as many times as it has characters,
and then as many times again for each of its open repeats."""
KEPT_NAMES_MAX: Final = 1024
"""Names whose match is kept; clients of one service send the same few dozen."""

_CASE_COUNTS = "(?-i)"
_REPEAT = re.compile(r"[*+]|\{\d*,?\d+\}|\{\d+,\}")
_CHOICE = re.compile(r"[*+?|]|\{\d*,\d*\}")
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


@final
class HeaderForwarding:
    """Picks what is forwarded; made once at the start.

    Args:
      pattern: Searched for in names, without regard to case unless it begins with "(?-i)".
      option: The option that it comes from, for messages.

    Raises:
      RequestError: INVALID_ARG; it is no pattern, or one whose matching may take for ever.
    """

    def __init__(self, pattern: str, option: str) -> None:
        flags = 0 if pattern.startswith(_CASE_COUNTS) else re.IGNORECASE
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # [[:alpha:]] would mean another thing
            try:
                compiled = re.compile(pattern.removeprefix(_CASE_COUNTS), flags)
            except (re.error, FutureWarning, OverflowError, RecursionError) as error:
                raise invalid_argument(
                    f"{option} must be a regular expression of Python, got {quoted(pattern)}: "
                    f"{error}"
                ) from None
        if _repeats_a_choice(pattern):
            raise invalid_argument(
                f"{option} may not repeat a group that itself has a repeat or a choice, since "
                f"matching it may take for ever, got {quoted(pattern)}"
            )
        self._matches = lru_cache(KEPT_NAMES_MAX)(lambda name: bool(compiled.search(name)))

    def _forwards(self, name: str) -> bool:
        if len(name) > NAME_CHARACTERS_MAX or not self._matches(name):
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


def _repeats_a_choice(pattern: str) -> bool:
    """Whether a group that is repeated holds a repeat or a choice itself.

    Such a group can match one text in a number of ways that doubles with every character, all of
    which a matcher that goes back tries. Without one the steps stay a power of the text's length.
    """
    bare = _ESCAPE_OR_CLASS.sub("x", pattern).replace("(?", "(")
    choices = [False]  # in each group that is open, the whole pattern first
    for position, character in enumerate(bare):
        if character == "(":
            choices.append(False)
        elif character == ")" and len(choices) > 1:
            inner = choices.pop()
            if inner and _REPEAT.match(bare, position + 1):
                return True
            choices[-1] |= inner
        elif _CHOICE.match(bare, position):
            choices[-1] = True
    return False
