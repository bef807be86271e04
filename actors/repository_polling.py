"""Polling: looks at the repositories from time to time, and has carried out what has changed.

One look at a time, on a worker thread, and what follows from it before the next one. What counts
as a change is decided by `_poll_policy`, and what follows from it as with every other change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import trio

from ..protocol.errors import RequestError
from ._model_keys import name_of, printed, said_of
from ._poll_policy import Look, PollPolicy, look_of
from ._repository_policy import ModelFiles, changes
from .repository import Repository

LOOK_SLOW_S: Final = 60.0
"""A look that takes longer is told of, in seconds: meanwhile no change is noticed."""

_logger = logging.getLogger(__name__)


@final
class RepositoryPolling:
    """Follows the repositories of one server.

    Args:
      repository: What carries the changes out; it has to start first.
      interval_s: Seconds between two looks, unless something changes.
    """

    def __init__(self, repository: Repository, *, interval_s: float) -> None:
        self._repository = repository
        self._policy = PollPolicy(interval_s)
        self._failed: dict[str, _Failed] = {}
        self._readable = True
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def __repr__(self) -> str:
        return f"<RepositoryPolling {self._policy!r}>"

    async def run(self) -> None:
        """Look until `begin_close`."""
        first = self._repository.first
        self._policy.start({name: look_of(found) for name, found in first.items()})
        try:
            with self._scope:
                while True:
                    await trio.sleep_until(self._policy.next_look_s(trio.current_time()))
                    await self._look()
        finally:
            self._ended.set()

    def begin_close(self) -> None:
        """Look no more, and give up what is being loaded."""
        self._scope.cancel()

    async def close(self) -> None:
        """Do as `begin_close`, and wait until that has ended."""
        self.begin_close()
        await self._ended.wait()

    async def _look(self) -> None:
        try:
            looks = await self._glance()
            found = await self._settled(looks)
            if found:
                await self._carry_out(found)
        except Exception:  # one look never takes another down
            _logger.exception("a look at the model repositories failed")

    async def _glance(self) -> dict[str, Look] | None:
        """Return what the models look like; None if a repository cannot be read."""
        fault: RequestError | None = None
        looks: dict[str, Look] | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_when_slow)
            try:
                found = await self._repository.finder.glance()
                looks = {name: look_of(files) for name, files in found.items()}
            except RequestError as error:
                fault = error
            nursery.cancel_scope.cancel()
        if fault is not None and self._readable:
            _logger.error("nothing is changed until it can be read: %s", fault.message)
        self._readable = fault is None
        return looks

    async def _settled(self, looks: Mapping[str, Look] | None) -> dict[str, list[ModelFiles]]:
        """Return the models that have changed, where they lie now."""
        settled: dict[str, list[ModelFiles]] = {}
        if looks is None:
            return settled
        for name in self._policy.see(looks, trio.current_time()):
            found = await self._repository.finder.scan(path for path, _ in looks.get(name, ()))
            if self._policy.settled(name, look_of(found), trio.current_time()):
                settled[name] = found
        return settled

    async def _carry_out(self, found: dict[str, list[ModelFiles]]) -> None:
        """Make the models that run those that were found, and try again what waited for them."""
        names = {*map(name_of, found)}
        for key, failed in self._failed.items():
            if not failed.needs.isdisjoint(names):
                found.setdefault(key, failed.found)
        repository = self._repository
        present = {key: files for key, files in found.items() if files}
        actions = changes(repository.models.running(found), present)
        errors = await repository.carry_out(actions)
        for key in found:
            self._failed.pop(key, None)
        for key, error in errors.items():
            _logger.error(said_of(key, error.message), extra={"model": name_of(key)})
            if key in present:
                needs = await repository.finder.needs(present[key])
                self._failed[key] = _Failed(present[key], needs)
        for key in present.keys() - {action.key for action in actions}:
            repository.models.keep(key)
            _logger.info("model %r is loaded, and was before", printed(key))
        changed = ", ".join(repr(printed(key)) for key in sorted(found))
        _logger.info("models have changed: %s", changed)


@dataclass(frozen=True, slots=True)
class _Failed:
    """A model that could not be loaded, and the names that it may have been for want of."""

    found: list[ModelFiles]
    needs: frozenset[str]


async def _tell_when_slow() -> None:
    await trio.sleep(LOOK_SLOW_S)
    _logger.warning("a look at the model repositories takes longer than %g s", LOOK_SLOW_S)
