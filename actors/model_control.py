"""What can be asked about models while the server runs; the repository answers it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from ..protocol.errors import RequestError


@dataclass(frozen=True, slots=True)
class LoadOverride:
    """What a load request says of a model in place of what lies in the repository.

    Attributes:
      config_json: The whole configuration as JSON text, instead of `config.pbtxt`; None for that.
      files: `<version>/<path>` below the model's directory -> content. If there are any, they are
        the whole directory, the repository is not looked at, and `config_json` is needed.
    """

    config_json: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


class ModelControl(Protocol):
    """Loads and unloads models on request; names are checked here, not by whoever asks."""

    async def load(self, name: str, override: LoadOverride | None = None) -> None:
        """Load a model, or load it anew where something has changed; return once that has ended.

        The versions that are READY meanwhile serve until the new ones do.

        Raises:
          RequestError: UNAVAILABLE without explicit control; INVALID_ARG for a name that is none,
            an override that is wrong or a model that failed to load, whose old versions stay.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model; requests in flight finish. An unknown one is no error.

        Raises:
          RequestError: UNAVAILABLE without explicit control.
        """


Done: TypeAlias = Callable[[RequestError | None], None]
"""Told how a load or unload ended; must neither raise nor wait."""


class StartsControl(Protocol):
    """Loads and unloads models for those who cannot await; on the event loop only."""

    def start_load(self, name: str, override: LoadOverride | None, done: Done) -> None:
        """Do as `ModelControl.load` without waiting; `done` is told how it ended, exactly once.

        Raises:
          RequestError: it does not even begin; `done` is told nothing.
        """

    def start_unload(self, name: str, unload_dependents: bool, done: Done) -> None:
        """Do as `ModelControl.unload` without waiting; see `start_load`."""


class RegistersModels(StartsControl, Protocol):
    """Has models found that lie in none of the server's repositories."""

    async def register(self, repository: Path, models: Mapping[str, Path]) -> None:
        """Have models found in a directory, under names of the caller's choice.

        Args:
          repository: The directory, without links; what `unregister` takes.
          models: Name -> directory of the model.

        Raises:
          RequestError: UNAVAILABLE without explicit control; INVALID_ARG for a name that is none;
            ALREADY_EXISTS if the directory or one of the names is known.
        """

    def unregister(self, repository: Path) -> Collection[str]:
        """Have the models of a directory found no more; what is loaded of them goes on.

        Returns:
          Their names.
        """

    async def unloaded(self, names: Collection[str]) -> None:
        """Wait until the versions of these models that run now have ended."""
