"""The objects a Python model works with: tensors, requests, responses, senders, errors.

Their names and methods are those of Triton's `triton_python_backend_utils`. Requests wrap the
server's own request and look at a tensor only when the model does, so that a request costs about
a microsecond. A model may write into the arrays it gets: those received in a read-only buffer are
copied when first asked for. What it sends is copied, so that it may use its buffers again.
"""

# ruff: noqa: SLF001 - these classes are one unit; what a model sees are their methods

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, Self, final

import numpy as np

from ..protocol.dtypes import BYTES, CONFIG_NUMBERS, datatype_of
from ..protocol.errors import ErrorCode
from ..protocol.requests import InferRequest, Parameters, RequestedOutput
from ..protocol.tensors import Array, Tensor as ServerTensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1


class TritonModelException(Exception):  # noqa: N818 - the name models catch
    """A model used this module wrongly, or asked for what the server cannot do."""


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
class Tensor:
    """One named tensor.

    Args:
      name: Not empty.
      numpy_array: The elements; text, byte strings and objects are BYTES. Borrowed until the
        response that holds the tensor was returned or sent.

    Raises:
      TritonModelException: the name is empty, or the elements are no numpy array.
    """

    __slots__ = ("_array", "_name", "_source")

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not name:
            raise TritonModelException("a Tensor needs a name, got an empty one")
        if not isinstance(numpy_array, np.ndarray):
            raise TritonModelException(
                f"Tensor '{name}' needs a numpy array, got {type(numpy_array).__name__}"
            )
        self._name = name
        self._array: Array | None = numpy_array
        self._source: ServerTensor | None = None

    @classmethod
    def _received(cls, source: ServerTensor) -> Self:
        tensor = cls.__new__(cls)
        tensor._name = source.name
        tensor._array = None
        tensor._source = source
        return tensor

    def __repr__(self) -> str:
        return f"<Tensor {self._name} {self.shape()}>"

    def name(self) -> str:
        """Return the name."""
        return self._name

    def shape(self) -> list[int]:
        """Return all dimensions, the batch dimension included."""
        return list(self.as_numpy().shape if self._source is None else self._source.shape)

    def triton_dtype(self) -> int:
        """Return the data type as its number in a model configuration, such as 11 for FP32."""
        return CONFIG_NUMBERS[self._datatype()]

    def _datatype(self) -> str:
        if self._source is not None:
            return self._source.datatype
        assert self._array is not None
        datatype = datatype_of(self._array.dtype)
        if datatype is None:
            raise TritonModelException(
                f"Tensor '{self._name}' has elements of numpy type {self._array.dtype}, "
                "which is no Triton data type"
            )
        return datatype

    def as_numpy(self) -> Array:
        """Return the elements, always the same array; writable.

        BYTES are `bytes` objects; BF16 is `ml_dtypes.bfloat16`.
        """
        array = self._array
        if array is None:
            assert self._source is not None
            array = self._source.array
            if not array.flags.writeable:
                array = array.copy()
            self._array = array
        return array

    def is_cpu(self) -> bool:
        """Return True: all tensors are in host memory."""
        return True

    def to_dlpack(self) -> Any:
        """Return the elements as a DLPack capsule that shares their memory.

        Raises:
          TritonModelException: the tensor is BYTES, BF16 or not contiguous.
        """
        return self._shareable().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._shareable().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.as_numpy().__dlpack_device__()

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> Self:
        """Return a tensor that shares the memory of a DLPack capsule, or of an object with one.

        Raises:
          TritonModelException: it is not on the CPU, not contiguous, or of a type numpy lacks.
        """
        producer = tensor if hasattr(tensor, "__dlpack__") else _Capsule(tensor)
        try:
            array = np.from_dlpack(producer)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TritonModelException(f"Tensor '{name}' cannot use this DLPack: {error}") from None
        if not array.flags.c_contiguous:
            raise TritonModelException(
                f"Tensor '{name}' needs a DLPack that is contiguous in C order, got strides "
                f"{array.strides} for shape {array.shape}"
            )
        return cls(name, array)

    def _shareable(self) -> Array:
        array = self.as_numpy()
        datatype = self._datatype()
        if datatype in {BYTES, "BF16"} or not array.flags.c_contiguous:
            what = "an array that is not contiguous" if datatype not in {BYTES, "BF16"} else datatype
            raise TritonModelException(
                f"Tensor '{self._name}' can be DLPack only as contiguous numbers that numpy "
                f"knows, got {what}"
            )
        return array


class _Capsule:
    """Gives a bare DLPack capsule of host memory the methods that numpy asks for."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


@final
class InferenceResponse:
    """The answer to one request.

    Args:
      output_tensors: Outputs; those the client did not ask for are dropped.
      error: Set if the request failed; then it is all that goes out.
      parameters: Name -> bool, int, float or str.

    Raises:
      TritonModelException: an argument is of another type; names the type found.
    """

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | float | str] | None = None,
    ) -> None:
        for tensor in output_tensors:
            if type(tensor) is not Tensor:
                raise TritonModelException(
                    f"output_tensors must hold Tensor objects, got {type(tensor).__name__}"
                )
        if error is not None and type(error) is not TritonError:
            raise TritonModelException(f"error must be a TritonError, got {type(error).__name__}")
        self._tensors = output_tensors
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
        """Send a response, the final flag, or both.

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
            self._closed = flags != 0
            self._answering.send(self._index, response, final=self._closed)

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
            self._sent = 1
            self._answering.send(self._index, response, final=True)
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

    __slots__ = ("_answering", "_index", "_output_names", "_request", "_sender", "_tensors")

    def __init__(
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
    for name, value in parameters.items():
        if not isinstance(value, (bool, int, float, str)):
            raise TritonModelException(
                f"parameter '{name}' must be a bool, int, float or str, got {type(value).__name__}"
            )
    return dict(parameters)
