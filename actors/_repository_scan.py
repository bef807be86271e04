"""Reads what lies in a model repository; blocking, so it runs on a worker thread."""

from __future__ import annotations

import logging
from pathlib import Path

from ..protocol.config_text import CONFIG_MAX_BYTES
from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.version_policy import parse_version
from ._repository_policy import ModelFiles

CONFIG_NAME = "config.pbtxt"

_NOT_VERSIONS = frozenset({"configs", "initial_state", "warmup"})
"""Directories of a model that are no versions, and nobody's mistake."""

_logger = logging.getLogger(__name__)


def scan_repository(repository: Path) -> list[ModelFiles]:
    """Return the models of a repository, by name; files beside them are ignored.

    Raises:
      RequestError: the repository itself cannot be read.
    """
    try:
        entries = sorted(repository.iterdir())
    except OSError as error:
        raise RequestError(
            ErrorCode.INTERNAL,
            f"expected a readable directory as model repository, got '{repository}': "
            f"{error.strerror}",
        ) from None
    return [_scan_model(entry) for entry in entries if _is_model(entry)]


def _is_model(entry: Path) -> bool:
    """A link that leads nowhere was meant to be a model."""
    return entry.is_dir() or (entry.is_symlink() and not entry.exists())


def _scan_model(directory: Path) -> ModelFiles:
    name = directory.name
    try:
        versions = _scan_versions(directory)
        return ModelFiles(name, directory, versions, _read_config(directory))
    except OSError as error:
        fault = invalid_argument(f"model '{name}' cannot be read: {error.strerror}: {directory}")
        return ModelFiles(name, directory, {}, fault=fault)


def _scan_versions(directory: Path) -> dict[int, tuple[str, ...]]:
    versions: dict[int, tuple[str, ...]] = {}
    for entry in directory.iterdir():
        if entry.name in _NOT_VERSIONS or not entry.is_dir():
            continue
        version = parse_version(entry.name)
        if version is None:
            _logger.warning("%s is ignored: its name is no version number", entry)
            continue
        versions[version] = tuple(sorted(file.name for file in entry.iterdir()))
    return dict(sorted(versions.items()))


def _read_config(directory: Path) -> bytes | None:
    path = directory / CONFIG_NAME
    try:
        with path.open("rb") as file:
            return file.read(CONFIG_MAX_BYTES + 1)  # the parser refuses what is longer
    except FileNotFoundError:
        return None
