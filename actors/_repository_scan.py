"""Reads what lies in a model repository; blocking, so it runs on a worker thread."""

from __future__ import annotations

import logging
import stat
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


def read_regular_file(path: Path, bytes_max: int) -> bytes:
    """Return the content of a file that somebody else wrote.

    Raises:
      RequestError: it is a directory, a pipe or a device, or it is too large.
      OSError: it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
        mode = stat.filemode(status.st_mode)
        raise invalid_argument(f"expected a regular file, got one of mode {mode}: {path}")
    if status.st_size > bytes_max:
        raise invalid_argument(
            f"expected a file of at most {bytes_max} bytes, got {status.st_size}: {path}"
        )
    with path.open("rb") as file:
        return file.read(bytes_max)


def _is_model(entry: Path) -> bool:
    """A link that leads nowhere was meant to be a model."""
    if not (entry.is_dir() or (entry.is_symlink() and not entry.exists())):
        return False
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        _logger.warning("%a is ignored: the name of a model must be UTF-8 text", str(entry))
        return False
    return True


def _scan_model(directory: Path) -> ModelFiles:
    name = directory.name
    try:
        versions = _scan_versions(directory)
        return ModelFiles(name, directory, versions, _read_config(directory))
    except OSError as error:
        fault = invalid_argument(f"model '{name}' cannot be read: {error.strerror}: {directory}")
    except RequestError as error:
        fault = invalid_argument(f"model '{name}': {error.message}")
    return ModelFiles(name, directory, {}, fault=fault)


def _scan_versions(directory: Path) -> dict[int, tuple[str, ...]]:
    versions: dict[int, tuple[str, ...]] = {}
    for entry in directory.iterdir():
        if entry.name in _NOT_VERSIONS:
            continue
        version = parse_version(entry.name)
        if not entry.is_dir():
            if version is not None:
                _logger.warning("%a is ignored: a version must be a directory", str(entry))
            continue
        if version is None:
            _logger.warning("%a is ignored: its name is no version number", str(entry))
            continue
        versions[version] = tuple(sorted(file.name for file in entry.iterdir()))
    return dict(sorted(versions.items()))


def _read_config(directory: Path) -> bytes | None:
    try:
        return read_regular_file(directory / CONFIG_NAME, CONFIG_MAX_BYTES)
    except FileNotFoundError:
        return None
