"""What the generated message classes say about their fields, in one shape for every reader.

The text and the JSON form of a configuration are both driven by this, so a field added to a
`.proto` file is known to both at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, get_args, get_type_hints

import betterproto2

MAP: Final = betterproto2.TYPE_MAP
MESSAGE: Final = betterproto2.TYPE_MESSAGE
ENUM: Final = betterproto2.TYPE_ENUM

INTEGER_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    betterproto2.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    betterproto2.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    betterproto2.TYPE_UINT32: (0, (1 << 32) - 1),
    betterproto2.TYPE_UINT64: (0, (1 << 64) - 1),
    betterproto2.TYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}
"""Kind -> smallest and largest value; an enum number is an int32."""

_DATA_TYPE_SLIPS: Final = {
    "BYTES": "TYPE_STRING",
    "TYPE_BYTES": "TYPE_STRING",
    "TYPE_BFLOAT16": "TYPE_BF16",
    "TYPE_BOOLEAN": "TYPE_BOOL",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_HALF": "TYPE_FP16",
    "TYPE_INT": "TYPE_INT32",
    "TYPE_LONG": "TYPE_INT64",
}
"""Data types as other interfaces call them -> as a configuration does; by spelling alone, another
name would be the closest."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSchema:
    """One field of a message.

    Attributes:
      name: As in the `.proto` file and on every wire.
      attribute: As in the Python class: differs where the name is a Python keyword.
      kind: One of betterproto2's `TYPE_*`.
      repeated: Whether the value is a list; false for a map.
      oneof: Name of the oneof the field belongs to.
      type: The Python class of one value: a message, an enum, `int`, `str`, `bool` or `float`.
      entry: Key and value of a map; empty for all else.
    """

    name: str
    attribute: str
    kind: str
    repeated: bool
    oneof: str | None
    type: type
    entry: tuple[FieldSchema, ...] = ()


def message_type(field: FieldSchema) -> type[betterproto2.Message]:
    """Return the class of a message field."""
    assert issubclass(field.type, betterproto2.Message), field
    return field.type


def enum_type(field: FieldSchema) -> type[betterproto2.Enum]:
    """Return the class of an enum field."""
    assert issubclass(field.type, betterproto2.Enum), field
    return field.type


@cache
def fields_of(cls: type[betterproto2.Message]) -> Mapping[str, FieldSchema]:
    """Return the fields of a message class by name, in declaration order."""
    hints = get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # only the base class is none
    return {
        schema.name: schema
        for field in fields
        for schema in [_field_schema(field, hints[field.name])]
    }


def _field_schema(field: dataclasses.Field[object], hint: type) -> FieldSchema:
    meta = betterproto2.FieldMetadata.get(field)
    name = field.name.rstrip("_")
    arguments = get_args(hint)  # of `list[X]`, `X | None` and `dict[K, V]`
    if meta.map_meta is None:
        return FieldSchema(
            name=name,
            attribute=field.name,
            kind=meta.proto_type,
            repeated=bool(meta.repeated),
            oneof=meta.group,
            type=arguments[0] if arguments else hint,
        )
    key, value = (
        FieldSchema(label, label, part.proto_type, repeated=False, oneof=None, type=argument)
        for label, part, argument in zip(("key", "value"), meta.map_meta, arguments, strict=True)
    )
    return FieldSchema(name, field.name, MAP, False, None, dict, (key, value))


def enum_name(member: betterproto2.Enum) -> str | None:
    """Return the name a number has in the `.proto` file, or None for an unknown number."""
    return (member.proto_name or member.name) if member.name else None


@cache
def enum_numbers(cls: type[betterproto2.Enum]) -> Mapping[str, int]:
    """Return the numbers of an enum by their names in the `.proto` file."""
    return {enum_name(member) or "": member.value for member in cls}


def closest(name: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the candidate most like `name`, or nothing."""
    matches = difflib.get_close_matches(name, candidates, n=1)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def closest_enum_name(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'X'?` for the enum's name that is most likely meant, or nothing."""
    return closest(_DATA_TYPE_SLIPS.get(name, name), names)


def to_float32(value: float) -> float:
    """Return the float32 nearest to `value`; one beyond its range becomes infinite."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded
