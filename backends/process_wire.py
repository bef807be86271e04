"""Requests and responses as messages between the server and the process of a model.

What a model can see of a request goes there; what it answers is checked when it comes back, since
the process runs code that may have written over anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..protocol.dtypes import BYTES, ITEM_SIZE_BYTES
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.request_rules import bytes_elements_fault
from ..protocol.requests import InferRequest, InferResponse, RequestedOutput
from ..protocol.tensors import Buffer, Tensor
from ..protocol.trace import Trace, TraceLink
from ..protocol.trace_context import TraceContext
from .base import InstancePlace, ModelSource
from .process_link import Header, LinkError

RANK_MAX = 64
"""Most dimensions of a tensor, as in numpy."""


def source_header(source: ModelSource) -> Header:
    """Return where a model lies, for `source_from`."""
    return {
        **asdict(source),
        "model_directory": str(source.model_directory.absolute()),
        "version_directory": str(source.version_directory.absolute()),
    }


def source_from(header: Header) -> ModelSource:
    """Return what `source_header` was given."""
    paths = {name: Path(header[name]) for name in ("model_directory", "version_directory")}
    return ModelSource(**{**header, **paths})


def place_header(place: InstancePlace) -> Header:
    """Return which instance a process is for, as the arguments of an `InstancePlace`."""
    names = ("name", "kind", "device_id", "cpu_threads", "passive", "number")
    return {name: getattr(place, name) for name in names}


def request_header(request: InferRequest, buffers: list[Buffer]) -> Header:
    """Return a request's header, for `request_from`; its tensors are added to `buffers`."""
    header: Header = {
        "model": [request.model_name, request.model_version],
        "id": request.id,
        "parameters": request.parameters,
        "inputs": _tensors_header(list(request.inputs.values()), buffers),
        "outputs": [output.name for output in request.outputs],
        "sequence": [request.sequence_id, request.sequence_start, request.sequence_end],
        "numbers": [request.priority, request.timeout_us, request.batch_size],
        "cancelled": request.cancelled,
    }
    if request.trace is not None:
        header["trace"] = _trace_header(request.trace)
    return header


def request_from(header: Header, buffers: Sequence[memoryview], first: int) -> InferRequest:
    """Return the request that `request_header` was given, its tensors from buffer `first` on."""
    request = InferRequest(*header["model"])
    request.id = header["id"]
    request.parameters = header["parameters"]
    for index, (name, datatype, shape) in enumerate(header["inputs"], first):
        request.inputs[name] = Tensor(name, datatype, tuple(shape), raw=buffers[index])
    request.outputs = tuple([RequestedOutput(name) for name in header["outputs"]])
    request.sequence_id, request.sequence_start, request.sequence_end = header["sequence"]
    request.priority, request.timeout_us, request.batch_size = header["numbers"]
    request.cancelled = header["cancelled"]
    if "trace" in header:
        number, context = header["trace"]
        request.trace = TraceLink(number, None if context is None else TraceContext(*context))
    return request


def _trace_header(trace: Trace | TraceLink) -> list[Any]:
    return [trace.number, None if trace.context is None else list(trace.context)]


def response_header(response: InferResponse, buffers: list[Buffer]) -> Header:
    """Return a response's header, for `ResponseReader`; its tensors are added to `buffers`."""
    header: Header = {"version": response.model_version, "final": response.final}
    if response.error is not None:
        return {**header, "error": error_header(response.error)}
    header["outputs"] = _tensors_header(response.outputs, buffers)
    if response.empty:
        header["empty"] = True
    if response.parameters:
        header["parameters"] = response.parameters
    if response.states is not None:
        header["states"] = _tensors_header(list(response.states.values()), buffers)
    return header


def error_header(error: RequestError) -> list[str]:
    """Return an error, for `error_from`."""
    return [error.code.name, error.message, error.reason.name]


def error_from(header: Any) -> RequestError:
    """Return the error that `error_header` was given.

    Raises:
      LinkError: it is none.
    """
    match header:
        case [str(code), str(message), str(reason)]:
            if code in ErrorCode.__members__ and reason in FailureReason.__members__:
                return RequestError(ErrorCode[code], message, reason=FailureReason[reason])
    raise LinkError("expected an error's code, message and reason")


class ResponseReader:
    """Reads the responses in one message of a model's process.

    Args:
      buffers: Of the message; its responses take their tensors from them one after the other.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = iter(buffers)

    def response(self, header: Any, request: InferRequest) -> InferResponse:
        """Return the next response, to `request`.

        Raises:
          LinkError: it is none, or a tensor's bytes do not fit its shape.
        """
        if not isinstance(header, dict):
            raise LinkError("expected a response")
        version, final = header.get("version"), header.get("final")
        if not isinstance(version, str) or not isinstance(final, bool):
            raise LinkError("expected a response with version and final")
        response = InferResponse(request.model_name, version, request.id, final=final)
        if "error" in header:
            response.error = error_from(header["error"])
            return response
        response.outputs = self._tensors(header.get("outputs"))
        response.empty = "empty" in header
        if "parameters" in header:
            response.parameters = _parameters(header["parameters"])
        if "states" in header:
            response.states = {tensor.name: tensor for tensor in self._tensors(header["states"])}
        return response

    def _tensors(self, headers: Any) -> list[Tensor]:
        if not isinstance(headers, list):
            raise LinkError("expected a list of tensors")
        return [self._tensor(header) for header in headers]

    def _tensor(self, header: Any) -> Tensor:
        match header:
            case [str(name), str(datatype), list(shape)] if datatype in ITEM_SIZE_BYTES:
                raw = next(self._buffers, None)
            case _:
                raise LinkError("expected a tensor's name, data type and shape")
        if len(shape) > RANK_MAX or not all(type(dim) is int and dim >= 0 for dim in shape):
            raise LinkError(f"expected a shape of at most {RANK_MAX} dimensions")
        if raw is None:
            raise LinkError("expected a buffer for each tensor")
        count = math.prod(shape)
        if datatype == BYTES:
            fits = bytes_elements_fault(raw, count) is None
        else:
            fits = count * ITEM_SIZE_BYTES[datatype] == len(raw)
        if not fits:
            raise LinkError(f"expected {count} elements of {datatype}, got {len(raw)} bytes")
        return Tensor(name, datatype, tuple(shape), raw=raw)


def _parameters(header: Any) -> dict[str, bool | int | float | str]:
    if not isinstance(header, dict):
        raise LinkError("expected parameters by name")
    if not all(isinstance(value, (bool, int, float, str)) for value in header.values()):
        raise LinkError("expected parameters that are bool, int, float or str")
    return header


def _tensors_header(tensors: Sequence[Tensor], buffers: list[Buffer]) -> list[list[Any]]:
    header: list[list[Any]] = []
    for tensor in tensors:
        buffers.append(tensor.raw)
        header.append([tensor.name, tensor.datatype, tensor.shape])
    return header
