"""The protobuf wire format, as far as hand-written codecs need it.

Limits and faults are those of google's parser, so that a message is well-formed for both or for
neither: tags and lengths of at most 5 bytes, varints of at most 10, groups skipped if balanced.
Source: protobuf "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np

from .errors import ErrorCode, RequestError, invalid_argument
from .tensors import Array, Buffer

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
START_GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5

FIELDS_MAX: Final = 1 << 20
"""Fields of a message and the messages in it: about a second of reading. A field that holds a
million numbers counts as one, and so does a raw tensor."""
GROUP_DEPTH_MAX: Final = 100
"""Nested groups; google's limit for nested messages."""
UNPACK_CHUNK_BYTES: Final = 1 << 20
"""Varints unpacked at once; bounds the temporaries to some 30 MiB."""

_VARINT_BYTES_MAX = 10
_UINT64_MASK = 2**64 - 1
_LENGTH_MAX = 2**31 - 1
_TAG_MAX = 2**32 - 1


def malformed(problem: str) -> RequestError:
    """Return the error for bytes that are no message."""
    return RequestError(ErrorCode.INTERNAL, f"the message is not valid protobuf: {problem}")


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the unsigned 64-bit varint at `position` and the position behind it."""
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        if position >= end:
            raise malformed(f"a varint is cut off at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64_MASK, position
    raise malformed(f"a varint before byte {position} is longer than {_VARINT_BYTES_MAX} bytes")


@final
class FieldReader:
    """Reads the fields of one message and of those in it, no more than `FIELDS_MAX` in all.

    Attributes:
      data: The outermost message; positions count from its start.
    """

    __slots__ = ("_fields_left", "data")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self._fields_left = FIELDS_MAX

    def fields(self, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the fields of the message in `data[position:end]`.

        Yields:
          (field number, wire type, start, stop) with the value in `data[start:stop]`, without the
          length of a length-delimited one. Groups are skipped: no message here has any.

        Raises:
          RequestError: INTERNAL; the bytes are no message. INVALID_ARG; too many fields.
        """
        data = self.data
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise invalid_argument(f"a message may have {FIELDS_MAX} fields, got more")
            tag = data[position]
            if tag < 0x80:
                position += 1
            else:
                tag, position = _read_short(data, position, end, _TAG_MAX)
            number = tag >> 3
            kind = tag & 7
            if not number:
                raise malformed(f"field number 0 before byte {position}")
            if kind == START_GROUP:
                position = self._skip_group(position, end, number)
                continue
            start, position = _read_extent(data, position, end, kind)
            if position > end:
                raise malformed(f"field {number} needs {position - end} more bytes")
            yield number, kind, start, position

    def _skip_group(self, position: int, end: int, number: int) -> int:
        """Return the position behind the group `number` whose start tag was just read."""
        data = self.data
        open_groups = [number]
        while open_groups:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise invalid_argument(f"a message may have {FIELDS_MAX} fields, got more")
            tag, position = _read_short(data, position, end, _TAG_MAX)
            number, kind = tag >> 3, tag & 7
            if not number:
                raise malformed(f"field number 0 before byte {position}")
            if kind == START_GROUP:
                if len(open_groups) >= GROUP_DEPTH_MAX:
                    raise malformed(f"groups are nested deeper than {GROUP_DEPTH_MAX}")
                open_groups.append(number)
            elif kind == END_GROUP:
                if open_groups.pop() != number:
                    raise malformed(f"group {number} ends where another should")
            else:
                _, position = _read_extent(data, position, end, kind)
                if position > end:
                    raise malformed(f"a group needs {position - end} more bytes")
        return position


def _read_extent(data: Buffer, position: int, end: int, kind: int) -> tuple[int, int]:
    """Return where the value of a field begins and ends; the end may be out of bounds."""
    if kind == LENGTH_DELIMITED:
        if position < end and (length := data[position]) < 0x80:
            return position + 1, position + 1 + length
        length, position = read_length(data, position, end)
        return position, position + length
    if kind == VARINT:
        if position < end and data[position] < 0x80:
            return position, position + 1
        _, stop = read_varint(data, position, end)
        return position, stop
    if kind == FIXED64:
        return position, position + 8
    if kind == FIXED32:
        return position, position + 4
    raise malformed(f"wire type {kind} before byte {position}")


def read_length(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the length at `position` and the position behind it."""
    return _read_short(data, position, end, _LENGTH_MAX)


def _read_short(data: Buffer, position: int, end: int, most: int) -> tuple[int, int]:
    value, after = read_varint(data, position, end)
    if after - position > 5 or value > most:
        raise malformed(f"a tag or length at byte {position} is out of range")
    return value, after


def read_text(data: Buffer, start: int, stop: int) -> str:
    """Return a string field."""
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError:
        raise malformed(f"the string at byte {start} is not UTF-8") from None


def unpack_varints(packed: bytearray, dtype: np.dtype[Any]) -> Array:
    """Return packed varints as an array, each cut to the low bits that `dtype` holds.

    Args:
      packed: Whole varints; the last byte ends one.
      dtype: An integer dtype, or bool for "not zero".
    """
    data = np.frombuffer(packed, np.uint8)
    if not data.size or data.max() < 0x80:
        return data.astype(dtype)
    chunks: list[Array] = []
    start = 0
    while start < data.size:
        stop = min(start + UNPACK_CHUNK_BYTES, data.size)
        while data[stop - 1] >= 0x80:
            stop += 1
        chunks.append(_unpack_chunk(data[start:stop]).astype(dtype))
        start = stop
    return np.concatenate(chunks)


def _unpack_chunk(data: Array) -> Array:
    ends = np.flatnonzero(data < 0x80)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _VARINT_BYTES_MAX:
        raise malformed(f"a packed varint is longer than {_VARINT_BYTES_MAX} bytes")
    values = np.zeros(ends.size, np.uint64)
    for index in range(longest):
        which = np.flatnonzero(lengths > index)
        bits = (data[starts[which] + index] & 0x7F).astype(np.uint64)
        values[which] |= bits << np.uint64(7 * index)
    return values


def varint(value: int) -> bytes:
    """Return a varint; negative integers as their 64-bit two's complement."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= _UINT64_MASK
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def length_delimited(number: int, value: bytes) -> bytes:
    """Return a string, bytes or message field, present also when it is empty."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    """Return a string field; nothing for the default."""
    return length_delimited(number, value.encode(errors="replace")) if value else b""
