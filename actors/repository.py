"""The repository actor: finds the models, and owns their subtrees from load to unload.

There is one model control mode so far, NONE: everything is loaded at the start. The others would
make their own actions (see `_repository_policy`) and carry them out with the same `_perform`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, TypeVarTuple, assert_never, final

import trio

from ..protocol.config_ensemble import composing_models
from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.wording import quoted
from ._ensemble_validation import too_deep, with_transaction_policy
from ._model_preparation import PreparationSettings, PreparedVersion, prepare_model
from ._model_services import ModelServices
from ._repository_policy import Action, LoadModel, ModelFiles, RefuseModel, startup_actions, waves
from ._repository_scan import scan_repository
from ._worker_threads import RunInThread
from .model import Model, ModelDefinition, reason_of
from .routing_table import FailedVersion, ModelEntry, ModelVersion, RoutingTable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MODEL_LOADS_MAX = 4
"""Models loaded at a time: Triton's default of `--model-load-thread-count`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """What the repository works with.

    Attributes:
      repositories: Directories of model directories.
      preparation: How configurations are made complete.
      run_in_thread: Runs scans and preparations.
      services: What the models share.
    """

    repositories: tuple[Path, ...]
    preparation: PreparationSettings
    run_in_thread: RunInThread
    services: ModelServices = field(default_factory=ModelServices)


@final
class Repository:
    """Loads models and keeps each in a subtree of its own, so that none takes another down.

    Lifetime: `run` returns after `stop`, once every subtree has ended.
    """

    def __init__(
        self, settings: RepositorySettings, *, publish: Callable[[ModelEntry], None]
    ) -> None:
        self._settings = settings
        self._services = replace(settings.services, find=self.find)
        self._publish = publish
        self._loads = trio.CapacityLimiter(MODEL_LOADS_MAX)
        self._entries: dict[str, ModelEntry] = {}
        self._table = RoutingTable({})
        self._ensembles: dict[str, list[PreparedVersion]] = {}  # found, and not loaded yet
        self._running: list[list[_Running]] = [[]]  # in waves: each needs earlier ones only
        self._stopped = trio.Event()

    def __repr__(self) -> str:
        return f"<Repository of {sum(map(len, self._running))} model versions>"

    def find(self, name: str, version: str) -> ModelVersion:
        """Return a READY version for a model that uses other models; see `RoutingTable.find`.

        Unlike for frontends, there are models while the server exits: what is in flight finishes.
        """
        return self._table.find(name, version)

    def _find_config(self, name: str, version: str) -> ModelConfig:
        return self.find(name, version).config

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load everything; started once every load has ended, in success or not.

        Raises:
          RequestError: a repository cannot be read; before the start only.
        """
        actions = await self._scan()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as loads:
                for action in actions:
                    loads.start_soon(self._perform, action, nursery)
            await self._load_ensembles(nursery)
            task_status.started()
            await self._stopped.wait()

    async def stop(self, deadline_s: float) -> None:
        """Let all models drain and unload; what takes longer is cut off at `deadline_s`.

        A model goes on until those that use it have ended.
        """
        for wave in reversed(self._running):
            for running in wave:
                await running.model.stop(deadline_s)
            for running in wave:
                await running.ended.wait()
        self._stopped.set()

    async def _scan(self) -> list[Action]:
        """Return what is to be done at the start, with every model in the index already."""
        settings = self._settings
        repositories = await settings.run_in_thread(_distinct, settings.repositories)
        scans = [await settings.run_in_thread(scan_repository, path) for path in repositories]
        actions = startup_actions(scans)
        for action in actions:
            name = action.files.name if isinstance(action, LoadModel) else action.name
            self._show(ModelEntry(name))
        return actions

    def _show(self, entry: ModelEntry) -> None:
        """Take over what is new about one model, and make it known."""
        self._entries[entry.name] = entry
        self._table = RoutingTable(self._entries.copy())
        self._publish(entry)

    async def _perform(self, action: Action, nursery: trio.Nursery) -> None:
        match action:
            case LoadModel(files=files):
                async with self._loads:
                    await self._load(files, nursery)
            case RefuseModel(name=name, error=error):
                self._refuse(name, error)
            case _:
                assert_never(action)

    def _refuse(self, name: str, error: RequestError) -> None:
        self._show(ModelEntry(name, reason=reason_of(error)))

    async def _load(self, files: ModelFiles, nursery: trio.Nursery) -> None:
        """Load one model, or put it back if it is an ensemble."""
        try:
            prepared = await self._prepare(files)
        except RequestError as error:
            self._refuse(files.name, error)
            return
        except Exception as error:  # one model never takes another down
            _logger.exception("preparing model %r failed", files.name)
            self._refuse(files.name, _unexpected(error))
            return
        if any(_composing_models(each) for each in prepared):
            self._ensembles[files.name] = prepared
        else:
            await self._load_versions(files.name, prepared, nursery, self._running[0])

    async def _prepare(self, files: ModelFiles) -> list[PreparedVersion]:
        """Return what `prepare_model` does; a thread that hangs is abandoned.

        Raises:
          RequestError: as `prepare_model`; or it took too long.
        """
        settings = self._settings.preparation
        with trio.move_on_after(settings.load_max_s):
            return await self._settings.run_in_thread(prepare_model, files, settings)
        raise RequestError(
            ErrorCode.UNAVAILABLE,
            f"model '{files.name}': its configuration was not completed within "
            f"{settings.load_max_s:g} s",
        )

    async def _load_ensembles(self, nursery: trio.Nursery) -> None:
        """Load the ensembles, each after the models it uses."""
        prepared, self._ensembles = self._ensembles, {}
        needed = {
            name: [model for each in versions for model in _composing_models(each)]
            for name, versions in prepared.items()
        }
        ordered, refused = waves(needed)
        refused |= too_deep(ordered, needed)
        for name, error in refused.items():
            self._refuse(name, error)
        for wave in ordered:
            self._running.append([])
            async with trio.open_nursery() as loads:
                for name in (each for each in wave if each not in refused):
                    fault = self._unmet(name, needed[name])
                    if fault is not None:
                        self._refuse(name, fault)
                        continue
                    loads.start_soon(
                        self._load_versions, name, prepared[name], nursery, self._running[-1]
                    )

    def _unmet(self, name: str, needed: Iterable[str]) -> RequestError | None:
        """Return why an ensemble cannot be loaded, if a model that it needs is not."""
        for model in needed:
            if self._table.versions_ready(model):
                continue
            entry = self._entries.get(model)
            reason = "there is no such model" if entry is None else _reason(entry)
            return invalid_argument(
                f"ensemble '{name}' needs model {quoted(model)}, which has no loaded version: "
                f"{reason}"
            )
        return None

    async def _load_versions(
        self,
        name: str,
        prepared: list[PreparedVersion],
        nursery: trio.Nursery,
        wave: list[_Running],
    ) -> None:
        """Load the selected versions of one model side by side."""
        versions: list[ModelVersion | FailedVersion] = []

        def report() -> None:
            self._show(ModelEntry(name, tuple(versions)))

        started: list[_Running] = []
        for each in prepared:
            made = self._make_model(each, report)
            if isinstance(made, Model):
                started.append(_Running(made))
                versions.append(made.version)
            else:
                versions.append(made)
        report()
        wave += started
        async with trio.open_nursery() as loads:
            for running in started:
                loads.start_soon(nursery.start, _run_contained, running)

    def _make_model(
        self, prepared: PreparedVersion, report: Callable[[], None]
    ) -> Model | FailedVersion:
        error = prepared.error
        config = prepared.config
        if config is not None:
            try:
                if config.ensemble_scheduling is not None:
                    config = with_transaction_policy(config, self._find_config)
                definition = ModelDefinition(
                    source=prepared.source,
                    config=config,
                    labels=prepared.labels,
                    backend=prepared.backend,
                    initial_files=prepared.initial_files,
                    strategy=prepared.strategy,
                    services=self._services,
                )
                return Model(definition, report=report)
            except RequestError as fault:
                error = fault
                if prepared.strategy is not None:
                    prepared.strategy.close()
        assert error is not None
        return FailedVersion(str(prepared.version), reason_of(error))


def _distinct(repositories: Iterable[Path]) -> list[Path]:
    """Return each directory once, however often and however it is spelt."""
    return sorted({Path(os.path.realpath(path)) for path in repositories})


@dataclass(frozen=True, slots=True)
class _Running:
    """A model version with a subtree; `ended` is set when that has ended."""

    model: Model
    ended: trio.Event = field(default_factory=trio.Event)


def _composing_models(prepared: PreparedVersion) -> list[str]:
    return [] if prepared.config is None else composing_models(prepared.config)


def _reason(entry: ModelEntry) -> str:
    """Return why a model has no loaded version."""
    reasons = [entry.reason, *(version.reason for version in entry.versions)]
    return next(filter(None, reasons), "it is not loaded")


async def _run_contained(
    running: _Running, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a model's subtree; its crash makes that version UNAVAILABLE, and nothing else."""
    started = _Once(task_status)
    model = running.model
    try:
        await model.run(task_status=started)
    except Exception as error:  # one model never takes another down
        _logger.exception("%r crashed", model)
        model.fail(_unexpected(error))
        started.started()
    finally:
        running.ended.set()


class _Once:
    """A task status that may be told twice."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status: trio.TaskStatus[None] | None = task_status

    def started(self, value: None = None) -> None:
        task_status, self._task_status = self._task_status, None
        if task_status is not None:
            task_status.started(value)


def _unexpected(error: Exception) -> RequestError:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return RequestError(ErrorCode.INTERNAL, f"unexpected {type(error).__name__}: {error}")
