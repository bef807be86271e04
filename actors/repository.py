"""The repository actor: finds the models, and owns their subtrees from load to unload.

There is one model control mode so far, NONE: everything is loaded at the start. The others would
make their own actions (see `_repository_policy`) and carry them out with the same `_perform`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, TypeVarTuple, assert_never, final

import trio

from ..protocol.errors import ErrorCode, RequestError
from ._device_link import DeviceFactory
from ._model_preparation import PreparationSettings, PreparedVersion, prepare_model
from ._repository_policy import Action, LoadModel, ModelFiles, RefuseModel, startup_actions
from ._repository_scan import scan_repository
from ._restart_policy import RestartBudget
from .model import Model, ModelDefinition, reason_of
from .routing_table import FailedVersion, ModelEntry, ModelVersion

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MODEL_LOADS_MAX = 4
"""Models loaded at a time: Triton's default of `--model-load-thread-count`."""

_logger = logging.getLogger(__name__)


class RunInThread(Protocol):
    """Runs blocking work off the event loop."""

    async def __call__(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        """Return or raise what `job(*args)` does."""


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """What the repository works with.

    Attributes:
      repositories: Directories of model directories.
      preparation: How configurations are made complete.
      device_factory: Makes the devices of instances.
      run_in_thread: Runs scans and preparations.
      budget: How often an instance may be restarted.
    """

    repositories: tuple[Path, ...]
    preparation: PreparationSettings
    device_factory: DeviceFactory
    run_in_thread: RunInThread
    budget: RestartBudget = field(default_factory=RestartBudget)


@final
class Repository:
    """Loads models and keeps each in a subtree of its own, so that none takes another down.

    Lifetime: `run` returns after `stop`, once every subtree has ended.
    """

    def __init__(
        self, settings: RepositorySettings, *, publish: Callable[[ModelEntry], None]
    ) -> None:
        self._settings = settings
        self._publish = publish
        self._loads = trio.CapacityLimiter(MODEL_LOADS_MAX)
        self._models: list[Model] = []
        self._stopped = trio.Event()

    def __repr__(self) -> str:
        return f"<Repository of {len(self._models)} model versions>"

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
            task_status.started()
            await self._stopped.wait()

    async def stop(self, deadline_s: float) -> None:
        """Let all models drain and unload; what takes longer is cut off at `deadline_s`."""
        for model in self._models:
            await model.stop(deadline_s)
        self._stopped.set()

    async def _scan(self) -> list[Action]:
        """Return what is to be done at the start, with every model in the index already."""
        settings = self._settings
        repositories = await settings.run_in_thread(_distinct, settings.repositories)
        scans = [await settings.run_in_thread(scan_repository, path) for path in repositories]
        actions = startup_actions(scans)
        for action in actions:
            name = action.files.name if isinstance(action, LoadModel) else action.name
            self._publish(ModelEntry(name))
        return actions

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
        self._publish(ModelEntry(name, reason=reason_of(error)))

    async def _load(self, files: ModelFiles, nursery: trio.Nursery) -> None:
        """Load the selected versions of one model side by side."""
        settings = self._settings
        try:
            prepared = await settings.run_in_thread(prepare_model, files, settings.preparation)
        except RequestError as error:
            self._refuse(files.name, error)
            return
        except Exception as error:  # one model never takes another down
            _logger.exception("preparing model %r failed", files.name)
            self._refuse(files.name, _unexpected(error))
            return
        versions: list[ModelVersion | FailedVersion] = []

        def report() -> None:
            self._publish(ModelEntry(files.name, tuple(versions)))

        models: list[Model] = []
        for each in prepared:
            made = self._make_model(each, report)
            if isinstance(made, Model):
                models.append(made)
                versions.append(made.version)
            else:
                versions.append(made)
        report()
        self._models += models
        async with trio.open_nursery() as loads:
            for model in models:
                loads.start_soon(nursery.start, _run_contained, model)

    def _make_model(
        self, prepared: PreparedVersion, report: Callable[[], None]
    ) -> Model | FailedVersion:
        error = prepared.error
        if prepared.config is not None:
            definition = ModelDefinition(
                source=prepared.source,
                config=prepared.config,
                labels=prepared.labels,
                backend=prepared.backend,
                device_factory=self._settings.device_factory,
                budget=self._settings.budget,
            )
            try:
                return Model(definition, report=report)
            except RequestError as fault:
                error = fault
        assert error is not None
        return FailedVersion(str(prepared.version), reason_of(error))


def _distinct(repositories: Iterable[Path]) -> list[Path]:
    """Return each directory once, however often and however it is spelt."""
    return sorted({Path(os.path.realpath(path)) for path in repositories})


async def _run_contained(
    model: Model, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a model's subtree; its crash makes that version UNAVAILABLE, and nothing else."""
    started = _Once(task_status)
    try:
        await model.run(task_status=started)
    except Exception as error:  # one model never takes another down
        _logger.exception("%r crashed", model)
        model.fail(_unexpected(error))
        started.started()


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
