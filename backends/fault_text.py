"""The texts that models and libraries give their errors: cut to size, whatever they are."""

from __future__ import annotations

from typing import Final

FAULT_TEXT_MAX_CHARS: Final = 4096
"""Most characters of a model's own text in an error: a long explanation, but no dump of data."""


def cut_to(text: str, chars_max: int = FAULT_TEXT_MAX_CHARS) -> str:
    """Return `text`, or its beginning and how long it was."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… ({len(text)} characters)"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or its type if it has none or cannot tell it."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a model's exception is the model's code
        text = ""
    return text or type(error).__name__
