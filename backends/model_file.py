"""Finds the file of a model by its name in the version directory."""

from __future__ import annotations

import os
from pathlib import Path

from ..protocol.errors import invalid_argument
from ..protocol.wording import quoted
from .base import ModelSource


def path_inside(source: ModelSource, filename: str) -> Path:
    """Return where a file of that name would be in a model's version directory.

    Args:
      source: Where the model lies.
      filename: As `default_model_filename` has it; may name a file in a directory.

    Raises:
      RequestError: the name leads out of the version directory. Symbolic links may: they are the
        operator's way to keep weights elsewhere, while a name comes with a configuration.
    """
    path = source.version_directory / filename
    normal = os.path.normpath(filename)
    if "\0" in filename or os.path.isabs(normal) or normal.split(os.sep, 1)[0] == os.pardir:
        raise invalid_argument(
            f"model '{source.name}' version {source.version}: expected a file inside its version "
            f"directory, got default_model_filename {quoted(filename)}, which leads out of it"
        )
    return path
