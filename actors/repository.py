"""The repository actor: owns the subtrees of all models, from load to unload.

What is to be done is an `Action` (see `_repository_policy`), whoever asks for it: the start, a
request, or a look at what has changed. `carry_out` does it. Versions are replaced without a gap:
the new ones are READY, then they are found in place of the old ones, which finish what they have.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import final

import trio

from ..protocol.errors import RequestError
from ._model_keys import name_of, printed
from ._model_preparation import PreparationSettings
from ._model_relations import dependents, left_over
from ._model_services import ModelServices
from ._override_files import OverrideFiles
from ._repository_policy import (
    Action,
    LoadModel,
    ModelFiles,
    RefuseModel,
    UnloadModel,
    changes,
)
from ._repository_scan import ScanSettings
from ._worker_threads import RunInThread
from .changeover import Changeover
from .model_finder import ModelFinder
from .model_loader import ModelLoader
from .routing_table import UNLOADED
from .served_models import Running, ServedModels

MODEL_LOADS_MAX = 4
"""Models loaded at a time: Triton's default of `--model-load-thread-count`."""

PYTHON = "python"
"""The backend whose models are code: modules, functions and classes that hold each other, and what
is global in them. Python would collect them some day, without a look at how large that is."""

ALL_MODELS = "*"
"""Stands for every model there is, among those that explicit control loads at the start."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """What the repository works with.

    Attributes:
      repositories: Directories of model directories.
      preparation: How configurations are made complete.
      run_in_thread: Runs scans and preparations.
      services: What the models share.
      scan: What is read of models.
      startup_models: The models to load at the start; None for all.
      loads_max: Models loaded at a time.
      retries: How often the load of a model that failed is tried again.
    """

    repositories: tuple[Path, ...]
    preparation: PreparationSettings
    run_in_thread: RunInThread
    services: ModelServices = field(default_factory=ModelServices)
    scan: ScanSettings = field(default_factory=ScanSettings)
    startup_models: tuple[str, ...] | None = None
    loads_max: int = MODEL_LOADS_MAX
    retries: int = 0


@final
class Repository:
    """Loads models and keeps each in a subtree of its own, so that none takes another down.

    Lifetime: `run` returns after `stop`, once every subtree has ended.

    Attributes:
      models: What is served.
      finder: Looks into the directories.
      loader: Makes model versions run.
      ended: Whether nothing can be carried out any more.
      first: Model key -> where it lay at the start, if every model was looked for.
    """

    def __init__(self, settings: RepositorySettings, *, models: ServedModels) -> None:
        self.models = models
        self.finder = ModelFinder(
            repositories=settings.repositories,
            settings=settings.scan,
            run_in_thread=settings.run_in_thread,
            models=models,
        )
        self.loader = ModelLoader(
            loads_max=settings.loads_max,
            retries=settings.retries,
            preparation=settings.preparation,
            run_in_thread=settings.run_in_thread,
            services=settings.services,
            models=models,
        )
        self.first: dict[str, list[ModelFiles]] = {}
        self._startup_models = settings.startup_models
        self._subtrees: trio.Nursery | None = None
        self.ended = False
        self._deadline_s = inf
        self._stopped = trio.Event()

    def __repr__(self) -> str:
        return f"<Repository of {self.models!r}>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load what is to be loaded at the start; started once every load has ended.

        Raises:
          RequestError: a repository cannot be read; before the start only.
        """
        await self.finder.open()
        actions = await self._first_actions()
        async with trio.open_nursery() as nursery:
            self._subtrees = nursery
            asked = self._startup_models
            implicit = {each.key for each in actions if asked and name_of(each.key) not in asked}
            await self.carry_out(actions, implicit=implicit)
            task_status.started()
            try:
                await self._stopped.wait()
            finally:
                self.ended = True

    async def stop(self, deadline_s: float) -> None:
        """Let all models drain and unload; what takes longer is cut off at `deadline_s`.

        A model goes on until those that use it have ended. Nothing is carried out meanwhile.
        """
        self._deadline_s = deadline_s
        await self._end(self.models.alive)
        self._stopped.set()

    async def _first_actions(self) -> list[Action]:
        """Return what to do at the start, with every model in the index already.

        Raises:
          RequestError: a repository cannot be read.
        """
        wanted = self._startup_models
        if wanted is None or wanted == (ALL_MODELS,):
            self.first = await self.finder.all()
            actions = changes({}, self.first)
            for action in actions:
                self.models.show(action.key, {})
            return actions
        for key in await self.finder.keys():
            self.models.show(key, {})
        by_key: dict[str, Action] = {}
        for name in wanted:
            survey = await self.finder.survey(name)
            by_key |= {action.key: action for action in self.finder.plan(survey)}
            if not any(survey.found[key] for key in survey.asked):
                by_key[name] = RefuseModel(name, self.finder.not_found(name))
        return list(by_key.values())

    async def carry_out(
        self,
        actions: Iterable[Action],
        *,
        implicit: Collection[str] = (),
        held: Mapping[str, OverrideFiles] | None = None,
    ) -> dict[str, RequestError]:
        """Do what is to be done; related models must not be in two calls at a time.

        A version that is replaced goes on until the end of all these actions, so that ensembles
        that run find their models.

        Args:
          actions: At most one a model.
          implicit: Models that nobody asked for but ensembles.
          held: Model key -> the files that came with its load request.

        Returns:
          Model key -> why it was not loaded.
        """
        changeover = Changeover(
            models=self.models,
            loader=self.loader,
            nursery=self.nursery,
            implicit=implicit,
            held=held or {},
        )
        loads: list[LoadModel | RefuseModel] = []
        for action in actions:
            if isinstance(action, UnloadModel):
                self.unload(action.key)
                changeover.note_unloaded(action.key)
            else:
                loads.append(action)
        try:
            await changeover.load(loads)
        finally:
            self._retire(changeover.retired)
        return changeover.errors

    def unload(self, key: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model, and the ensembles that cannot go on without it.

        Those come back once it is loaded again.

        Args:
          key: The model; if it is not loaded, nothing is done.
          unload_dependents: Whether models go too that were loaded for it alone.
        """
        models = self.models
        if key not in models.served:
            return
        needs = models.needs()
        gone = {key}
        if unload_dependents:
            gone |= left_over(key, needs, models.implicit())
        retired: list[Running] = []
        without = dependents(gone, needs) - gone
        for each in sorted(without):
            missing = name_of(min((gone | without).intersection(needs[each])))
            reason = f"{UNLOADED}, since it needs model '{missing}', which is not loaded any more"
            for running in models.served[each].versions.values():
                if running.ready:
                    about = {"model": running.version.name, "version": running.version.version}
                    _logger.warning("ensemble %r is %s", printed(each), reason, extra=about)
                running.model.begin_unload(reason)
                retired.append(running)
            models.served[each].versions = {}
        for each in gone:
            retired += models.served.pop(each).versions.values()
        for running in retired:
            running.model.begin_unload()
        for each in gone:
            models.show_unloaded(each)
        self._retire(retired, gone)

    @property
    def nursery(self) -> trio.Nursery:
        """Where the subtrees of models run, and whatever changes them."""
        assert self._subtrees is not None, "run() comes first"
        return self._subtrees

    def _retire(self, versions: Collection[Running], gone: Collection[str] = ()) -> None:
        """Have versions drained that nobody finds any more, and forget models without a place."""
        for running in versions:
            running.model.begin_unload()
        if versions or gone:
            self.nursery.start_soon(self._drain, list(versions), list(gone))

    async def _drain(self, versions: list[Running], gone: list[str]) -> None:
        await self._end(versions)
        code = any(running.version.config.backend == PYTHON for running in versions)
        versions.clear()
        if code and not self._stopped.is_set():
            gc.collect()
        for key in gone:
            if not self._stopped.is_set() and not await self.finder.lies_somewhere(key):
                self.models.forget(key)

    async def _end(self, versions: Iterable[Running]) -> None:
        """Stop versions, those of ensembles before those of the models they use."""
        by_depth: dict[int, list[Running]] = {}
        for running in versions:
            by_depth.setdefault(running.depth, []).append(running)
        for depth in sorted(by_depth, reverse=True):
            async with trio.open_nursery() as stops:
                for running in by_depth[depth]:
                    stops.start_soon(self._end_one, running)

    async def _end_one(self, running: Running) -> None:
        await running.model.stop(self._deadline_s)
        await running.ended.wait()
