"""What is to be done, given what runs and what lies in the repositories?  Pure: no trio, no I/O.

Source: Triton's model repository layout, its rules for names that occur twice, and its rule that a
load without a change does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ..protocol.errors import RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ._model_keys import key_of, name_of


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the files of a model looked like; it differs once any of them was changed.

    Attributes:
      shared: Digest over all that is neither configuration nor in the directory of a version.
      versions: Version number -> digest over what is in its directory.
      config: Digest over the configurations.
    """

    shared: str
    versions: Mapping[int, str] = field(default_factory=dict)
    config: str = ""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model directory, as a scan found it, or as a load request brought it.

    Attributes:
      name: The directory's name, and so the model's.
      directory: Where it lies.
      versions: Version number -> names of the entries of its directory.
      config_text: The content of its configuration file, or None where there is none.
      config_path: The path of that file.
      config: The configuration that a load request gives in place of the file, or None.
      fingerprint: What its files look like; None where nobody compares.
      fault: Why the directory cannot be read, or None.
      renamed: Whether somebody chose the name, whatever the directory and the configuration say.
      namespace: The repository that tells it from models of the same name; "" without namespaces.
    """

    name: str
    directory: Path
    versions: dict[int, tuple[str, ...]]
    config_text: bytes | None = None
    config_path: Path | None = None
    config: ModelConfig | None = None
    fingerprint: Fingerprint | None = None
    fault: RequestError | None = None
    renamed: bool = False
    namespace: str = ""

    @property
    def key(self) -> str:
        """What tells it from all other models; see `_model_keys`."""
        return key_of(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class RunningModel:
    """A model that was asked for and not unloaded since.

    Attributes:
      fingerprint: What the files looked like that it was loaded from; None if it failed to load,
        or was loaded from what a request brought, so that whatever lies there is new.
      selected: The versions that were to be loaded.
      ready: Those of them that are READY.
    """

    fingerprint: Fingerprint | None
    selected: frozenset[int] = frozenset()
    ready: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load this model, but for versions that run from the same files already.

    Attributes:
      files: Where it lies.
      unchanged: Versions that run from the same files.
      reconfigured: Versions that run from the same files but for the configuration; they may go on
        if little enough of that has changed.
    """

    files: ModelFiles
    unchanged: frozenset[int] = frozenset()
    reconfigured: frozenset[int] = frozenset()

    @property
    def key(self) -> str:
        """The model's key."""
        return self.files.key


@dataclass(frozen=True, slots=True)
class RefuseModel:
    """Do not load the model of a key; what runs of it goes on."""

    key: str
    error: RequestError


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Unload the model of a key, since it lies nowhere any more."""

    key: str


Action: TypeAlias = LoadModel | RefuseModel | UnloadModel


def changes(
    running: Mapping[str, RunningModel], found: Mapping[str, Sequence[ModelFiles]]
) -> list[Action]:
    """Return what makes the models that run those that lie in the repositories, by key.

    Args:
      running: Model key -> what runs of it; only those that are asked about.
      found: Model key -> where it was found, in all repositories.
    """
    actions = (
        _action(key, running.get(key), found.get(key, ()))
        for key in sorted(running.keys() | found.keys())
    )
    return [action for action in actions if action is not None]


def grouped(scans: Iterable[Sequence[ModelFiles]]) -> dict[str, list[ModelFiles]]:
    """Return the models of all repositories by key."""
    found: dict[str, list[ModelFiles]] = {}
    for scan in scans:
        for files in scan:
            found.setdefault(files.key, []).append(files)
    return found


def _action(key: str, running: RunningModel | None, found: Sequence[ModelFiles]) -> Action | None:
    if not found:
        return UnloadModel(key)
    if len(found) > 1:
        places = " and ".join(f"'{files.directory}'" for files in found)
        return RefuseModel(
            key,
            invalid_argument(
                f"model '{name_of(key)}' must lie in one repository only, found {places}"
            ),
        )
    files = found[0]
    if files.fault is not None:
        return RefuseModel(key, files.fault)
    if running is None or running.fingerprint is None or files.fingerprint is None:
        return LoadModel(files)
    if files.fingerprint == running.fingerprint and running.selected == running.ready:
        return None
    unchanged = _unchanged(running, running.fingerprint, files.fingerprint)
    if files.fingerprint.config == running.fingerprint.config:
        return LoadModel(files, unchanged)
    return LoadModel(files, reconfigured=unchanged)


def _unchanged(running: RunningModel, before: Fingerprint, now: Fingerprint) -> frozenset[int]:
    """Return the versions that run and need no load, whatever the configuration says."""
    if before.shared != now.shared:
        return frozenset()
    return frozenset(
        version
        for version in running.ready
        if version in now.versions and before.versions.get(version) == now.versions[version]
    )
