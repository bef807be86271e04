"""Short ways to write what a model saw."""

from __future__ import annotations

from typing import Any, TypeAlias

from ..cases import Json

Table: TypeAlias = dict[str, Any]
"""MODEL.METHOD -> a `Differs`, or what the reference and ours saw, or in `ALONE` what ours saw."""
HANGS = "python-hangs"
"""The row of what must not be asked of the reference."""


def raised(name: str, *words: str) -> Json:
    """What a call gives that raised this exception, whose text has these words."""
    return {"raises": name, "says": list(words)}


def returned(value: Json) -> Json:
    """What a call gives that returned."""
    return {"returns": value}


def failed(code: str, *words: str) -> Json:
    """What a response with this error code shows."""
    return {"code": code, "outputs": 0, "says": list(words)}
