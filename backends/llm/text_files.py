"""Reads the small files that lie beside a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ...protocol.errors import invalid_argument
from ...protocol.wording import shown

GENERATION_FILE: Final = "generation_config.json"


def check_regular(path: Path) -> None:
    """Refuse a pipe and the like.

    Raises:
      RequestError: INVALID_ARG; there is something, and it is no regular file.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise invalid_argument(f"{path.name}: expected a regular file")


def read_text(path: Path) -> str:
    """Return what is in a file.

    Raises:
      RequestError: INVALID_ARG; it cannot be read, or is not UTF-8.
    """
    check_regular(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise invalid_argument(f"{path.name}: cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one if there is no such file.

    Raises:
      RequestError: INVALID_ARG; it cannot be read, or has no JSON object.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise invalid_argument(f"{path.name}: expected JSON, got an error: {error}") from error
    if not isinstance(content, dict):
        raise invalid_argument(f"{path.name}: expected an object, got {shown(content)}")
    return content
