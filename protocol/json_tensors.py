"""Tensor data as JSON arrays, in both directions.

Elements are checked and converted in bulk: the set of their Python types, then one numpy call.
Source: KServe v2 "Tensor Data"; the element rules of Triton's HTTP endpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from .dtypes import BYTES, ITEM_SIZE_BYTES, NUMPY_DTYPES
from .errors import ErrorCode, RequestError, invalid_argument
from .json_text import NESTING_MAX, dump_json
from .request_rules import element_count
from .tensors import Shape, Tensor
from .wording import quoted, shape_text, shown

BINARY_ONLY: Final = frozenset({"FP16", "BF16"})
"""Datatypes that have no JSON form."""

_SMALL_ELEMENTS = 64
"""Up to here a list is dumped faster than an array."""


def _expected(datatype: str) -> tuple[frozenset[type], str, tuple[float, float]]:
    if datatype == "BOOL":
        return frozenset({bool}), "true or false", (0, 1)
    if datatype == BYTES:
        return frozenset({str}), "strings", (0, 0)
    if datatype.startswith("FP"):
        high = sys.float_info.max
        return frozenset({int, float}), "numbers", (-high, high)
    bounds = np.iinfo(NUMPY_DTYPES[datatype])
    low, high = int(bounds.min), int(bounds.max)
    return frozenset({int}), f"integers from {low} to {high}", (low, high)


_EXPECTED: Final = {name: _expected(name) for name in NUMPY_DTYPES if name not in BINARY_ONLY}
"""Datatype -> the Python types of its elements, what messages call them, bounds of integers."""


def tensor_from_json(name: str, datatype: str, shape: Shape, data: Any, limit_bytes: int) -> Tensor:
    """Return the tensor whose elements are the JSON value `data`, nested in any way.

    Args:
      name: The input's name.
      datatype: A valid protocol string.
      shape: No negative entries; with a zero in it `data` is ignored.
      data: What the JSON parser made of the member `data`.
      limit_bytes: Most bytes of the tensor's raw form.

    Raises:
      RequestError: INVALID_ARG; names the input, and the first element that does not fit.
    """
    if datatype in BINARY_ONLY:
        raise invalid_argument(
            f"input {quoted(name)} of datatype {datatype} has no JSON form; send it as binary "
            "data (parameter 'binary_data_size')"
        )
    count = element_count(name, datatype, shape)
    if not count:
        return Tensor(name, datatype, shape, raw=b"")
    if type(data) is not list:
        raise invalid_argument(
            f"member 'data' of input {quoted(name)} must be an array of elements, got "
            f"{shown(data)}; send encoded bytes as binary data (parameter 'binary_data_size')"
        )
    elements, types = _flatten(name, data)
    if len(elements) != count:
        raise invalid_argument(
            f"member 'data' of input {quoted(name)} does not fit shape {shape_text(shape)}: "
            f"expected {count} elements, got {len(elements)}"
        )
    if not types <= _EXPECTED[datatype][0]:
        raise _misfit(name, datatype, elements)
    if datatype == BYTES:
        return _bytes_tensor(name, shape, elements, limit_bytes)
    _check_limit(name, count * ITEM_SIZE_BYTES[datatype], limit_bytes)
    try:
        with np.errstate(over="ignore"):  # a double beyond FP32 is an infinity
            array = np.array(elements, NUMPY_DTYPES[datatype])
    except OverflowError:
        raise _misfit(name, datatype, elements) from None
    return Tensor(name, datatype, shape, array=array.reshape(shape))


def json_from_tensor(tensor: Tensor) -> bytes:
    """Return the elements as one flat JSON array, row-major.

    FP32 elements are printed as the doubles they are; NaN and infinities as bare literals.

    Raises:
      RequestError: the datatype has no JSON form, or a BYTES element is not UTF-8.
    """
    datatype = tensor.datatype
    if datatype in BINARY_ONLY:
        raise invalid_argument(
            f"output '{tensor.name}' of datatype {datatype} has no JSON form; request it as binary "
            "data (parameter 'binary_data')"
        )
    if datatype == BYTES:
        return _dump_bytes(tensor)
    array = tensor.array.ravel()
    if datatype == "FP32":
        array = array.astype(np.float64)
    if datatype in {"FP32", "FP64"} and not np.isfinite(array).all():
        return dump_json(array.tolist())
    if array.size <= _SMALL_ELEMENTS:
        return orjson.dumps(array.tolist())
    aligned = np.require(array, requirements=["C", "A"])
    return orjson.dumps(aligned, option=orjson.OPT_SERIALIZE_NUMPY)


def _flatten(name: str, data: list[Any]) -> tuple[list[Any], set[type]]:
    """Return the elements in row-major order and the set of their types."""
    level = data
    for depth in range(NESTING_MAX):
        types = set(map(type, level))
        if list not in types:
            return level, types
        if len(types) > 1:
            elements = _walk(name, level, depth + 1)
            return elements, set(map(type, elements))
        level = list(chain.from_iterable(level))
    raise _too_deep(name)


def _walk(name: str, data: list[Any], depth: int) -> list[Any]:
    """Flatten lists that stand beside elements."""
    elements: list[Any] = []
    stack = [iter(data)]
    while stack:
        for item in stack[-1]:
            if type(item) is list:
                if depth + len(stack) > NESTING_MAX:
                    raise _too_deep(name)
                stack.append(iter(item))
                break
            elements.append(item)
        else:
            stack.pop()
    return elements


def _too_deep(name: str) -> RequestError:
    return invalid_argument(
        f"member 'data' of input {quoted(name)} is nested deeper than the limit of {NESTING_MAX}"
    )


def _misfit(name: str, datatype: str, elements: Sequence[Any]) -> RequestError:
    """Return the error that names the first element which is no `datatype`."""
    types, description, (low, high) = _EXPECTED[datatype]
    index = next(
        index
        for index, item in enumerate(elements)
        if type(item) not in types or (type(item) is int and not low <= item <= high)
    )
    return invalid_argument(
        f"member 'data' of input {quoted(name)} must hold {description} for datatype {datatype}, "
        f"got {shown(elements[index])} at element {index}"
    )


def _bytes_tensor(name: str, shape: Shape, elements: list[str], limit_bytes: int) -> Tensor:
    encoded = [element.encode() for element in elements]
    _check_limit(name, sum(map(len, encoded)) + 4 * len(encoded), limit_bytes)
    array = np.empty(len(encoded), np.object_)
    array[:] = encoded
    return Tensor(name, BYTES, shape, array=array.reshape(shape))


def _check_limit(name: str, size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise invalid_argument(
            f"input {quoted(name)} has {size_bytes} bytes, over the limit of {limit_bytes} bytes "
            "set by --http-max-input-size"
        )


def _dump_bytes(tensor: Tensor) -> bytes:
    try:
        texts = [
            element.decode() if isinstance(element, bytes) else str(element)
            for element in tensor.array.ravel().tolist()
        ]
        return orjson.dumps(texts)
    except (UnicodeDecodeError, orjson.JSONEncodeError):
        raise invalid_argument(
            f"output '{tensor.name}' holds BYTES that are not UTF-8 and has no JSON form; request "
            "it as binary data (parameter 'binary_data')"
        ) from None
    except ValueError as fault:
        raise RequestError(
            ErrorCode.INTERNAL, f"output '{tensor.name}' is not well-formed BYTES: {fault}"
        ) from None
