"""What is to be loaded, given what lies in the repositories?  Pure: no trio, no clock, no I/O.

Source: Triton's model repository layout and its rules for names that occur twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..protocol.errors import RequestError, invalid_argument


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model directory, as a scan found it.

    Attributes:
      name: The directory's name, and so the model's.
      directory: Where it lies.
      versions: Version number -> names of the entries of its directory.
      config_text: The content of `config.pbtxt`, or None where there is none.
      fault: Why the directory cannot be read, or None.
    """

    name: str
    directory: Path
    versions: dict[int, tuple[str, ...]]
    config_text: bytes | None = None
    fault: RequestError | None = None


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load this model."""

    files: ModelFiles


@dataclass(frozen=True, slots=True)
class RefuseModel:
    """List this model as UNAVAILABLE, and do not load it."""

    name: str
    error: RequestError


Action: TypeAlias = LoadModel | RefuseModel


def startup_actions(scans: Iterable[Sequence[ModelFiles]]) -> list[Action]:
    """Return what to do at the start, by model name, when everything is to be loaded.

    Args:
      scans: The models of each repository.
    """
    found: dict[str, list[ModelFiles]] = {}
    for scan in scans:
        for files in scan:
            found.setdefault(files.name, []).append(files)
    return [_action(name, found[name]) for name in sorted(found)]


def _action(name: str, found: list[ModelFiles]) -> Action:
    if len(found) > 1:
        places = " and ".join(f"'{files.directory}'" for files in found)
        return RefuseModel(
            name,
            invalid_argument(f"model '{name}' must lie in one repository only, found {places}"),
        )
    files = found[0]
    if files.fault is not None:
        return RefuseModel(name, files.fault)
    return LoadModel(files)
