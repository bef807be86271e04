"""What is to be loaded, given what lies in the repositories?  Pure: no trio, no clock, no I/O.

Source: Triton's model repository layout and its rules for names that occur twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
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


def waves(
    dependencies: Mapping[str, Collection[str]],
) -> tuple[list[list[str]], dict[str, RequestError]]:
    """Return in which order models are loaded that need each other.

    Args:
      dependencies: Model -> the models it needs; those that are not in it need nothing.

    Returns:
      The models in waves, each of which needs earlier ones only, and the error for each model
      that needs itself by way of others; those that need such a model are not among them.
    """
    refused: dict[str, RequestError] = {}
    while True:
        left = {
            name: [each for each in needed if each in dependencies and each not in refused]
            for name, needed in sorted(dependencies.items())
            if name not in refused
        }
        sorter = TopologicalSorter(left)
        try:
            sorter.prepare()
        except CycleError as error:
            refused |= _circular(error.args[1][1:])
        else:
            break
    ordered: list[list[str]] = []
    while sorter.is_active():
        wave = sorter.get_ready()
        ordered.append(sorted(wave))
        sorter.done(*wave)
    return ordered, refused


def _circular(names: Sequence[str]) -> dict[str, RequestError]:
    """Return the error of each model of a circle; each name is used by the next."""
    errors: dict[str, RequestError] = {}
    for index, name in enumerate(names):
        circle = [name, *reversed(names[:index]), *reversed(names[index:])]
        chain = " -> ".join(f"'{each}'" for each in circle)
        errors[name] = invalid_argument(f"ensemble '{name}' uses itself: {chain}")
    return errors
