"""The repository index: what is served, among what lies in the repositories now."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import trio

from ..protocol.errors import RequestError
from ._model_keys import key_of
from ._repository_scan import distinct, list_repository
from ._worker_threads import RunInThread
from .router import Router
from .routing_table import IndexEntry

INDEX_LOOK_MAX_S: Final = 5.0
"""How long an answer waits for a look at the repositories, in seconds: far longer than it takes to
list directories, and less than most clients wait."""

_logger = logging.getLogger(__name__)


@final
class RepositoryIndex:
    """Answers what models there are.

    One look at the repositories at a time. A request waits for one that began after the request
    came, so that it sees what was done before; those that wait meanwhile share the next one.

    Args:
      router: Where models are found.
      repositories: Where to look each time; none if models come and go in no other way than the
        router is told of.
      run_in_thread: Runs what blocks.
      namespaces: Whether models of one name may lie in several repositories.
    """

    def __init__(
        self,
        *,
        router: Router,
        repositories: Sequence[Path],
        run_in_thread: RunInThread,
        namespaces: bool = False,
    ) -> None:
        self._router = router
        self._repositories = tuple(dict.fromkeys(repositories))
        self._run_in_thread = run_in_thread
        self._namespaces = namespaces
        self._keys: dict[Path, list[str]] = {}
        self._unreadable: set[Path] = set()  # as the latest look found them
        self._turn = trio.Lock()
        self._looks_begun = 0
        self._look_ended = 0  # the latest that ended, by its number
        self._looking = False  # on a thread, whether anybody waits for it or not

    def __repr__(self) -> str:
        return f"<RepositoryIndex of {len(self._repositories)} repositories>"

    async def entries(self, *, ready_only: bool = False) -> list[IndexEntry]:
        """Return the index, by key and version; see `RoutingTable.index`.

        Of a repository that cannot be read, or not in time, that is said which was known before.
        """
        present: set[str] | None = None
        if self._repositories:
            with trio.move_on_after(INDEX_LOOK_MAX_S) as limit:
                await self._look()
            if limit.cancelled_caught:
                _logger.warning(
                    "the model repositories could not be listed within %g s", INDEX_LOOK_MAX_S
                )
            if len(self._keys) == len(self._repositories):
                present = set().union(*self._keys.values())
        return self._router.table.index(ready_only=ready_only, present=present)

    async def _look(self) -> None:
        begun_before = self._looks_begun
        async with self._turn:
            if self._look_ended > begun_before or self._looking:
                return
            self._looks_begun += 1
            number = self._looks_begun
            self._keys |= await self._run_in_thread(self._list)
            self._look_ended = number

    def _list(self) -> dict[Path, list[str]]:
        """Return the models in those repositories that can be read, by key; blocking."""
        found: dict[Path, list[str]] = {}
        self._looking = True
        try:
            places = distinct(self._repositories) if self._namespaces else {}
            for repository in self._repositories:
                namespace = places.get(Path(os.path.realpath(repository)), "")
                try:
                    found[repository] = [
                        key_of(str(namespace), entry.name) for entry in list_repository(repository)
                    ]
                except RequestError as error:
                    if repository not in self._unreadable:  # each client that asks has a look
                        _logger.warning(
                            "the repository index may be out of date: %s", error.message
                        )
                    self._unreadable.add(repository)
                else:
                    self._unreadable.discard(repository)
        finally:
            self._looking = False
        return found
