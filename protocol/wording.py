"""How names and shapes from clients are shown in error messages: quoted and cut to size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from .tensors import Shape

SHOWN_TEXT_MAX: Final = 128
"""Characters of a client's name or value in a message; more would only echo rubbish."""
SHOWN_ITEMS_MAX: Final = 16
"""Dimensions or names listed in a message."""


def quoted(text: str) -> str:
    """Return `text` in single quotes, cut to `SHOWN_TEXT_MAX` characters."""
    if len(text) > SHOWN_TEXT_MAX:
        text = text[:SHOWN_TEXT_MAX] + "…"
    return f"'{text}'"


def about_model(name: str, message: str) -> str:
    """Return a message about a model that names it first, whether it did so itself or not."""
    if message.startswith((f"model '{name}'", f"ensemble '{name}'")):
        return message
    return f"model '{name}': {message}"


def without_model(name: str, reason: str) -> str:
    """Return the reason of a model without its name in front, where that was said already.

    Args:
      name: The model's name.
      reason: A message, or one behind the display name of its error code.
    """
    subject = rf"(?:model|ensemble) '{re.escape(name)}'(?: version \d+)?: "
    return re.sub(rf"\A([A-Z][a-z ]+: )?{subject}", r"\1", reason)


def shown(value: object) -> str:
    """Return a short text for a value of a parsed JSON document."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def installing(extra: str) -> str:
    """Return how one gets the packages of an extra of this project."""
    return f"pip install '.[{extra}]' in the checkout of tritrio"


def shape_text(shape: Shape) -> str:
    """Return a shape as "[1,16]", long ones cut."""
    dims = ",".join(map(str, shape[:SHOWN_ITEMS_MAX]))
    return f"[{dims},… {len(shape)} dimensions]" if len(shape) > SHOWN_ITEMS_MAX else f"[{dims}]"


def names_text(names: Iterable[str]) -> str:
    """Return names as "['a', 'b']", long lists cut."""
    listed = list(names)
    text = ", ".join(quoted(name) for name in listed[:SHOWN_ITEMS_MAX])
    return f"[{text}, … {len(listed)} names]" if len(listed) > SHOWN_ITEMS_MAX else f"[{text}]"
