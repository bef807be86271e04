"""Whether the fields of a received message are of the types that its class says.

betterproto2 takes what comes: a number where a name belongs becomes the name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Final

import betterproto2

from ._message_schema import MAP, MESSAGE, FieldSchema, fields_of, message_type
from .protobuf_wire import LENGTH_DELIMITED, FieldReader, malformed
from .tensors import Buffer

_DELIMITED: Final = {MAP, MESSAGE, betterproto2.TYPE_STRING, betterproto2.TYPE_BYTES}
"""Kinds whose values come with their length; those of numbers do only where they are repeated."""


def check_wire_types(cls: type[betterproto2.Message], data: Buffer) -> None:
    """Look at every field of a message, those of messages in it among them.

    Args:
      cls: The class of the message.
      data: The whole message.

    Raises:
      RequestError: INTERNAL; the bytes are no message, or a field has another type. INVALID_ARG;
        too many fields.
    """
    _check(_schemas(cls), FieldReader(data), 0, len(data))


def _check(schemas: Mapping[int, FieldSchema], reader: FieldReader, start: int, stop: int) -> None:
    for number, wire_type, first, last in reader.fields(start, stop):
        schema = schemas.get(number)
        if schema is None:
            continue
        delimited = wire_type == LENGTH_DELIMITED
        if delimited != (schema.kind in _DELIMITED) and not (delimited and schema.repeated):
            raise malformed(f"{schema.name} is {schema.kind}, got a field of wire type {wire_type}")
        if schema.kind == MESSAGE:
            _check(_schemas(message_type(schema)), reader, first, last)
        elif schema.kind == MAP:
            _check(dict(enumerate(schema.entry, 1)), reader, first, last)


@cache
def _schemas(cls: type[betterproto2.Message]) -> Mapping[int, FieldSchema]:
    """Return the fields of a message class by number."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # only the base class is none
    numbers = (betterproto2.FieldMetadata.get(field).number for field in fields)
    return dict(zip(numbers, fields_of(cls).values(), strict=True))
