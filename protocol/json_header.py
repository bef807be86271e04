"""The JSON part of an inference request over HTTP.

Source: KServe v2 "Inference Request JSON Object", with the binary tensor data extension.
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

from .dtypes import ITEM_SIZE_BYTES
from .errors import RequestError, invalid_argument
from .json_tensors import tensor_from_json
from .json_text import parse_object
from .request_parameters import requested_output, take_parameters
from .request_rules import INT64_MAX, RANK_MAX
from .requests import InferRequest, RequestedOutput
from .shared_tensors import RegionSlice, region_slice, shared_tensors
from .tensors import Shape, Tensor
from .wording import quoted, shown

InputHeader: TypeAlias = tuple[str, str, Shape, int, Tensor | None]
"""Name, datatype, shape, and either the size of its blob in bytes or its tensor. An input in
shared memory has a blob of no bytes."""


@final
class RequestHeader:
    """What the JSON part says.

    Attributes:
      request: Everything but model and inputs; copied for each request, see `without_inputs`.
      inputs: In the order of their blobs.
      reusable: Whether no input holds its data, so that equal bytes mean an equal header.
    """

    __slots__ = ("inputs", "request", "reusable")

    def __init__(self, request: InferRequest, inputs: list[InputHeader]) -> None:
        self.request = request
        self.inputs = inputs
        self.reusable = all(tensor is None for *_, tensor in inputs)


def parse_header(text: bytes, limit_bytes: int) -> RequestHeader:
    """Return what the JSON part of a request says; tensors given inline are converted.

    Raises:
      RequestError: INVALID_ARG, naming the member at fault.
    """
    document = parse_object(text, "the request")
    request = InferRequest("")
    request.id = _text(document, "id", "the request", "")
    take_parameters(request, _object(document, "parameters", "the request"), grpc=False)
    inputs: dict[str, InputHeader] = {}
    places: dict[str, RegionSlice] = {}
    for index, item in enumerate(_objects(document, "inputs")):
        header = _input(item, index, limit_bytes, places)
        if header[0] in inputs:
            raise invalid_argument(f"input {quoted(header[0])} is listed more than once")
        inputs[header[0]] = header
    outputs: dict[str, RequestedOutput] = {}
    if "outputs" in document:
        for index, item in enumerate(_objects(document, "outputs")):
            where = f"output {index}"
            output = requested_output(
                _text(item, "name", where), _object(item, "parameters", where), grpc=False
            )
            if output.name in outputs:
                raise invalid_argument(f"output {quoted(output.name)} is requested more than once")
            outputs[output.name] = output
    request.outputs = tuple(outputs.values())
    request.shared_memory = shared_tensors(places, request.outputs)
    return RequestHeader(request, list(inputs.values()))


def _input(
    item: dict[str, Any], index: int, limit_bytes: int, places: dict[str, RegionSlice]
) -> InputHeader:
    """Return what an input says; where one lies in shared memory is added to `places`."""
    where = f"input {index}"
    name = _text(item, "name", where)
    where = f"input {quoted(name)}"
    datatype = _datatype(_text(item, "datatype", where), where)
    shape = _shape(item, where)
    parameters = _object(item, "parameters", where)
    place = region_slice(parameters, where)
    given = [
        option
        for option, present in (
            ("data", "data" in item),
            ("binary_data_size", "binary_data_size" in parameters),
            ("shared_memory_region", place is not None),
        )
        if present
    ]
    if len(given) != 1:
        raise invalid_argument(
            f"{where} must have exactly one of 'data', 'binary_data_size' and "
            f"'shared_memory_region', got {' and '.join(given) or 'none'}"
        )
    if place is not None:
        places[name] = place
        return name, datatype, shape, 0, None
    if "data" in item:
        tensor = tensor_from_json(name, datatype, shape, item["data"], limit_bytes)
        return name, datatype, shape, 0, tensor
    size = parameters["binary_data_size"]
    if type(size) is not int or not 0 <= size <= INT64_MAX:
        raise invalid_argument(
            f"parameter 'binary_data_size' of {where} must be an integer >= 0, got {shown(size)}"
        )
    return name, datatype, shape, size, None


def _datatype(given: str, where: str) -> str:
    if given in ITEM_SIZE_BYTES:
        return given
    meant = given.upper().removeprefix("TYPE_").replace("STRING", "BYTES")
    hint = f"; write '{meant}'" if meant in ITEM_SIZE_BYTES else ""
    raise invalid_argument(
        f"{where} has the unknown datatype {quoted(given)}, expected one of "
        f"{', '.join(ITEM_SIZE_BYTES)}{hint}"
    )


def _shape(item: dict[str, Any], where: str) -> Shape:
    shape = _member(item, "shape", where)
    if type(shape) is not list:
        raise invalid_argument(
            f"member 'shape' of {where} must be an array of integers >= 0, got {shown(shape)}"
        )
    if len(shape) > RANK_MAX:
        raise invalid_argument(
            f"member 'shape' of {where} may have {RANK_MAX} dimensions, got {len(shape)}"
        )
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= INT64_MAX:
            raise invalid_argument(
                f"member 'shape' of {where} must be an array of integers >= 0, got {shown(dim)} "
                "in it"
            )
    return tuple(shape)


def _member(item: dict[str, Any], key: str, where: str) -> Any:
    if key not in item:
        raise invalid_argument(f"{where} lacks the member '{key}'")
    return item[key]


def _text(item: dict[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = _member(item, key, where) if default is None else item.get(key, default)
    if type(value) is not str:
        raise _wrong_kind(key, where, "a string", value)
    return value


def _object(item: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = item.get(key, {})
    if type(value) is not dict:
        raise _wrong_kind(key, where, "an object", value)
    return value


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = _member(document, key, "the request")
    if type(value) is not list:
        raise _wrong_kind(key, "the request", "an array of objects", value)
    for item in value:
        if type(item) is not dict:
            raise _wrong_kind(key, "the request", "an array of objects", item)
    return value


def _wrong_kind(key: str, where: str, expected: str, got: object) -> RequestError:
    return invalid_argument(f"member '{key}' of {where} must be {expected}, got {shown(got)}")
