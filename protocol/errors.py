"""The errors a client can see, each with its status on every transport.

A fault of the client, the model or the server that ends one request is a `RequestError`: a value
that travels to whoever waits for the answer, or an exception where a parser stands deep.
Source of the statuses: the KServe v2 extensions as served by Triton.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from grpclib.const import Status


class ErrorCode(Enum):
    """What went wrong, in the terms of `TRITONSERVER_Error_Code`.

    Attributes:
      http_status: The HTTP status code the error is answered with.
      grpc_status: The gRPC status the error is answered with.
      display_name: How model reasons and start-up errors spell the code.
    """

    UNKNOWN = ("Unknown", 400, Status.UNKNOWN)
    INTERNAL = ("Internal", 500, Status.INTERNAL)
    NOT_FOUND = ("Not found", 404, Status.NOT_FOUND)
    INVALID_ARG = ("Invalid argument", 400, Status.INVALID_ARGUMENT)
    UNAVAILABLE = ("Unavailable", 503, Status.UNAVAILABLE)
    UNSUPPORTED = ("Unsupported", 501, Status.UNIMPLEMENTED)
    ALREADY_EXISTS = ("Already exists", 400, Status.ALREADY_EXISTS)
    CANCELLED = ("Cancelled", 400, Status.CANCELLED)

    def __init__(self, display_name: str, http_status: int, grpc_status: Status) -> None:
        self.display_name: Final = display_name
        self.http_status: Final = http_status
        self.grpc_status: Final = grpc_status

    def __int__(self) -> int:
        """Return the number of the code in `TRITONSERVER_Error_Code`."""
        return list(ErrorCode).index(self)


class FailureReason(Enum):
    """Why a request failed, as the `reason` label of `nv_inference_request_failure` says it."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class RequestError(Exception):
    """One request (or one load) cannot be answered; says so to the client.

    Attributes:
      code: The class of the error; decides the status on every transport.
      message: One sentence: what was expected and what came.
      reason: Where the failure is counted; OTHER unless a scheduler or a backend says more.
      retry_after_s: When it is worth to try again, in seconds from now; None says nothing.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        reason: FailureReason = FailureReason.OTHER,
        retry_after_s: float | None = None,
    ) -> None:
        # Models and paths bring text that no transport can carry: lone surrogates.
        message = message.encode(errors="backslashreplace").decode()
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.retry_after_s = retry_after_s


class PromptTooLongError(RequestError):
    """A prompt has more tokens than the model can take."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_ARG, message)


def invalid_argument(message: str) -> RequestError:
    """Return the most common error: the client sent something that cannot be served."""
    return RequestError(ErrorCode.INVALID_ARG, message)
