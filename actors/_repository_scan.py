"""Reads what lies in a model repository; blocking, so it runs on a worker thread."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from ..protocol.config_text import CONFIG_MAX_BYTES
from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.version_policy import parse_version
from ._fingerprint import take_fingerprint
from ._repository_policy import Fingerprint, ModelFiles

CONFIG_NAME = "config.pbtxt"

TOLD_MAX: Final = 1024
"""Names that are no text, and of which is known that the log has them: repositories are listed
again and again."""

_NOT_VERSIONS = frozenset({"configs", "initial_state", "warmup"})
"""Directories of a model that are no versions, and nobody's mistake."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """What is read of a model.

    Attributes:
      config_name: `configs/<name>.pbtxt` is read in place of `config.pbtxt` where there is one; ""
        for `config.pbtxt`.
      fingerprints: Whether it is noted what the files look like, to compare them later.
      contents: Whether small files are compared by what they hold, and not by their times.
      namespaces: Whether models of one name may lie in several repositories.
    """

    config_name: str = ""
    fingerprints: bool = False
    contents: bool = False
    namespaces: bool = False


def distinct(repositories: Iterable[Path]) -> dict[Path, Path]:
    """Return each directory once, however often and however it is spelt.

    Returns:
      The directory without links -> its absolute path as given, so that a link that leads elsewhere
      later is followed; in the order of the former.
    """
    places: dict[Path, Path] = {}
    for path in repositories:
        places.setdefault(Path(os.path.realpath(path)), path.absolute())
    return dict(sorted(places.items()))


def check_repository(repository: Path) -> None:
    """Check that a directory is not a model itself, which is named in place of its parent easily.

    It is if it has a configuration, or version directories with files, and nothing that lies in it
    could be a model. Likewise it is the version of one if its name is a number and a file in it is
    named as those of models are.

    Raises:
      RequestError: INVALID_ARG; names the directory and the one that was expected.
    """
    try:
        entries = list(repository.iterdir())
        inside = [entry for entry in entries if entry.is_dir()]
        versions = [entry for entry in inside if parse_version(entry.name) is not None]
        if any(map(_looks_like_model, inside)):
            return
        filled = any(each.is_file() for version in versions for each in version.iterdir())
        model = filled or (repository / CONFIG_NAME).is_file()
        numbered = parse_version(repository.absolute().name) is not None
        version = numbered and any(each.stem == "model" and each.is_file() for each in entries)
    except OSError:  # whoever reads it next says so
        return
    if model:
        what, expected = "a model itself", f"its parent directory '{repository.parent}'"
    elif version:
        place = repository.absolute().parent
        what, expected = f"a version of the model '{place.name}'", f"'{place.parent}'"
    else:
        return
    raise invalid_argument(
        f"expected a directory of models as model repository, got '{repository}', which looks like "
        f"{what}; expected {expected}"
    )


def _looks_like_model(directory: Path) -> bool:
    return (directory / CONFIG_NAME).exists() or any(
        parse_version(entry.name) is not None and entry.is_dir() for entry in directory.iterdir()
    )


def list_repository(repository: Path) -> list[Path]:
    """Return the model directories of a repository, by name; files beside them are ignored.

    Raises:
      RequestError: the repository itself cannot be read.
    """
    try:
        return [entry for entry in sorted(repository.iterdir()) if _is_model(entry)]
    except OSError as error:
        raise RequestError(
            ErrorCode.INTERNAL,
            f"expected a readable directory as model repository, got '{repository}': "
            f"{error.strerror}",
        ) from None


def glance(repository: Path, settings: ScanSettings) -> list[ModelFiles]:
    """Return the models of a repository, by name, with nothing but what they look like.

    Raises:
      RequestError: the repository itself cannot be read.
    """
    return [_glance_at(entry, settings) for entry in list_repository(repository)]


def scan_repository(repository: Path, settings: ScanSettings = ScanSettings()) -> list[ModelFiles]:
    """Return the models of a repository, by name.

    Raises:
      RequestError: the repository itself cannot be read.
    """
    return [scan_model(entry, settings) for entry in list_repository(repository)]


def find_model(
    repositories: Iterable[Path], name: str, settings: ScanSettings = ScanSettings()
) -> list[ModelFiles]:
    """Return a model wherever it lies; nothing else in the repositories is looked at.

    In a repository that cannot be searched it may lie, so there it is a model at fault.

    Args:
      repositories: Where to look.
      name: A name that may be a model's (see `check_model_name`).
      settings: What is read of it.
    """
    found: list[ModelFiles] = []
    for entry in [repository / name for repository in repositories]:
        try:
            if _is_model(entry):
                found.append(scan_model(entry, settings))
        except OSError as error:
            found.append(ModelFiles(name, entry, {}, fault=_fault(entry, error)))
    return found


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
    """A link that leads nowhere, or where nothing may be looked at, was meant to be a model.

    Raises:
      OSError: what the entry itself is cannot be found out.
    """
    try:
        mode = entry.stat().st_mode
    except OSError:
        try:
            mode = entry.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
    if not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        return False
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        _tell_of_name(str(entry))
        return False
    return True


@lru_cache(TOLD_MAX)
def _tell_of_name(entry: str) -> None:
    _logger.warning("%a is ignored: the name of a model must be UTF-8 text", entry)


def scan_model(directory: Path, settings: ScanSettings = ScanSettings()) -> ModelFiles:
    """Return what lies in the directory of a model.

    The fingerprint is taken first, so that what is changed meanwhile looks changed later.
    """
    files = _glance_at(directory, settings)
    if files.fault is not None:
        return files
    try:
        versions = _scan_versions(directory)
        path, text = _read_config(directory, settings.config_name)
    except (OSError, RequestError) as error:
        return replace(files, fault=_fault(directory, error))
    return replace(files, versions=versions, config_text=text, config_path=path)


def _glance_at(directory: Path, settings: ScanSettings) -> ModelFiles:
    """Return what a model's directory looks like, if that is to be noted, and nothing else."""
    fingerprint: Fingerprint | None = None
    fault: RequestError | None = None
    if settings.fingerprints:
        try:
            fingerprint = take_fingerprint(directory, contents=settings.contents)
        except (OSError, RequestError) as error:
            fault = _fault(directory, error)
    return ModelFiles(
        directory.name,
        directory,
        {},
        fingerprint=fingerprint,
        fault=fault,
        namespace=str(directory.parent) if settings.namespaces else "",
    )


def _fault(directory: Path, error: OSError | RequestError) -> RequestError:
    name = directory.name
    if isinstance(error, RequestError):
        return invalid_argument(f"model '{name}': {error.message}")
    return invalid_argument(f"model '{name}' cannot be read: {error.strerror}: {directory}")


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


def _read_config(directory: Path, config_name: str) -> tuple[Path, bytes | None]:
    """Return the path and the content of the configuration; None where there is none."""
    path = directory / "configs" / f"{config_name}.pbtxt"
    if not config_name or not path.exists():
        path = directory / CONFIG_NAME
    try:
        return path, read_regular_file(path, CONFIG_MAX_BYTES)
    except FileNotFoundError:
        return path, None
