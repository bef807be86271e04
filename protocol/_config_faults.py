"""How a fault of a configuration is put."""

from __future__ import annotations

from collections.abc import Iterable

import betterproto2

from ._message_schema import enum_name
from .errors import RequestError, invalid_argument
from .pb.inference import DataType, ModelConfig


def fault(config: ModelConfig, text: str) -> RequestError:
    """Return the error for a configuration that cannot be served; names its model."""
    return invalid_argument(f"model '{config.name}': {text}")


def type_name(data_type: DataType) -> str:
    """Return the name of a data type as a configuration spells it."""
    return enum_name(DataType(data_type)) or str(int(data_type))


def known_name(config: ModelConfig, label: str, member: betterproto2.Enum) -> str:
    """Return the name of an enum value; enums are open, so a file may hold any number.

    Raises:
      RequestError: INVALID_ARG; the number has no name.
    """
    name = enum_name(member)
    if name is None:
        raise fault(config, f"{label} has the unknown value {int(member)}")
    return name


def shape_text(dims: Iterable[int]) -> str:
    """Return a shape as errors show it."""
    return f"[{','.join(map(str, dims))}]"
