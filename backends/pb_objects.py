"""The requests, responses, senders and errors a Python model works with.

Their names and methods are those of Triton's `triton_python_backend_utils`. Requests wrap the
server's own request and look at a tensor only when the model does, so that a request costs about
a microsecond.
"""

# ruff: noqa: SLF001 - these classes are one unit; what a model sees are their methods

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol, Self, final

from ..protocol.errors import ErrorCode
from ..protocol.request_rules import INT64_MAX
from ..protocol.requests import InferRequest, Parameters, ParameterValue, RequestedOutput
from ..protocol.wording import shown
from .pb_tensor import Tensor, TritonModelException

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2
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
            if type(tensor) is not Tensor:
                raise TritonModelException(
                    f"output_tensors must hold Tensor objects, got {type(tensor).__name__}"
                )
        if error is not None and type(error) is not TritonError:
            raise TritonModelException(f"error must be a TritonError, got {type(error).__name__}")
        self._tensors = tensors
        self._error = error
        self._parameters = _checked_parameters(parameters) if parameters else None

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
        if response is not None and type(response) is not InferenceResponse:
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


@final
class InferenceRequest:
    """One request.

    Args:
      request_id: The client's id.
      correlation_id: The sequence; 0 and "" are none.
      inputs: Input tensors.
      requested_output_names: Outputs wanted; empty means all.
      model_name: The model asked.
      model_version: Its version; -1 is the latest.
      flags: Sum of TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and …_END.
      timeout: Queue timeout in microseconds; 0 is none.
      parameters: Name -> bool, int, float or str.

    Raises:
      TritonModelException: an argument is of another type; names the type found.
    """

    __slots__ = (
        "_answering",
        "_index",
        "_output_names",
        "_request",
        "_reschedules",
        "_sender",
        "_tensors",
    )

    def __init__(  # noqa: PLR0917 - models may pass them by position
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        parameters: Mapping[str, bool | int | float | str] | None = None,
    ) -> None:
        request = InferRequest(model_name, "" if model_version < 0 else str(model_version))
        request.id = request_id
        request.sequence_id = correlation_id
        request.timeout_us = timeout
        request.parameters = _checked_parameters(parameters or {})
        request.outputs = tuple([RequestedOutput(name) for name in requested_output_names])
        self._request = request
        self._answering: Answering | None = None
        self._index = 0
        self._sender: InferenceResponseSender | None = None
        self._output_names: tuple[str, ...] = ()
        self._reschedules = False
        self._tensors: dict[str, Tensor] | None = {tensor.name(): tensor for tensor in inputs}
        self.set_flags(flags)

    @classmethod
    def _received(
        cls,
        request: InferRequest,
        index: int,
        answering: Answering,
        output_names: tuple[str, ...],
    ) -> Self:
        wrapper = cls.__new__(cls)
        wrapper._request = request
        wrapper._index = index
        wrapper._answering = answering
        wrapper._output_names = output_names
        wrapper._reschedules = False
        wrapper._tensors = None
        wrapper._sender = (
            InferenceResponseSender(answering, index, request) if answering.decoupled else None
        )
        return wrapper

    def _inputs(self) -> dict[str, Tensor]:
        tensors = self._tensors
        if tensors is None:
            received = Tensor._received
            tensors = {name: received(source) for name, source in self._request.inputs.items()}
            self._tensors = tensors
        return tensors

    def inputs(self) -> list[Tensor]:
        """Return the inputs, always the same objects."""
        return list(self._inputs().values())

    def request_id(self) -> str:
        """Return the client's id; may be empty."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """Return the sequence's id; 0 or "" if there is none."""
        return self._request.sequence_id

    def requested_output_names(self) -> list[str]:
        """Return the outputs wanted: all of the model's if the client named none."""
        return [output.name for output in self._request.outputs] or list(self._output_names)

    def parameters(self) -> str:
        """Return the custom parameters as JSON text."""
        return json.dumps(self._request.parameters)

    def flags(self) -> int:
        """Return the sum of the sequence flags."""
        request = self._request
        start = TRITONSERVER_REQUEST_FLAG_SEQUENCE_START if request.sequence_start else 0
        end = TRITONSERVER_REQUEST_FLAG_SEQUENCE_END if request.sequence_end else 0
        return start + end

    def set_flags(self, flags: int) -> None:
        """Set the sum of the sequence flags."""
        self._request.sequence_start = bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        self._request.sequence_end = bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)

    def set_release_flags(self, flags: int) -> None:
        """Say whether the request is done once `execute` has returned, as by default, or not.

        With TRITONSERVER_REQUEST_RELEASE_RESCHEDULE an iterative model returns None for it and
        gets it again.

        Raises:
          TritonModelException: it is neither that nor TRITONSERVER_REQUEST_RELEASE_ALL.
        """
        if flags not in {TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE}:
            raise TritonModelException(
                "the release flags must be TRITONSERVER_REQUEST_RELEASE_ALL or "
                f"TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, flag {flags} is not supported"
            )
        self._reschedules = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

    def timeout(self) -> int:
        """Return the queue timeout in microseconds; 0 is none."""
        return self._request.timeout_us

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for the answer any more."""
        return self._request.cancelled

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the request's sender, always the same object.

        Raises:
          TritonModelException: the request did not come from a client.
        """
        if self._sender is None:
            if self._answering is None:
                raise TritonModelException(
                    "only requests given to execute() have a response sender, this one was made"
                )
            self._sender = InferenceResponseSender(self._answering, self._index, self._request)
        return self._sender


def _checked_parameters(parameters: Mapping[str, bool | int | float | str]) -> Parameters:
    """Return parameters as the plain Python objects that every transport can carry."""
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
