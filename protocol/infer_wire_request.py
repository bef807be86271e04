"""ModelInfer requests on the protobuf wire, without copies of tensor data.

A client that sends the same kind of request again sends the same bytes before its raw tensor
contents but for the id, so what they mean is kept by those bytes.
Source: `grpc_service.proto`, ModelInferRequest.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias, final

from .errors import RequestError, invalid_argument
from .infer_contents import Contents, read_contents, tensor_from_contents
from .protobuf_wire import (
    FIXED64,
    LENGTH_DELIMITED,
    VARINT,
    FieldReader,
    read_length,
    read_text,
    read_varint,
)
from .request_parameters import requested_output, take_parameters
from .request_rules import RANK_MAX
from .requests import InferRequest, ParameterValue, RequestedOutput
from .shared_tensors import RegionSlice, region_slice, shared_tensors
from .tensors import Buffer, Shape, Tensor
from .wording import quoted

CACHED_PREFIX_BYTES_MAX: Final = 4096
"""Longer prefixes are parsed each time: parsing is then little beside the rest."""
CACHED_PREFIXES_MAX: Final = 256
"""Kept prefixes; with the one above this bounds the cache to a few MiB."""
SURPLUS_RAWS_MAX: Final = 64
"""Raw contents without an input that are skipped without a full parse."""

_TEXT_FIELDS: Final = {1: "model_name", 2: "model_version", 3: "id"}
_RAW_FIELD = 7
_RAW_TAG = _RAW_FIELD << 3 | LENGTH_DELIMITED
_ID_TAG = 3 << 3 | LENGTH_DELIMITED
_UINT64_PARAM = 5
_DOUBLE = struct.Struct("<d")

InputHeader: TypeAlias = tuple[str, str, Shape]
"""Name, datatype, shape."""
Parameter: TypeAlias = tuple[int, ParameterValue | None]
"""Field number of the oneof, 0 if unset, and its value."""


class _Input:
    """One InferInputTensor as it is read."""

    __slots__ = ("contents", "datatype", "name", "parameters", "shape")

    def __init__(self) -> None:
        self.name = ""
        self.datatype = ""
        self.shape: list[int] = []
        self.parameters: dict[str, Parameter] = {}
        self.contents: Contents = {}


@final
class _Prefix:
    """What the bytes before the raw contents say: all but the id and the data."""

    __slots__ = ("inputs", "request")

    def __init__(self, request: InferRequest, inputs: list[InputHeader]) -> None:
        self.request = request
        self.inputs = inputs


_prefixes: dict[bytes, _Prefix] = {}


def decode_model_infer(message: Buffer) -> InferRequest:
    """Return the request in a ModelInferRequest message, not yet checked against the model.

    Args:
      message: The message. Raw tensors are views on it, so it must not change.

    Raises:
      RequestError: INTERNAL if the bytes are no such message, INVALID_ARG for a fault in what it
        says.
    """
    key, length, request_id = _prefix_key(message)
    prefix = _prefixes.get(key) if length else None
    if prefix is not None:
        raws = _only_raws(message, length, len(prefix.inputs))
        if raws is not None:
            known = prefix.request
            request = known.without_inputs(known.model_name, known.model_version)
            request.id = request_id
            inputs = request.inputs
            for (name, datatype, shape), raw in zip(prefix.inputs, raws, strict=True):
                inputs[name] = Tensor(name, datatype, shape, raw=raw)
            return request
    return _parse(message, key)


def peek_request_id(message: Buffer) -> str:
    """Return the id in a ModelInferRequest that `decode_model_infer` refused, "" if unreadable."""
    request_id = ""
    reader = FieldReader(message)
    try:
        for number, kind, start, stop in reader.fields(0, len(message)):
            if number == 3 and kind == LENGTH_DELIMITED:
                request_id = read_text(message, start, stop)
    except RequestError:
        return ""
    return request_id


def _prefix_key(message: Buffer) -> tuple[bytes, int, str]:
    """Return the bytes before the first raw contents without the id, their length, and the id.

    The length is 0 if the bytes are not worth keeping; that says nothing else about the message.
    """
    position = 0
    id_start = id_stop = 0
    request_id = ""
    end = min(len(message), CACHED_PREFIX_BYTES_MAX)
    while position < end - 2:
        tag = message[position]
        if tag == _RAW_TAG:
            key = bytes(message[:id_start]) + bytes(message[id_stop:position])
            return key, position, request_id
        if tag & 0x87 != LENGTH_DELIMITED:
            break
        size = message[position + 1]
        value = position + 2
        if size >= 0x80:
            high = message[value]
            if high >= 0x80:
                break
            size = size & 0x7F | high << 7
            value += 1
        if tag == _ID_TAG:
            if value + size > end:
                break
            request_id = read_text(message, value, value + size)
            id_start, id_stop = position, value + size
        position = value + size
    return b"", 0, ""


def _only_raws(message: Buffer, position: int, count: int) -> list[Buffer] | None:
    """Return the `count` raw contents from `position` on, or None if there is anything else."""
    view = memoryview(message)
    end = len(message)
    raws: list[Buffer] = []
    surplus = 0
    while position < end:
        if message[position] != _RAW_TAG:
            return None
        position += 1
        if position < end and (size := message[position]) < 0x80:
            position += 1
        else:
            size, position = read_length(message, position, end)
        stop = position + size
        if stop > end or surplus > SURPLUS_RAWS_MAX:
            return None
        if len(raws) < count:
            raws.append(view[position:stop])
        else:
            surplus += 1
        position = stop
    return raws if len(raws) == count else None


def _parse(message: Buffer, key: bytes) -> InferRequest:
    request = InferRequest("")
    parameters: dict[str, Parameter] = {}
    inputs: dict[str, _Input] = {}
    outputs: dict[str, RequestedOutput] = {}
    raws: list[Buffer] = []
    in_order = True
    reader = FieldReader(message)
    view = memoryview(message)
    for number, kind, start, stop in reader.fields(0, len(message)):
        if number == _RAW_FIELD and kind == LENGTH_DELIMITED:
            raws.append(view[start:stop])
            continue
        in_order = in_order and not raws
        if kind != LENGTH_DELIMITED:
            continue
        if number in _TEXT_FIELDS:
            setattr(request, _TEXT_FIELDS[number], read_text(message, start, stop))
        elif number == 4:
            _read_parameter(reader, start, stop, parameters)
        elif number == 5:
            tensor = _read_input(reader, start, stop)
            if tensor.name in inputs:
                raise invalid_argument(f"input {quoted(tensor.name)} is listed more than once")
            inputs[tensor.name] = tensor
        elif number == 6:
            output = _read_output(reader, start, stop)
            if output.name in outputs:
                raise invalid_argument(f"output {quoted(output.name)} is requested more than once")
            outputs[output.name] = output
    request.outputs = tuple(outputs.values())
    request.shared_memory = shared_tensors({}, request.outputs)
    take_parameters(request, _request_parameters(parameters), grpc=True)
    if key and in_order:
        _keep(key, request, inputs)
    _give_data(request, inputs, raws)
    return request


def _keep(prefix: bytes, request: InferRequest, inputs: dict[str, _Input]) -> None:
    for tensor in inputs.values():
        if tensor.contents or tensor.parameters:
            return
    header = request.without_inputs(request.model_name, request.model_version)
    if len(_prefixes) >= CACHED_PREFIXES_MAX:
        _prefixes.clear()
    _prefixes[prefix] = _Prefix(
        header, [(t.name, t.datatype, tuple(t.shape)) for t in inputs.values()]
    )


def _give_data(request: InferRequest, inputs: dict[str, _Input], raws: list[Buffer]) -> None:
    """Give each input its data: from its contents or the next raw contents."""
    model = quoted(request.model_name)
    unused = iter(raws)
    places: dict[str, RegionSlice] = {}
    for name, given in inputs.items():
        where = f"input {quoted(name)} of model {model}"
        place = region_slice(_tensor_parameters(given.parameters, where), where)
        shape = tuple(given.shape)
        if place is not None:
            if given.contents:
                raise invalid_argument(f"{where} may have contents or shared memory, got both")
            places[name] = place
            tensor = Tensor(name, given.datatype, shape, raw=b"")
        elif given.contents:
            if raws:
                raise invalid_argument(
                    f"{where} has contents, but the request has raw_input_contents; use only one "
                    "of them"
                )
            tensor = tensor_from_contents(
                name, given.datatype, shape, given.contents, request.model_name
            )
        else:
            raw = next(unused, None)
            if raw is None and 0 not in shape:
                raise invalid_argument(
                    f"{where} has no data: expected contents, shared memory or an entry in "
                    f"raw_input_contents, which has {len(raws)}"
                )
            tensor = Tensor(name, given.datatype, shape, raw=b"" if raw is None else raw)
        request.inputs[name] = tensor
    if places:
        request.shared_memory = shared_tensors(places, request.outputs)


def _read_input(reader: FieldReader, start: int, stop: int) -> _Input:
    tensor = _Input()
    for number, kind, begin, end in reader.fields(start, stop):
        if number == 3:
            _read_dims(reader.data, kind, begin, end, tensor.shape)
        elif kind != LENGTH_DELIMITED:
            continue
        elif number == 1:
            tensor.name = read_text(reader.data, begin, end)
        elif number == 2:
            tensor.datatype = read_text(reader.data, begin, end)
        elif number == 4:
            _read_parameter(reader, begin, end, tensor.parameters)
        elif number == 5:
            read_contents(reader, begin, end, tensor.contents)
    return tensor


def _read_dims(message: Buffer, kind: int, start: int, stop: int, shape: list[int]) -> None:
    if kind not in {VARINT, LENGTH_DELIMITED}:
        return
    while start < stop:
        value, start = read_varint(message, start, stop)
        shape.append(value - 2**64 if value >= 2**63 else value)
        if len(shape) > RANK_MAX:
            raise invalid_argument(
                f"the shape of an input may have {RANK_MAX} dimensions, got more"
            )


def _read_output(reader: FieldReader, start: int, stop: int) -> RequestedOutput:
    name = ""
    parameters: dict[str, Parameter] = {}
    for number, kind, begin, end in reader.fields(start, stop):
        if kind != LENGTH_DELIMITED:
            continue
        if number == 1:
            name = read_text(reader.data, begin, end)
        elif number == 2:
            _read_parameter(reader, begin, end, parameters)
    values = _tensor_parameters(parameters, f"output {quoted(name)}")
    return requested_output(name, values, grpc=True)


def _read_parameter(
    reader: FieldReader, start: int, stop: int, parameters: dict[str, Parameter]
) -> None:
    """Read one entry of a parameter map; a later entry replaces an earlier one."""
    key = ""
    parameter: Parameter = (0, None)
    for number, kind, begin, end in reader.fields(start, stop):
        if kind != LENGTH_DELIMITED:
            continue
        if number == 1:
            key = read_text(reader.data, begin, end)
        elif number == 2:
            parameter = _read_choice(reader, begin, end, parameter)
    parameters[key] = parameter


def _read_choice(reader: FieldReader, start: int, stop: int, parameter: Parameter) -> Parameter:
    for number, kind, begin, end in reader.fields(start, stop):
        if number in {1, 2, _UINT64_PARAM} and kind == VARINT:
            value, _ = read_varint(reader.data, begin, end)
            if number == 1:
                parameter = (1, value != 0)
            elif number == 2:
                parameter = (2, value - 2**64 if value >= 2**63 else value)
            else:
                parameter = (number, value)
        elif number == 3 and kind == LENGTH_DELIMITED:
            parameter = (3, read_text(reader.data, begin, end))
        elif number == 4 and kind == FIXED64:
            parameter = (4, _DOUBLE.unpack_from(reader.data, begin)[0])
    return parameter


def _tensor_parameters(
    parameters: dict[str, Parameter], tensor: str
) -> dict[str, ParameterValue | None]:
    """Return the values; refuse a kind that those of shared memory may not have."""
    for key, (kind, _) in parameters.items():
        if kind == _UINT64_PARAM and key.startswith("shared_memory_"):
            raise invalid_argument(
                f"parameter {quoted(key)} of {tensor} must be a string_param for the region and an "
                "int64_param for offset and byte size, got uint64_param"
            )
    return {key: value for key, (_, value) in parameters.items()}


def _request_parameters(parameters: dict[str, Parameter]) -> dict[str, ParameterValue]:
    """Return the values; refuse the kinds that only some keys may have."""
    values: dict[str, ParameterValue] = {}
    for key, (kind, value) in parameters.items():
        if value is None or (kind == _UINT64_PARAM and key != "priority"):
            given = "none" if value is None else "uint64_param"
            raise invalid_argument(
                f"parameter {quoted(key)} must be an int64_param, bool_param, string_param or "
                f"double_param, got {given}"
            )
        if key == "sequence_id" and kind == 2:
            value = int(value) & 2**64 - 1  # noqa: PLW2901 - clients send uint64 ids so
        values[key] = value
    return values
