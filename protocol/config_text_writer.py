"""Writes a model configuration as `config.pbtxt`: what `config_text` reads, the other way round.

Fields that hold their defaults are left out, and each message stands on lines of its own.
Source: the protobuf text format specification.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import betterproto2
import numpy as np

from ._message_schema import ENUM, MAP, MESSAGE, FieldSchema, enum_name, fields_of
from .pb.inference import ModelConfig

_INDENT: Final = "  "
_ESCAPED: Final = re.compile(r'[\\"\x00-\x1f\x7f]')


def model_config_to_text(config: ModelConfig) -> str:
    """Return the configuration as protobuf text format; `parse_model_config` reads it back."""
    return "".join(f"{line}\n" for line in _message(config, ""))


def _message(message: betterproto2.Message, indent: str) -> Iterator[str]:
    for field in fields_of(type(message)).values():
        value = getattr(message, field.attribute)
        if field.kind == MAP:
            for key, item in value.items():
                yield from _entry(field, key, item, indent)
        elif field.repeated and field.kind != MESSAGE:
            if value:
                items = ", ".join(_scalar(field, item) for item in value)
                yield f"{indent}{field.name}: [ {items} ]"
        elif field.repeated:
            for item in value:
                yield from _field(field, item, indent)
        elif value is not None and (field.oneof or field.kind == MESSAGE or value):
            yield from _field(field, value, indent)


def _entry(field: FieldSchema, key: Any, item: Any, indent: str) -> Iterator[str]:
    key_field, value_field = field.entry
    yield f"{indent}{field.name} {{"
    yield from _field(key_field, key, indent + _INDENT)
    yield from _field(value_field, item, indent + _INDENT)
    yield f"{indent}}}"


def _field(field: FieldSchema, value: Any, indent: str) -> Iterator[str]:
    if field.kind != MESSAGE:
        yield f"{indent}{field.name}: {_scalar(field, value)}"
        return
    inside = list(_message(value, indent + _INDENT))
    if inside:
        yield f"{indent}{field.name} {{"
        yield from inside
        yield f"{indent}}}"
    else:
        yield f"{indent}{field.name} {{ }}"


def _scalar(field: FieldSchema, value: Any) -> str:
    if field.kind == betterproto2.TYPE_STRING:
        return f'"{_ESCAPED.sub(_escape, value)}"'
    if field.kind == betterproto2.TYPE_BOOL:
        return "true" if value else "false"
    if field.kind == ENUM:
        return enum_name(value) or str(int(value))
    if field.kind == betterproto2.TYPE_FLOAT and math.isfinite(value):
        return str(np.float32(value))  # the shortest digits that give the same float32 back
    return str(value)


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return f"\\{character}" if character in '\\"' else f"\\{ord(character):03o}"
