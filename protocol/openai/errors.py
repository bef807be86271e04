"""Errors in the shape of OpenAI's API, which its clients turn into exceptions by status."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import orjson

from ..errors import ErrorCode, PromptTooLongError, RequestError
from ..http_response import JSON_CONTENT_TYPE, HttpResponse
from ..wording import quoted, shown

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"
OVERLOADED: Final = "overloaded_error"
MODEL_NOT_FOUND: Final = "model_not_found"
"""There is no such model, or none that can do it."""
TOO_LONG: Final = "context_length_exceeded"
"""A prompt or an input is too long for the model; programs that shorten it look for this."""
RETRY_AFTER_S: Final = 1.0
"""When a refused request is tried again if nothing better is known: a queue may have moved on."""


class OpenAiError(Exception):
    """One request cannot be answered; says so to the client.

    Attributes:
      status: The HTTP status.
      message: One sentence: what was expected and what came.
      type: The class of the error.
      param: The member of the request that it is about, or None.
      code: What programs tell it by, or None.
      retry_after_s: When it is worth to try again, in seconds from now; None says nothing.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,  # noqa: A002 - the member's name
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object that reports it."""
        param = self.param and self.param.encode(errors="backslashreplace").decode()
        error = {"message": self.message, "type": self.type, "param": param, "code": self.code}
        return {"error": error}

    @property
    def body(self) -> bytes:
        """That object as JSON."""
        return orjson.dumps(self.document)

    def response(self) -> HttpResponse:
        """Return the answer that reports it."""
        headers = [JSON_CONTENT_TYPE]
        if self.status == 401:
            headers.append((b"WWW-Authenticate", b"Bearer"))  # RFC 9110 11.6.1 asks for it
        if self.retry_after_s is not None:
            headers.append((b"Retry-After", b"%d" % max(1, ceil(self.retry_after_s))))
        return HttpResponse(self.status, headers, self.body)


def wrong(param: str, expected: str, value: object) -> OpenAiError:
    """Return the error for a member that is something else than was expected."""
    return OpenAiError(
        400, f"{quoted(param)} must be {expected}, got {shown(value)}", param=param[:128]
    )


def from_request_error(error: RequestError, *, param: str | None = None) -> OpenAiError:
    """Return what OpenAI's API says for an error of the server or of a model."""
    code = error.code
    if code is ErrorCode.NOT_FOUND:
        return OpenAiError(404, error.message, param=param or "model", code=MODEL_NOT_FOUND)
    if code is ErrorCode.UNAVAILABLE:
        return OpenAiError(
            503,
            error.message,
            type=OVERLOADED,
            code="overloaded",
            retry_after_s=error.retry_after_s or RETRY_AFTER_S,
        )
    if code in {ErrorCode.INTERNAL, ErrorCode.UNKNOWN}:
        return OpenAiError(500, error.message, type=SERVER_ERROR, code="internal_error")
    too_long = isinstance(error, PromptTooLongError)
    return OpenAiError(400, error.message, param=param, code=TOO_LONG if too_long else None)
