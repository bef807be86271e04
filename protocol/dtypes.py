"""Triton data types, and what they are in numpy and in a model configuration.

A data type is its protocol string ("FP32", "BYTES", …) everywhere in the server; these tables
say the rest. Byte order is little-endian on every wire.
Source: Triton `model_config.proto`, enum DataType, and the KServe v2 tensor data types.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np

BYTES: Final = "BYTES"

NUMPY_DTYPES: Final = MappingProxyType[str, "np.dtype[Any]"](
    {
        "BOOL": np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype("<u2"),
        "UINT32": np.dtype("<u4"),
        "UINT64": np.dtype("<u8"),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype("<i2"),
        "INT32": np.dtype("<i4"),
        "INT64": np.dtype("<i8"),
        "FP16": np.dtype("<f2"),
        "FP32": np.dtype("<f4"),
        "FP64": np.dtype("<f8"),
        "BYTES": np.dtype(np.object_),
        "BF16": np.dtype(ml_dtypes.bfloat16),
    }
)
"""Protocol string -> numpy dtype; BYTES elements are Python `bytes` in an object array."""

ITEM_SIZE_BYTES: Final = MappingProxyType[str, int](
    {name: 0 if name == BYTES else dtype.itemsize for name, dtype in NUMPY_DTYPES.items()}
)
"""Protocol string -> bytes an element; 0 for BYTES, whose elements vary."""

CONFIG_NUMBERS: Final = MappingProxyType[str, int](
    {
        "BOOL": 1,
        "UINT8": 2,
        "UINT16": 3,
        "UINT32": 4,
        "UINT64": 5,
        "INT8": 6,
        "INT16": 7,
        "INT32": 8,
        "INT64": 9,
        "FP16": 10,
        "FP32": 11,
        "FP64": 12,
        "BYTES": 13,
        "BF16": 14,
    }
)
"""Protocol string -> number of the `DataType` enum in a model configuration."""

PROTOCOL_NAMES: Final = MappingProxyType[int, str](
    {number: name for name, number in CONFIG_NUMBERS.items()}
)
"""Number of the `DataType` enum -> protocol string; TYPE_INVALID (0) is absent."""

_BY_NUMPY: Final = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """Return the protocol string of a numpy dtype, or None if no data type fits.

    Text ("U") and byte strings ("S") are BYTES, in whatever byte order the array has.
    """
    if dtype.kind in "SUO":
        return BYTES
    return _BY_NUMPY.get(dtype.newbyteorder("<"))
