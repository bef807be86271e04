"""The JSON form of a model configuration, as `GET /v2/models/M/config` shows it.

Names are the `.proto` names, every scalar, list and map is present even when it holds its
default, enums are names, 64-bit integers are numbers and an unset message is left out. The same
form, and the looser one of the protobuf JSON mapping (lowerCamelCase names, integers as strings,
null for unset), is read back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

import betterproto2
import numpy as np
import orjson

from ._message_schema import (
    ENUM,
    INTEGER_RANGES,
    MAP,
    MESSAGE,
    FieldSchema,
    closest,
    closest_enum_name,
    enum_name,
    enum_numbers,
    enum_type,
    fields_of,
    message_type,
    to_float32,
)
from .errors import invalid_argument
from .pb.inference import ModelConfig

JSON_MAX_BYTES: Final = 4 << 20
"""Longest JSON text that is read: a configuration as text, with every default written out."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_SPECIAL_FLOATS: Final = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_SHOWN_MAX_CHARS: Final = 40
"""Most characters of a wrong value that an error repeats."""

_Message = TypeVar("_Message", bound=betterproto2.Message)


def model_config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """Return the configuration as the objects, lists, numbers and strings of its JSON form."""
    return _message_to_dict(config)


def model_config_from_json(text: bytes | str) -> ModelConfig:
    """Return the configuration that a JSON text spells out.

    Raises:
      RequestError: INVALID_ARG; the text is too long or no JSON, or as in
        `model_config_from_dict`.
    """
    if len(text) > JSON_MAX_BYTES:
        raise invalid_argument(
            f"expected a model configuration of at most {JSON_MAX_BYTES} bytes, got {len(text)}"
        )
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise invalid_argument(f"expected a model configuration as JSON, got {error}") from None
    return model_config_from_dict(data)


def model_config_from_dict(data: object) -> ModelConfig:
    """Return the configuration that parsed JSON spells out.

    Args:
      data: What a JSON reader made of the text.

    Raises:
      RequestError: INVALID_ARG; names the path of the value, what was expected and what came.
    """
    return _message_from_dict(ModelConfig, data, "")


def _message_to_dict(message: betterproto2.Message) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in fields_of(type(message)).values():
        value = getattr(message, field.attribute)
        if value is None:
            continue
        if field.kind == MAP:
            key, item = field.entry
            result[field.name] = {
                str(_value_to_json(key, name)): _value_to_json(item, member)
                for name, member in value.items()
            }
        elif field.repeated:
            result[field.name] = [_value_to_json(field, item) for item in value]
        else:
            result[field.name] = _value_to_json(field, value)
    return result


_EXACT = 2**53
"""Below this a whole number is the same as a float. It has no fraction then, as in Triton."""


def _value_to_json(field: FieldSchema, value: Any) -> Any:
    if field.kind == MESSAGE:
        return _message_to_dict(value)
    if field.kind == ENUM:
        return enum_name(value) or int(value)
    if field.kind in {betterproto2.TYPE_FLOAT, betterproto2.TYPE_DOUBLE}:
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        # The shortest digits that give the same float32 back, as in the text a user wrote.
        number = float(str(np.float32(value))) if field.kind == betterproto2.TYPE_FLOAT else value
        return int(number) if number.is_integer() and abs(number) < _EXACT else number
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


@cache
def _by_json_name(cls: type[betterproto2.Message]) -> Mapping[str, FieldSchema]:
    fields = fields_of(cls)
    return {_camel(name): field for name, field in fields.items()} | dict(fields)


def _message_from_dict(cls: type[_Message], data: object, path: str) -> _Message:
    if not isinstance(data, dict):
        _fail(path, "an object", data)
    names = _by_json_name(cls)
    values: dict[str, Any] = {}
    given: dict[str, str] = {}  # a field or a oneof -> the name that took it
    for name, value in data.items():
        where = f"{path}.{name}" if path else str(name)
        field = names.get(name)
        if field is None:
            raise invalid_argument(
                f"model configuration: expected a field of {cls.__name__}, got '{where}'"
                f"{closest(str(name), fields_of(cls))}"
            )
        if value is None:  # the protobuf JSON mapping reads null as unset
            continue
        slot = field.oneof or field.name
        if slot in given:
            raise invalid_argument(
                f"model configuration: expected only one of '{given[slot]}' and '{where}', got both"
            )
        given[slot] = where
        values[field.attribute] = _field_from_json(field, value, where)
    return cls(**values)


def _field_from_json(field: FieldSchema, value: object, path: str) -> Any:
    if field.kind == MAP:
        if not isinstance(value, dict):
            _fail(path, "an object from each key to its value", value)
        key, item = field.entry
        return {
            _value_from_json(key, name, path): _value_from_json(item, member, f"{path}.{name}")
            for name, member in value.items()
        }
    if field.repeated:
        if not isinstance(value, list):
            _fail(path, "a list", value)
        return [_value_from_json(field, item, f"{path}[{i}]") for i, item in enumerate(value)]
    return _value_from_json(field, value, path)


def _value_from_json(field: FieldSchema, value: object, path: str) -> Any:
    if field.kind == MESSAGE:
        return _message_from_dict(message_type(field), value, path)
    if field.kind == ENUM:
        return _enum_from_json(field, value, path)
    if field.kind in INTEGER_RANGES:
        return _integer_from_json(field, value, path)
    if field.kind == betterproto2.TYPE_STRING:
        return value if isinstance(value, str) else _fail(path, "a string", value)
    if field.kind == betterproto2.TYPE_BOOL:
        return value if isinstance(value, bool) else _fail(path, "true or false", value)
    return _float_from_json(field, value, path)


def _enum_from_json(field: FieldSchema, value: object, path: str) -> betterproto2.Enum:
    cls = enum_type(field)
    if not isinstance(value, str):
        return cls(_integer_from_json(field, value, path))
    numbers = enum_numbers(cls)
    if value not in numbers:
        _fail(
            path,
            f"one of the names of {cls.__name__}",
            value,
            hint=closest_enum_name(value, numbers),
        )
    return cls(numbers[value])


def _integer_from_json(field: FieldSchema, value: object, path: str) -> int:
    low, high = INTEGER_RANGES[field.kind]
    number = value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        number = int(value)
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        _fail(path, f"an integer from {low} to {high}", value)
    return number


def _float_from_json(field: FieldSchema, value: object, path: str) -> float:
    if isinstance(value, str) and value in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        _fail(path, "a number", value)
    return to_float32(value) if field.kind == betterproto2.TYPE_FLOAT else float(value)


def _fail(path: str, expected: str, value: object, *, hint: str = "") -> NoReturn:
    if isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else "a list"
    else:
        shown = json.dumps(value, default=repr)
        shown = shown if len(shown) <= _SHOWN_MAX_CHARS else f"{shown[:_SHOWN_MAX_CHARS]}…"
    place = f" for '{path}'" if path else ""
    raise invalid_argument(f"model configuration: expected {expected}{place}, got {shown}{hint}")
