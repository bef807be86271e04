"""Typed tensor contents of a gRPC inference request.

Fields are gathered as bytes and converted in bulk: packed and unpacked occurrences of a repeated
field have the same bytes, and several occurrences of the message are merged by appending.
Source: `grpc_service.proto`, InferTensorContents; Triton's field for each datatype.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import numpy as np

from .dtypes import BYTES, NUMPY_DTYPES
from .errors import invalid_argument
from .protobuf_wire import (
    FIXED32,
    FIXED64,
    LENGTH_DELIMITED,
    VARINT,
    FieldReader,
    malformed,
    unpack_varints,
)
from .tensors import Shape, Tensor
from .wording import quoted

Contents: TypeAlias = dict[int, bytearray]
"""Field number -> its bytes: varints, little-endian floats, or raw BYTES elements."""

_BYTES_FIELD = 8
_FIELD_NAMES: Final = {
    1: "bool_contents",
    2: "int_contents",
    3: "int64_contents",
    4: "uint_contents",
    5: "uint64_contents",
    6: "fp32_contents",
    7: "fp64_contents",
    8: "bytes_contents",
}
_FIELDS: Final = {
    "BOOL": (1, np.dtype(np.bool_)),
    "INT8": (2, np.dtype(np.int32)),
    "INT16": (2, np.dtype(np.int32)),
    "INT32": (2, np.dtype(np.int32)),
    "INT64": (3, np.dtype(np.int64)),
    "UINT8": (4, np.dtype(np.uint32)),
    "UINT16": (4, np.dtype(np.uint32)),
    "UINT32": (4, np.dtype(np.uint32)),
    "UINT64": (5, np.dtype(np.uint64)),
    "FP32": (6, np.dtype("<f4")),
    "FP64": (7, np.dtype("<f8")),
    BYTES: (8, np.dtype(np.object_)),
}
"""Datatype -> the field for its elements and the dtype of the field's values."""
_WIRE_TYPES: Final = {6: (FIXED32, 4), 7: (FIXED64, 8)} | dict.fromkeys(range(1, 6), (VARINT, 1))
"""Field number -> wire type of one element, and the unit that packed lengths are multiples of."""

_LENGTH = struct.Struct("<I")


def read_contents(reader: FieldReader, start: int, stop: int, contents: Contents) -> None:
    """Merge one occurrence of the message into `contents`.

    Raises:
      RequestError: INTERNAL; the bytes are no such message.
    """
    data = reader.data
    view = memoryview(data)
    for number, kind, begin, end in reader.fields(start, stop):
        if number == _BYTES_FIELD:
            if kind == LENGTH_DELIMITED:
                elements = contents.setdefault(number, bytearray())
                elements += _LENGTH.pack(end - begin)
                elements += view[begin:end]
            continue
        if number not in _WIRE_TYPES or begin == end:
            continue
        single, unit = _WIRE_TYPES[number]
        if kind == LENGTH_DELIMITED:
            if (end - begin) % unit or (single == VARINT and data[end - 1] >= 0x80):
                raise malformed(f"packed {_FIELD_NAMES[number]} end within an element")
        elif kind != single:
            continue
        contents.setdefault(number, bytearray()).extend(view[begin:end])


def tensor_from_contents(
    name: str, datatype: str, shape: Shape, contents: Contents, model_name: str
) -> Tensor:
    """Return the tensor that typed contents hold; its size is not yet checked against `shape`.

    Raises:
      RequestError: INVALID_ARG; a field that does not belong to the datatype, two fields, or an
        integer out of range; names input and model.
    """
    where = f"input {quoted(name)} of model {quoted(model_name)}"
    if len(contents) > 1:
        fields = " and ".join(_FIELD_NAMES[number] for number in sorted(contents))
        raise invalid_argument(f"{where} has more than one source of data: {fields}")
    ((number, data),) = contents.items()
    expected = _FIELDS.get(datatype)
    if expected is None:
        raise invalid_argument(
            f"{where} has datatype {quoted(datatype)}, which has no typed contents, got "
            f"{_FIELD_NAMES[number]}; send raw_input_contents"
        )
    field, wire_dtype = expected
    if number != field:
        raise invalid_argument(
            f"{where} has datatype {datatype}, which needs {_FIELD_NAMES[field]}, got "
            f"{_FIELD_NAMES[number]}"
        )
    if number in {6, 7, 8}:
        return Tensor(name, datatype, shape, raw=data)
    values = unpack_varints(data, wire_dtype)
    dtype = NUMPY_DTYPES[datatype]
    if dtype.itemsize < wire_dtype.itemsize:
        bounds = np.iinfo(dtype)
        low, high = values.min(), values.max()
        if low < bounds.min or high > bounds.max:
            raise invalid_argument(
                f"{where} needs integers from {bounds.min} to {bounds.max} for datatype "
                f"{datatype}, got {high if high > bounds.max else low}"
            )
        values = values.astype(dtype)
    return Tensor(name, datatype, shape, raw=values.tobytes())
