"""Loads and unloads on request: who asks waits for its turn, and may leave without harm.

Each request is an operation, a task of the repository. Those that have to do with the same models
run one after the other, in the order in which they were asked for (see `_operation_turns`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, final

import trio

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.wording import quoted, without_model
from ._load_rules import check_model_name, check_override
from ._model_keys import name_of, said_of
from ._operation_turns import OperationTurns, Ticket
from ._override_files import OverrideFiles
from ._repository_policy import ModelFiles
from ._repository_scan import scan_model
from ._worker_threads import RunInThread
from .model import reason_of
from .model_control import Done, LoadOverride
from .model_finder import Survey
from .model_loader import unexpected
from .repository import Repository

OPERATIONS_MAX: Final = 256
"""Requests that run or wait at a time; far more than anybody has models that change at once."""

LOOK_MAX_S: Final = 60.0
"""How long the files of a model may be looked at, in seconds. Nobody knows meanwhile which models
are concerned, so that all that was asked for later waits."""

_Job: TypeAlias = Callable[[Ticket], Awaitable[None]]

_logger = logging.getLogger(__name__)


@final
class RepositoryControl:
    """The `ModelControl` of one server.

    Args:
      repository: What carries the operations out.
      run_in_thread: Runs what blocks.
      explicit: Whether models are loaded and unloaded on request at all.
    """

    def __init__(
        self, *, repository: Repository, run_in_thread: RunInThread, explicit: bool
    ) -> None:
        self._repository = repository
        self._run_in_thread = run_in_thread
        self._explicit = explicit
        self._turns = OperationTurns()
        self._turn_of: dict[Ticket, trio.Event] = {}
        self._idle = trio.Event()
        self._scopes: set[trio.CancelScope] = set()
        self._opened = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<RepositoryControl {self._turns!r}>"

    def open(self) -> None:
        """Take requests from now on."""
        self._opened = True

    def begin_close(self) -> None:
        """Take no more requests, and end those there are."""
        self._closed = True
        for scope in self._scopes:
            scope.cancel()

    async def close(self) -> None:
        """Do as `begin_close`, and wait until every request has ended."""
        self.begin_close()
        if self._turns:
            self._idle = trio.Event()
            await self._idle.wait()

    async def load(self, name: str, override: LoadOverride | None = None) -> None:
        """Load a model, or load it anew where something has changed; see `ModelControl`."""
        await _ended(partial(self.start_load, name, override))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model; see `ModelControl`."""
        await _ended(partial(self.start_unload, name, unload_dependents))

    def start_load(self, name: str, override: LoadOverride | None, done: Done) -> None:
        """Do as `load` without waiting; see `StartsControl`."""
        self._check_open("loading", name)
        check_model_name(name)
        self._start(partial(self._load, name, override or LoadOverride()), done)

    def start_unload(self, name: str, unload_dependents: bool, done: Done) -> None:
        """Do as `unload` without waiting; see `StartsControl`."""
        self._check_open("unloading", name)
        self._start(partial(self._unload, name, unload_dependents), done)

    async def register(self, repository: Path, models: Mapping[str, Path]) -> None:
        """Have models found in a directory; see `RegistersModels`."""
        finder = self._repository.finder
        for name in models:
            self._check_open("registering", name)
            check_model_name(name)
            served = self._repository.models
            if not served.known(name).isdisjoint(served.served) or await finder.find(name):
                raise RequestError(
                    ErrorCode.ALREADY_EXISTS, f"there is a model {quoted(name)} already"
                )
        finder.register(repository, models)

    def unregister(self, repository: Path) -> Collection[str]:
        """Have the models of a directory found no more; see `RegistersModels`."""
        return self._repository.finder.unregister(repository)

    async def unloaded(self, names: Collection[str]) -> None:
        """Wait until what runs of these models has ended; see `RegistersModels`."""
        for running in list(self._repository.models.alive):
            if running.version.name in names:
                await running.ended.wait()

    def _check_open(self, doing: str, name: str) -> None:
        if not self._explicit:
            text = "on request needs the explicit model control mode"
        elif self._closed or self._repository.ended:
            text = "is refused, because the server is exiting"
        elif not self._opened:
            text = "is refused, because the server is starting"
        elif len(self._turns) >= OPERATIONS_MAX:
            text = f"is refused, because {OPERATIONS_MAX} requests to load or unload wait already"
        else:
            return
        raise RequestError(ErrorCode.UNAVAILABLE, f"{doing} model {quoted(name)} {text}")

    def _start(self, job: _Job, done: Done) -> None:
        ticket = self._turns.enter()
        self._repository.nursery.start_soon(self._run, ticket, job, done)

    async def _run(self, ticket: Ticket, job: _Job, done: Done) -> None:
        error: RequestError | None = _exiting()
        try:
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                if self._closed:
                    scope.cancel()
                error = await _outcome(job(ticket))
        finally:
            self._scopes.discard(scope)
            self._turns.leave(ticket)
            self._turn_of.pop(ticket, None)
            self._advance()
            if not self._turns:
                self._idle.set()
            done(error)

    def _advance(self) -> None:
        for ticket in self._turns.advance():
            self._turn_of[ticket].set()

    async def _take_turn(self, ticket: Ticket, names: Iterable[str]) -> bool:
        """Wait for the turn to change models; return whether anybody was before us."""
        if self._turns.claim(ticket, frozenset(names)):
            return False
        turn = self._turn_of[ticket] = trio.Event()
        self._advance()
        waited = not turn.is_set()
        await turn.wait()
        return waited

    # The operations.

    async def _unload(self, name: str, unload_dependents: bool, ticket: Ticket) -> None:
        finder, models = self._repository.finder, self._repository.models
        while True:
            keys = models.known(name) | {name}
            if not await self._take_turn(ticket, finder.related(keys, {})):
                break
            # What is related may be more by now.
        for key in sorted(keys):
            self._repository.unload(key, unload_dependents=unload_dependents)

    async def _load(self, name: str, override: LoadOverride, ticket: Ticket) -> None:
        config = await self._run_in_thread(check_override, name, override)
        files = OverrideFiles(name, override.files) if override.files else None
        try:
            await self._load_found(name, config, files, ticket)
        finally:
            if files is not None:
                await self._repository.loader.let_go(files)

    async def _load_found(
        self, name: str, config: ModelConfig | None, files: OverrideFiles | None, ticket: Ticket
    ) -> None:
        repository, finder = self._repository, self._repository.finder
        brought = None if files is None else await self._written(name, files)
        while True:
            survey = await self._look(name, config, brought)
            if not await self._take_turn(ticket, finder.related(survey.found, survey.needs)):
                break
        if not any(survey.found[key] for key in survey.asked):
            for key in repository.models.known(name):
                repository.models.forget(key)
            raise finder.not_found(name)
        actions = finder.plan(survey)
        errors = await repository.carry_out(
            actions,
            implicit=survey.found.keys() - survey.asked,
            held={} if files is None else dict.fromkeys(survey.asked, files),
        )
        for key, error in errors.items():  # of ensembles that the new one does not fit, too
            _logger.error(said_of(key, error.message), extra={"model": name_of(key)})
        for key in survey.asked - {action.key for action in actions}:
            repository.models.keep(key)
        failed = sorted(survey.asked & errors.keys())
        if failed:
            several = len(survey.found[failed[0]]) > 1
            raise _load_failed(name, errors[failed[0]], several=several)
        if name not in survey.asked:  # what files brought, or what was not found, before
            repository.unload(name)
        _logger.info("model %r is loaded%s", name, "" if actions else ", and was before")

    async def _look(
        self, name: str, config: ModelConfig | None, brought: ModelFiles | None
    ) -> Survey:
        """Look for a model and what it needs, with what the request brings instead of that.

        Raises:
          RequestError: it took too long.
        """
        finder = self._repository.finder
        with trio.move_on_after(LOOK_MAX_S):
            found = [brought] if brought else await finder.find(name)
            if config is not None:
                found = [replace(each, config=config, fingerprint=None) for each in found]
            return await finder.survey(name, found)
        raise RequestError(
            ErrorCode.UNAVAILABLE,
            f"the files of model {quoted(name)} could not be looked at within {LOOK_MAX_S:g} s",
        )

    async def _written(self, name: str, files: OverrideFiles) -> ModelFiles:
        namespace = await self._repository.finder.namespace_of(name)
        directory = await self._run_in_thread(files.write)
        brought = await self._run_in_thread(scan_model, directory)
        return replace(brought, namespace=namespace)


async def _outcome(operation: Awaitable[None]) -> RequestError | None:
    try:
        await operation
    except RequestError as error:
        return error
    except Exception as error:  # one request never takes another down
        _logger.exception("a request to load or unload a model failed")
        return unexpected(error)
    return None


async def _ended(start: Callable[[Done], None]) -> None:
    """Wait for an operation.

    Raises:
      RequestError: it failed.
    """
    ended = trio.Event()
    outcome: list[RequestError | None] = []

    def done(error: RequestError | None) -> None:
        outcome.append(error)
        ended.set()

    start(done)
    await ended.wait()
    [error] = outcome
    if error is not None:
        raise error


def _load_failed(name: str, error: RequestError, *, several: bool) -> RequestError:
    """Return the error of a load as the client gets it."""
    if several:
        return RequestError(ErrorCode.INTERNAL, error.message)
    if error.code is ErrorCode.INVALID_ARG:
        return error
    reason = without_model(name, reason_of(error))
    return invalid_argument(f"model {quoted(name)} failed to load: {reason}")


def _exiting() -> RequestError:
    return RequestError(ErrorCode.UNAVAILABLE, "the server is exiting")
