"""Finds models in the repositories, and those that they need; nothing is loaded here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.wording import quoted
from ._load_rules import is_model_name
from ._model_keys import ambiguous, key_of, name_of
from ._model_preparation import written_needs
from ._model_relations import Needs, related
from ._repository_policy import Action, ModelFiles, changes, grouped
from ._repository_scan import (
    ScanSettings,
    check_repository,
    distinct,
    find_model,
    glance,
    list_repository,
    scan_model,
    scan_repository,
)
from ._worker_threads import RunInThread
from .served_models import ServedModels


@dataclass(frozen=True, slots=True)
class Survey:
    """What the load of one model has to do with.

    Attributes:
      asked: The keys of the models of the name; the name itself if there are none.
      found: Model key -> where it lies; those of the name, and those that they need and that are
        not READY.
      needs: Model key -> the keys of the models that its configuration names.
    """

    asked: frozenset[str]
    found: dict[str, list[ModelFiles]]
    needs: dict[str, frozenset[str]]


@final
class ModelFinder:
    """Looks into the repositories, on worker threads.

    Args:
      repositories: Directories of model directories.
      settings: What is read of models.
      run_in_thread: Runs what blocks.
      models: What is served.
    """

    def __init__(
        self,
        *,
        repositories: Sequence[Path],
        settings: ScanSettings,
        run_in_thread: RunInThread,
        models: ServedModels,
    ) -> None:
        self._repositories = list(repositories)
        self._places: Collection[Path] = ()  # without links, as of the start
        self._settings = settings
        self._run_in_thread = run_in_thread
        self._models = models
        self._registered: dict[Path, Mapping[str, Path]] = {}  # repository -> name -> model

    def __repr__(self) -> str:
        return f"<ModelFinder in {len(self._repositories)} repositories>"

    async def open(self) -> None:
        """Find out which repositories are the same.

        Raises:
          RequestError: one of them is a model itself.
        """
        places = await self._run_in_thread(distinct, self._repositories)
        self._places, self._repositories = places.keys(), list(places.values())
        for repository in self._repositories:
            await self._run_in_thread(check_repository, repository)

    def register(self, repository: Path, models: Mapping[str, Path]) -> None:
        """Find these models, too: name -> directory, in a repository that is not known yet.

        Raises:
          RequestError: ALREADY_EXISTS; it is, or a model of one of the names is registered.
        """
        known = {name for one in self._registered.values() for name in one} & models.keys()
        if repository in self._registered or repository in self._places:
            what = f"the repository {quoted(str(repository))}"
        elif known:
            what = f"the model {quoted(min(known))}"
        else:
            self._registered[repository] = models
            return
        raise RequestError(ErrorCode.ALREADY_EXISTS, f"{what} is registered already")

    def unregister(self, repository: Path) -> Collection[str]:
        """Find the models of a repository no more that was registered; return their names."""
        return self._registered.pop(repository).keys()

    async def keys(self) -> list[str]:
        """Return the keys of all models.

        Raises:
          RequestError: a repository cannot be read.
        """
        keys: set[str] = set()
        for repository in self._repositories:
            namespace = str(repository) if self._settings.namespaces else ""
            directories = await self._run_in_thread(list_repository, repository)
            keys.update(key_of(namespace, directory.name) for directory in directories)
        return sorted(keys)

    async def all(self) -> dict[str, list[ModelFiles]]:
        """Return all models by key.

        Raises:
          RequestError: a repository cannot be read.
        """
        return grouped(
            [
                await self._run_in_thread(scan_repository, repository, self._settings)
                for repository in self._repositories
            ]
        )

    async def glance(self) -> dict[str, list[ModelFiles]]:
        """Return what all models look like, by key, and nothing else of them.

        Raises:
          RequestError: a repository cannot be read.
        """
        return grouped(
            [
                await self._run_in_thread(glance, repository, self._settings)
                for repository in self._repositories
            ]
        )

    async def scan(self, directories: Iterable[Path]) -> list[ModelFiles]:
        """Return what lies in the directories of a model now."""
        return [
            await self._run_in_thread(scan_model, directory, self._settings)
            for directory in directories
        ]

    async def needs(self, files: Iterable[ModelFiles]) -> frozenset[str]:
        """Return the models that the configurations of a model name."""
        needs = [await self._run_in_thread(written_needs, each) for each in files]
        return frozenset[str]().union(*needs)

    async def find(self, name: str) -> list[ModelFiles]:
        """Return where a model lies; a name that cannot be a model's is looked for nowhere."""
        if not is_model_name(name):
            return []
        found = await self._run_in_thread(find_model, self._repositories, name, self._settings)
        for directory in [one[name] for one in self._registered.values() if name in one]:
            files = await self._run_in_thread(scan_model, directory, self._settings)
            found.append(replace(files, name=name, renamed=True))
        return found

    async def survey(self, name: str, found: Sequence[ModelFiles] | None = None) -> Survey:
        """Look for a model, and for those that it needs and that are not READY.

        Args:
          name: The model.
          found: Where it lies, if that is known.
        """
        asked = grouped([await self.find(name) if found is None else found]) or {name: []}
        survey = Survey(frozenset(asked), {}, {})
        left = list(asked.items())
        while left:
            key, files = left.pop()
            if key in survey.found:
                continue
            survey.found[key] = files
            needs: set[str] = set()
            for needed in await self.needs(files):
                lying = await self._needed(key_of(files[0].namespace, needed), needed)
                left += [each for each in lying.items() if not self._models.is_ready(each[0])]
                needs |= lying.keys()
            survey.needs[key] = frozenset(needs)
        return survey

    async def _needed(self, own: str, name: str) -> dict[str, list[ModelFiles]]:
        """Return where a model lies that another one needs: key -> where; in all namespaces.

        Args:
          own: Its key in the namespace of the one that needs it; that is enough if it is READY.
          name: Its name.
        """
        if self._models.is_ready(own):
            return {own: []}
        return grouped([await self.find(name)]) or {own: []}

    async def namespace_of(self, name: str) -> str:
        """Return the namespace of the one model of a name; "" if there is none yet.

        Raises:
          RequestError: INVALID_ARG; there are several.
        """
        found = {files.key: files.namespace for files in await self.find(name)}
        if len(found) > 1:
            raise ambiguous(name, found)
        return next(iter(found.values()), "")

    async def lies_somewhere(self, key: str) -> bool:
        """Return whether the model of a key lies in a repository."""
        return any(files.key == key for files in await self.find(name_of(key)))

    def plan(self, survey: Survey) -> list[Action]:
        """Return what a survey leads to; a model that lies nowhere is left as it is."""
        found = {key: files for key, files in survey.found.items() if files}
        return changes(self._models.running(found), found)

    def related(self, keys: Iterable[str], new: Needs) -> frozenset[str]:
        """Return the models that have to do with some, given what is served and what is new."""
        needs = {key: set(needed) for key, needed in self._models.needs().items()}
        for key, needed in new.items():
            needs.setdefault(key, set()).update(needed)
        return related(keys, needs)

    def not_found(self, name: str) -> RequestError:
        """Return the error for a model that lies nowhere."""
        return RequestError(
            ErrorCode.INTERNAL,
            f"model {quoted(name)} cannot be loaded: expected a directory of that name in a model "
            f"repository, found it in none of {len(self._repositories)}",
        )
