"""The requests a Python model works with: those it is given, and those it makes to call others.

Requests wrap the server's own request and look at a tensor only when the model does, so that a
request costs about a microsecond.
"""

# ruff: noqa: SLF001 - requests, responses and tensors are one unit; a model sees their methods

from __future__ import annotations

import json
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Self, final

from ..protocol.requests import InferRequest, RequestedOutput
from ..protocol.trace import Trace, TraceLink
from .pb_calls import ModelCall, ResponseIterator
from .pb_context import required_server
from .pb_objects import (
    Answering,
    InferenceResponse,
    InferenceResponseSender,
    checked_parameters,
)
from .pb_tensor import Tensor, TritonModelException

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2


class MemoryType(IntEnum):
    """Where tensors may be; the values are those of `TRITONSERVER_MemoryType`."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


@final
class PreferredMemory:
    """Where the outputs of a request should be.

    Args:
      preferred_memory_type: A `MemoryType`.
      preferred_device_id: Of which device.
    """

    __slots__ = ("_device_id", "_type")

    def __init__(
        self,
        preferred_memory_type: MemoryType = MemoryType.TRITONSERVER_MEMORY_CPU,
        preferred_device_id: int = 0,
    ) -> None:
        self._type = MemoryType(preferred_memory_type)
        self._device_id = preferred_device_id

    def preferred_memory_type(self) -> MemoryType:
        """Return the kind of memory."""
        return self._type

    def preferred_device_id(self) -> int:
        """Return the device."""
        return self._device_id


@final
class InferenceTrace:
    """Of which trace a request is part, if it is part of one."""

    __slots__ = ("_trace",)

    def __init__(self) -> None:
        self._trace: Trace | TraceLink | None = None

    @classmethod
    def _of(cls, trace: Trace | TraceLink) -> Self:
        wrapper = cls()
        wrapper._trace = trace
        return wrapper

    def get_context(self) -> str | None:
        """Return the headers of the W3C trace context as JSON text.

        None if the request is not traced, or not in the mode opentelemetry.
        """
        if self._trace is None or self._trace.context is None:
            return None
        return json.dumps(self._trace.context.headers(), separators=(",", ":"))

    def _to_send(self) -> Trace | TraceLink | None:
        """Return what a request made within the trace carries."""
        return self._trace.child() if isinstance(self._trace, Trace) else self._trace


_ANY_MEMORY: Final = PreferredMemory()
_NO_TRACE: Final = InferenceTrace()


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
      preferred_memory: Where outputs should be; all are in host memory.
      trace: Of which trace the request is part.
      parameters: Name -> bool, int, float or str.
      priority: Its level in the queue of the model asked; 0 is that model's default.

    Raises:
      TritonModelException: an argument is of another type; names the type found.
    """

    __slots__ = (
        "_answering",
        "_index",
        "_output_names",
        "_preferred_memory",
        "_request",
        "_reschedules",
        "_sender",
        "_tensors",
        "_trace",
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
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, bool | int | float | str] | None = None,
        *,
        priority: int = 0,
    ) -> None:
        request = InferRequest(model_name, "" if model_version < 0 else str(model_version))
        request.id = request_id
        request.sequence_id = correlation_id
        request.timeout_us = timeout
        request.priority = priority
        request.parameters = checked_parameters(parameters or {})
        request.outputs = tuple([RequestedOutput(name) for name in requested_output_names])
        self._request = request
        self._answering: Answering | None = None
        self._index = 0
        self._sender: InferenceResponseSender | None = None
        self._output_names: tuple[str, ...] = ()
        self._reschedules = False
        self._tensors: dict[str, Tensor] | None = _by_name(inputs)
        self._preferred_memory = preferred_memory or PreferredMemory()
        self._trace = trace or InferenceTrace()
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
        wrapper._preferred_memory = _ANY_MEMORY
        wrapper._trace = _NO_TRACE if request.trace is None else InferenceTrace._of(request.trace)
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

    def priority(self) -> int:
        """Return the level in the queue; 0 is the model's default."""
        return self._request.priority

    def preferred_memory(self) -> PreferredMemory:
        """Return where outputs should be."""
        return self._preferred_memory

    def trace(self) -> InferenceTrace:
        """Return of which trace the request is part."""
        return self._trace

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Have the model `model_name` answer this request, and wait for that.

        Args:
          decoupled: Whether the model may give any number of responses.

        Returns:
          The response, which may hold an error; with `decoupled` an iterator over all of them.

        Raises:
          TritonModelException: no server runs this code, or it is an async execute, which may not
            block; or an input is of no Triton data type.
        """
        context, server = required_server("exec()")
        if context.on_event_loop:
            raise TritonModelException(
                "an async execute runs on the server's event loop, which exec() would block: "
                "await async_exec() instead"
            )
        call = ModelCall(context, server, self._to_send(), decoupled=decoupled)
        return ResponseIterator(call) if decoupled else call.take()

    def async_exec(
        self,
        decoupled: bool = False,
    ) -> Coroutine[Any, Any, InferenceResponse | ResponseIterator]:
        """Send this request to the model `model_name` at once; await what `exec` returns.

        Under asyncio and under trio. A cancelled await cancels the request.
        """
        context, server = required_server("async_exec()")
        call = ModelCall(context, server, self._to_send(), decoupled=decoupled)
        return _answered(call, decoupled=decoupled)

    def _to_send(self) -> InferRequest:
        """Return what goes to another model; shares the memory of the inputs, to be read only."""
        source = self._request
        request = source.without_inputs(source.model_name, source.model_version)
        request.call = None
        request.trace = self._trace._to_send()
        request.inputs = {name: tensor._to_send() for name, tensor in self._inputs().items()}
        return request

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


def _by_name(inputs: Iterable[Tensor]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for tensor in inputs:
        if not isinstance(tensor, Tensor):
            raise TritonModelException(
                f"inputs must hold Tensor objects, got {type(tensor).__name__}"
            )
        tensors[tensor._name] = tensor
    return tensors


async def _answered(call: ModelCall, *, decoupled: bool) -> InferenceResponse | ResponseIterator:
    if decoupled:
        return ResponseIterator(call)
    try:
        return await call.take_async()
    except BaseException:  # a cancelled wait, which its exception could keep from being collected
        call.cancel()
        raise
