"""The responses, senders and errors a Python model works with.

Their names and methods are those of Triton's `triton_python_backend_utils`.
"""

# ruff: noqa: SLF001 - these classes are one unit; what a model sees are their methods

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol, Self, final

from ..protocol.errors import ErrorCode
from ..protocol.request_rules import INT64_MAX
from ..protocol.requests import InferRequest, InferResponse, Parameters, ParameterValue
from ..protocol.wording import shown
from .pb_tensor import Tensor, TritonModelException

TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1


@final
class TritonError:
    """The error of a response.

    Args:
      message: One sentence for the client.
      code: One of the class's constants.
    """

    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(code, ErrorCode):
            raise TritonModelException(
                f"TritonError needs one of its codes, such as TritonError.INTERNAL, got {code!r}"
            )
        self._message = str(message)
        self._code = code

    def code(self) -> ErrorCode:
        """Return the code."""
        return self._code

    def message(self) -> str:
        """Return the message."""
        return self._message


@final
class InferenceResponse:
    """The answer to one request.

    Args:
      output_tensors: Outputs, listed at once; those the client did not ask for are dropped.
      error: Set if the request failed; then it is all that goes out.
      parameters: Name -> bool, int, float or str.

    Raises:
      TritonModelException: an argument is of another type; names the type found.
    """

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | float | str] | None = None,
    ) -> None:
        tensors = list(output_tensors)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(
                    f"output_tensors must hold Tensor objects, got {type(tensor).__name__}"
                )
        if error is not None and not isinstance(error, TritonError):
            raise TritonModelException(f"error must be a TritonError, got {type(error).__name__}")
        self._tensors = tensors
        self._error = error
        self._parameters = checked_parameters(parameters) if parameters else None

    @classmethod
    def _received(cls, source: InferResponse) -> Self:
        """Return what another model answered."""
        response = cls.__new__(cls)
        received = Tensor._received
        response._tensors = [received(tensor) for tensor in source.outputs]
        error = source.error
        response._error = None if error is None else TritonError(error.message, error.code)
        response._parameters = source.parameters or None
        return response

    def output_tensors(self) -> list[Tensor]:
        """Return the outputs."""
        return list(self._tensors)

    def has_error(self) -> bool:
        """Return whether the request failed."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return why the request failed, or None."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON text."""
        return json.dumps(self._parameters or {})


class Answering(Protocol):
    """The batch a request belongs to, as its sender sees it."""

    decoupled: bool

    def send(self, index: int, response: InferenceResponse | None, *, final: bool) -> None:
        """Give request `index` a response; None with `final` is a bare end."""

    def abandon(self, index: int) -> None:
        """End the answers of request `index` with an error: its sender is gone."""


@final
class InferenceResponseSender:
    """Sends the responses of one request, from any thread.

    A model with the decoupled transaction policy sends any number of responses and a final flag,
    also after `execute` returned. Any other model sends exactly one, before `execute` returns.
    """

    __slots__ = ("_answering", "_closed", "_index", "_lock", "_request", "_sent")

    def __init__(self, answering: Answering, index: int, request: InferRequest) -> None:
        self._answering = answering
        self._index = index
        self._request = request
        self._closed = False
        self._sent = 0
        self._lock = threading.Lock()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both; after an error the sender is as before.

        Raises:
          TritonModelException: `flags` is neither 0 nor TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            there is neither response nor flag, the sender is closed, or the transaction policy
            allows one response only.
        """
        if flags not in {0, TRITONSERVER_RESPONSE_COMPLETE_FINAL}:
            raise TritonModelException(
                "the flags of send() must be 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL, "
                f"flag {flags} is not supported"
            )
        if response is None and flags == 0:
            raise TritonModelException("send() needs a response when flags is zero, got none")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException(
                f"send() needs an InferenceResponse, got {type(response).__name__}"
            )
        with self._lock:
            if self._closed:
                raise TritonModelException(
                    "the response sender is closed: the request has had its final response"
                )
            if not self._answering.decoupled:
                self._send_only(response, flags)
                return
            self._answering.send(self._index, response, final=flags != 0)
            self._closed = flags != 0

    def _send_only(self, response: InferenceResponse | None, flags: int) -> None:
        if response is None and self._sent == 0:
            raise TritonModelException(
                "a response must be sent before the final flag, since the model is not decoupled"
            )
        if response is not None and self._sent == 1:
            raise TritonModelException(
                "only one response is allowed, since the model is not decoupled"
            )
        if response is not None:
            self._answering.send(self._index, response, final=True)
            self._sent = 1
        self._closed = flags != 0

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the answer any more."""
        return self._request.cancelled

    def _close(self) -> bool:
        """Close the sender; False if it was closed already."""
        with self._lock:
            was_open = not self._closed
            self._closed = True
        return was_open

    def __del__(self) -> None:
        # A model that loses a sender would leave its client waiting for ever.
        if self._answering.decoupled and not self._closed:
            self._closed = True
            with suppress(RuntimeError):  # the event loop, and with it every client, is gone
                self._answering.abandon(self._index)


def checked_parameters(parameters: Mapping[str, bool | int | float | str]) -> Parameters:
    """Return parameters as the plain Python objects that every transport can carry.

    Raises:
      TritonModelException: a name or a value is of another type; names both.
    """
    plain: Parameters = {}
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(
                f"the name of a parameter must be a str, got {type(name).__name__}"
            )
        plain[_sendable(name, name)] = _plain_value(name, value)
    return plain


def _plain_value(name: str, value: ParameterValue) -> ParameterValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise TritonModelException(f"parameter '{name}' must fit an int64, got {shown(value)}")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):  # which JSON cannot say
            raise TritonModelException(f"parameter '{name}' must be a finite number, got {value}")
        return float(value)
    if isinstance(value, str):
        return _sendable(name, value)
    raise TritonModelException(
        f"parameter '{name}' must be a bool, int, float or str, got {type(value).__name__}"
    )


def _sendable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TritonModelException(
            f"parameter {name!r} must be Unicode text, got a lone surrogate at {error.start}"
        ) from None
    return str(text)
