"""What the endpoints of SageMaker and of Vertex AI share: their calls as those of the v2 protocol.

A call of theirs is given the method, the path and the header that say the same in v2, so that one
handler answers both. Source: the SageMaker and Vertex AI endpoints of Triton.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import quote

from .errors import invalid_argument
from .http_request import HttpRequest
from .http_response import HttpResponse, error_response
from .wording import quoted

HEADER_LENGTH: Final = b"inference-header-content-length"
DIGITS_MAX: Final = 19
"""Digits of the largest signed 64-bit number."""

_NOT_PASSED_ON: Final = frozenset({HEADER_LENGTH, b"accept-encoding"})
"""Headers that mean nothing to these endpoints: they have another one for the length of the JSON
part, and what stands between them and their clients may not tell those how an answer is coded."""


@dataclass(frozen=True, slots=True)
class V2Call:
    """A call of the v2 protocol.

    Attributes:
      method: Its method.
      path: Its path, percent-encoded.
    """

    method: bytes
    path: bytes


@final
class BinaryType:
    """The media type that a cloud has for a JSON part with binary tensors behind it.

    Args:
      cloud: The cloud, as the type spells it.
    """

    def __init__(self, cloud: str) -> None:
        self._name = f"application/vnd.{cloud}-triton.binary+json"
        self._pattern = re.compile(
            re.escape(self._name.encode()) + rb"[ \t]*(?:;[ \t]*json-header-size=(.*))?",
            re.IGNORECASE | re.DOTALL,
        )

    def length_of(self, request: HttpRequest, body_bytes: int | None) -> bytes | None:
        """Return the length of the JSON part, as `Inference-Header-Content-Length` has it.

        Args:
          request: The request.
          body_bytes: Bytes of its body; None while that is unknown.

        Returns:
          Decimal digits; None for another type, with which all of the body is JSON.

        Raises:
          RequestError: INVALID_ARG; the parameter is missing, no integer, or above the body's size.
        """
        content_type = request.headers.get(b"content-type", b"")
        found = self._pattern.fullmatch(content_type.strip(b" \t"))
        if found is None:
            return None
        value: bytes = (found[1] or b"").strip(b' \t"')
        if not value.isdigit() or len(value) > DIGITS_MAX:
            raise invalid_argument(
                f"the Content-Type {self._name} needs json-header-size=<bytes of the JSON part>, "
                f"got {quoted(content_type.decode('latin-1'))}"
            )
        coded = b"content-encoding" in request.headers  # the length is that of the decoded part
        if body_bytes is not None and not coded and int(value) > body_bytes:
            raise invalid_argument(
                f"json-header-size in the Content-Type must be in the range 0 to {body_bytes}, "
                f"the content length, got {int(value)}"
            )
        return value

    def headers(self, header_length: int) -> list[tuple[bytes, bytes]]:
        """Return the headers of a response whose JSON part has this length in bytes."""
        return [(b"Content-Type", f"{self._name};json-header-size={header_length}".encode())]


def readdress(request: HttpRequest, call: V2Call, header_length: bytes | None = None) -> None:
    """Make a request that of a v2 call; nothing but method, path and headers changes.

    Args:
      request: The request; its raw headers, in which keys are looked for, stay.
      call: The call.
      header_length: What `BinaryType.length_of` returned.
    """
    headers = {name: value for name, value in request.headers.items() if name not in _NOT_PASSED_ON}
    if header_length is not None:
        headers[HEADER_LENGTH] = header_length
    request.method = call.method
    request.path = call.path
    request.headers = headers


def model_path(model: str, call: str) -> bytes:
    """Return the v2 path of a call of a model."""
    return b"/v2/models/%b/%b" % (quote(model, safe="").encode(), call.encode())


def no_such_route(request: HttpRequest, routes: str) -> HttpResponse:
    """Return the answer to a path that means nothing here; 400, as Triton's endpoints have it."""
    path = quoted(request.path.decode("latin-1"))
    return error_response(400, f"expected the path of {routes}, got {path}")
