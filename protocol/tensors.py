"""What a tensor is: a name, a data type, a shape, and its elements in one of two forms.

The *raw* form is the wire's: row-major little-endian bytes, for BYTES each element preceded by
its uint32 length. The *array* form is numpy's. A tensor holds the form it came in and makes the
other when it is first asked for, so that data which is only passed on is never converted and
received bytes are never copied.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from .bytes_lengths import MANY, SHORT_BYTES_MAX, Lengths, short_lengths
from .dtypes import BYTES, ITEM_SIZE_BYTES, NUMPY_DTYPES

Buffer: TypeAlias = bytes | bytearray | memoryview
Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_LENGTH = struct.Struct("<I")
_FEW = 8  # elements that are walked faster than numpy starts
_UNPACKED = 8192  # elements unpacked at once: a struct needs 32 bytes for each
_FORMATS = np.array([f"4x{length:03}s" for length in range(SHORT_BYTES_MAX + 1)], "S6")
_NO_LENGTH = bytes(_LENGTH.size)


class Tensor:
    """One named tensor of a request or a response.

    Args:
      name: The tensor's name in the model configuration.
      datatype: Protocol string, such as "FP32".
      shape: All dimensions, the batch dimension included; no negative entries.
      raw: The raw form. Borrowed: whoever owns the buffer must not change it.
      array: The array form, of the numpy dtype that belongs to `datatype`; any byte layout.

    Exactly one of `raw` and `array` is given. That `raw` fits shape and datatype is checked by
    whoever takes it from a client (see `request_rules`), not here.
    """

    __slots__ = ("_array", "_lengths", "_raw", "datatype", "name", "shape")

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: Shape,
        *,
        raw: Buffer | None = None,
        array: Array | None = None,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._raw = raw
        self._array = array
        self._lengths: Lengths | None = None

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.datatype}{list(self.shape)}>"

    @property
    def raw(self) -> Buffer:
        """The raw form; contiguous, to be read only."""
        raw = self._raw
        if raw is None:
            assert self._array is not None
            if self.datatype == BYTES:
                raw = encode_bytes_elements(self._array.ravel().tolist())
            else:
                array = np.ascontiguousarray(self._array, NUMPY_DTYPES[self.datatype])
                raw = array.view(np.uint8).reshape(-1).data if array.size else b""
            self._raw = raw
        return raw

    @property
    def array(self) -> Array:
        """The array form, of shape `shape`; a view on `raw` unless the datatype is BYTES.

        Read-only whenever the received buffer is.
        """
        array = self._array
        if array is None:
            assert self._raw is not None
            if self.datatype == BYTES:
                array = self._decoded(self._raw)
            else:
                array = np.frombuffer(self._raw, NUMPY_DTYPES[self.datatype]).reshape(self.shape)
            self._array = array
        return array

    def own_array(self) -> Array:
        """Return the array form for the caller to write into; it is kept here only if it was."""
        if self.datatype == BYTES and self._array is None:
            assert self._raw is not None
            return self._decoded(self._raw)
        array = self.array
        return array if array.flags.writeable else array.copy()

    def _decoded(self, raw: Buffer) -> Array:
        count = math.prod(self.shape)
        if self._lengths is not None:
            return _decode_short(raw, self._lengths).reshape(self.shape)
        flat = np.empty(count, np.object_)
        flat[:] = decode_bytes_elements(raw, count)
        return flat.reshape(self.shape)

    @property
    def given_raw(self) -> Buffer | None:
        """The raw form if it is there already, else None; never converts."""
        return self._raw

    def holds_short_elements(self, count: int) -> bool:
        """Return whether the raw form is seen at a glance to be `count` BYTES elements.

        False says nothing. What was seen is kept, and spares whoever decodes them another look.
        """
        assert self._raw is not None
        lengths = short_lengths(self._raw, count)
        if lengths is None or len(lengths) != count:
            return False
        self._lengths = lengths
        return True

    def reshape(self, shape: Shape) -> None:
        """Give the elements another shape with the same number of elements."""
        self.shape = shape
        if self._array is not None:
            self._array = self._array.reshape(shape)

    @property
    def byte_size(self) -> int:
        """Bytes of the raw form."""
        if self._raw is not None:
            return len(self._raw)  # every raw buffer is a view of bytes, so len counts them
        if self.datatype == BYTES:
            return len(self.raw)
        return math.prod(self.shape) * ITEM_SIZE_BYTES[self.datatype]


def encode_bytes_elements(elements: Iterable[bytes | str | Any]) -> bytes:
    """Return the raw form of BYTES elements; text is encoded as UTF-8, other objects as text."""
    parts: list[Any] = list(elements)
    if list(map(type, parts)).count(bytes) != len(parts):
        parts = [element if type(element) is bytes else _encoded(element) for element in parts]
    if len(parts) >= MANY:
        try:
            return _joined(parts, np.frombuffer(bytearray(map(len, parts)), np.uint8))
        except ValueError:  # one is longer than a byte can say
            pass
    lengths = list(map(len, parts))
    if len(set(lengths)) == 1:
        return _LENGTH.pack(lengths[0]).join([b"", *parts])
    interleaved = [b""] * (2 * len(parts))
    interleaved[::2] = map(_LENGTH.pack, lengths)
    interleaved[1::2] = parts
    return b"".join(interleaved)


def _joined(parts: list[bytes], lengths: Lengths) -> bytes:
    """Return the raw form of short elements: their lengths are written in where zeros were."""
    raw = bytearray(_NO_LENGTH).join([b"", *parts])
    steps = lengths.astype(np.intp) + _LENGTH.size
    np.frombuffer(raw, np.uint8)[np.cumsum(steps) - steps] = lengths
    return bytes(raw)


def _encoded(element: Any) -> bytes:
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    return str(element).encode()


def decode_bytes_elements(raw: Buffer, expected: int = 0) -> list[bytes]:
    """Return the elements of a well-formed raw BYTES tensor.

    Elements of one length, such as none at all, take numpy some 20 ns each, many short ones 50,
    others Python 150.

    Args:
      raw: The tensor.
      expected: How many elements there should be; 0 if that is not known, which takes longer.

    Raises:
      ValueError: the last element or length is cut off; says how many bytes were missing.
    """
    elements = _decode_one_length(raw)
    if elements is not None:
        return elements
    lengths = short_lengths(raw, expected)
    if lengths is not None:
        return list(_decode_short(raw, lengths))
    data = bytes(raw)  # slices of bytes are cheaper than bytes of slices
    elements = []
    unpack, append = _LENGTH.unpack_from, elements.append
    end = len(data)
    last = end - 4
    start = first = 0
    while start <= last:
        first = start + 4
        start = first + unpack(data, start)[0]
        append(data[first:start])
    if start > end:
        raise ValueError(f"expected an element of {start - first} bytes, got {end - first} bytes")
    if start < end:
        raise ValueError(f"expected a 4-byte element length, got {end - start} bytes")
    return elements


def _decode_one_length(raw: Buffer) -> list[bytes] | None:
    """Return the elements if they all have the length of the first, else mostly None."""
    size = len(raw)
    if size < 4 * _FEW:
        return None
    length: int = _LENGTH.unpack_from(raw)[0]
    stride = length + 4
    count = size // stride
    if count < _FEW or size % stride:
        return None
    lengths = np.ndarray((count,), "<u4", raw, 0, (stride,))
    if not (lengths == length).all():
        return None
    if length == 0:
        return [b""] * count
    elements: list[bytes] = np.ndarray((count,), f"V{length}", raw, 4, (stride,)).tolist()
    return elements


def _decode_short(raw: Buffer, lengths: Lengths) -> Array:
    """Return the elements, all of whose lengths are known, as a flat array."""
    elements = np.empty(len(lengths), np.object_)
    start = 0
    for first in range(0, len(lengths), _UNPACKED):
        some = lengths[first : first + _UNPACKED]
        layout = struct.Struct(_FORMATS[some].tobytes())
        elements[first : first + len(some)] = layout.unpack_from(raw, start)
        start += layout.size
    return elements
