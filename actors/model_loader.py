"""Loads the versions of models: prepares them, starts their subtrees, and contains what they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, final

import trio

from ..protocol.config_ensemble import steps_of
from ..protocol.errors import ErrorCode, RequestError
from ._ensemble_validation import with_transaction_policy
from ._model_keys import namespace_of
from ._model_preparation import (
    PreparationSettings,
    PreparedModel,
    PreparedVersion,
    prepare_model,
)
from ._model_services import ModelServices
from ._override_files import OverrideFiles
from ._repository_policy import ModelFiles
from ._worker_threads import RunInThread
from .instance_updates import InstanceUpdates
from .model import Model, ModelDefinition, reason_of
from .routing_table import FailedVersion
from .served_models import Running, ServedModels

REMOVAL_MAX_S = 5.0
"""How long the end of a model waits for its temporary files to be removed, in seconds."""

Made: TypeAlias = dict[int, Running | FailedVersion]
"""Version number -> what became of its load."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the load of a model.

    Attributes:
      prepared: The model; None if its configuration is at fault.
      made: The versions that were loaded, and those whose instances could not be changed.
      fault: What is wrong with the configuration; None if nothing is.
    """

    prepared: PreparedModel | None
    made: Made
    fault: RequestError | None


def is_ready(made: Running | FailedVersion) -> bool:
    """Return whether a load has succeeded."""
    return isinstance(made, Running) and made.ready


def running_of(made: Made) -> dict[int, Running]:
    """Return the versions with subtrees."""
    return {number: each for number, each in made.items() if isinstance(each, Running)}


@final
class ModelLoader:
    """Makes model versions run.

    Args:
      loads_max: Models loaded at a time.
      retries: How often the load of a model that failed is tried again.
      preparation: How configurations are made complete.
      run_in_thread: Runs preparations.
      services: What the models share.
      models: Where every version that runs is noted.
    """

    def __init__(
        self,
        *,
        loads_max: int,
        retries: int,
        preparation: PreparationSettings,
        run_in_thread: RunInThread,
        services: ModelServices,
        models: ServedModels,
    ) -> None:
        self._limiter = trio.CapacityLimiter(loads_max)
        self._retries = retries
        self._preparation = preparation
        self._run_in_thread = run_in_thread
        self._services = replace(services, find=models.find, find_for_step=models.find_for_step)
        self._models = models

    async def load(
        self,
        files: ModelFiles,
        nursery: trio.Nursery,
        *,
        unchanged: Collection[int],
        updates: InstanceUpdates,
        held: OverrideFiles | None,
        show: Callable[[Made], None],
    ) -> Outcome:
        """Prepare a model and load its versions; an ensemble is only prepared.

        Args:
          files: Where it lies.
          nursery: Where the subtrees of its versions run.
          unchanged: Versions that are loaded already.
          updates: Takes versions that go on with other instances.
          held: The files that came with its load request, or None.
          show: Given what there is as soon as loads have begun.
        """
        made: Made = {}
        prepared: PreparedModel | None = None
        async with self._limiter:
            for tries_left in range(self._retries, -1, -1):
                good: Made = {number: each for number, each in made.items() if is_ready(each)}
                try:
                    prepared = await self._prepare(files, {*unchanged, *good})
                except RequestError as error:
                    if tries_left:
                        continue
                    return Outcome(None, good, error)
                if prepared.needed:
                    break
                going_on = [each for each in prepared.versions if updates.takes(each)]
                made = good | await self.start(
                    [each for each in prepared.versions if each not in going_on],
                    nursery,
                    namespace=files.namespace,
                    held=held,
                    show=lambda begun, good=good: show(good | begun),  # type: ignore[misc]
                )
                made |= await updates.load(going_on)
                if all(map(is_ready, made.values())):
                    break
        return Outcome(prepared, made, None)

    async def _prepare(self, files: ModelFiles, unchanged: Collection[int]) -> PreparedModel:
        """Return what `prepare_model` does; a thread that hangs is abandoned.

        Raises:
          RequestError: as `prepare_model`; it took too long, or failed unexpectedly.
        """
        settings = self._preparation
        try:
            with trio.move_on_after(settings.load_max_s):
                return await self._run_in_thread(prepare_model, files, settings, unchanged)
        except RequestError:
            raise
        except Exception as error:  # one model never takes another down
            _logger.exception("preparing model %r failed", files.name)
            raise unexpected(error) from None
        raise RequestError(
            ErrorCode.UNAVAILABLE,
            f"model '{files.name}': its configuration was not completed within "
            f"{settings.load_max_s:g} s",
        )

    async def start(
        self,
        versions: Iterable[PreparedVersion],
        nursery: trio.Nursery,
        *,
        namespace: str,
        depth: int = 0,
        held: OverrideFiles | None = None,
        show: Callable[[Made], None],
    ) -> Made:
        """Load versions side by side; those that failed have a reason in the end.

        Args:
          versions: Of one model.
          nursery: Where their subtrees run.
          namespace: Of the model.
          depth: How deep ensembles nest in it.
          held: The files that came with its load request, or None.
          show: Given what there is as soon as the loads have begun.
        """
        made: Made = {each.version: self._make(each, namespace, depth, held) for each in versions}
        show(made)
        async with trio.open_nursery() as loads:
            for each in made.values():
                if isinstance(each, Running):
                    loads.start_soon(nursery.start, self._run_contained, each)
        return made

    def _make(
        self, prepared: PreparedVersion, namespace: str, depth: int, held: OverrideFiles | None
    ) -> Running | FailedVersion:
        error = prepared.error
        config = prepared.config
        if config is not None:
            try:
                if config.ensemble_scheduling is not None:
                    find_config = partial(self._models.find_config, namespace=namespace)
                    config = with_transaction_policy(config, find_config)
                    for step in steps_of(config) if namespace else ():
                        key = self._models.key(step.model_name, namespace)
                        step.model_namespace = namespace_of(key)
                definition = ModelDefinition(
                    source=prepared.source,
                    config=config,
                    labels=prepared.labels,
                    backend=prepared.backend,
                    initial_files=prepared.initial_files,
                    strategy=prepared.strategy,
                    openai=prepared.openai,
                    services=self._services_in(namespace),
                    namespace=namespace,
                )
                model = Model(definition, report=lambda: self._models.changed(model.version))
                return Running(model, depth, held)
            except RequestError as fault:
                error = fault
                if prepared.strategy is not None:
                    prepared.strategy.close()
        assert error is not None
        return FailedVersion(str(prepared.version), reason_of(error))

    def _services_in(self, namespace: str) -> ModelServices:
        """Return what a model shares with others; an ensemble finds those of its namespace."""
        if not namespace:
            return self._services
        models = self._models
        return replace(
            self._services,
            find=partial(models.find, namespace=namespace),
            find_for_step=partial(models.find_for_step, namespace=namespace),
        )

    async def _run_contained(
        self, running: Running, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run a subtree; its crash makes that version UNAVAILABLE, and nothing else."""
        started = _Once(task_status)
        model = running.model
        self._models.alive.add(running)
        if running.held is not None:
            running.held.hold()
        try:
            await model.run(task_status=started)
        except Exception as error:  # one model never takes another down
            _logger.exception("%r crashed", model)
            model.fail(unexpected(error))
            started.started()
        finally:
            self._models.alive.discard(running)
            running.ended.set()
            if running.held is not None:
                await self.let_go(running.held)

    async def let_go(self, files: OverrideFiles) -> None:
        """Release files, and remove them if nobody else holds them; also when cancelled."""
        with trio.move_on_after(REMOVAL_MAX_S, shield=True):
            await self._run_in_thread(files.release)


class _Once:
    """A task status that may be told twice."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status: trio.TaskStatus[None] | None = task_status

    def started(self, value: None = None) -> None:
        task_status, self._task_status = self._task_status, None
        if task_status is not None:
            task_status.started(value)


def unexpected(error: Exception) -> RequestError:
    """Return what is shown of an error that nobody foresaw."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return RequestError(ErrorCode.INTERNAL, f"unexpected {type(error).__name__}: {error}")
