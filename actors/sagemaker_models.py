"""The models that SageMaker has loaded: each from a directory of its own, under a name it chose."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import final

import trio

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.sagemaker import check_place
from ..protocol.wording import names_text, quoted
from ._model_preparation import written_needs
from ._repository_scan import list_repository, scan_model
from ._worker_threads import RunInThread
from .model_control import Done, RegistersModels


@final
class SagemakerModels:
    """Loads and unloads models for the SageMaker endpoint.

    What was begun goes on when whoever asked leaves.

    Args:
      control: Registers and loads them.
      run_in_thread: Runs what blocks.

    Attributes:
      loaded: Name -> directory, as the platform gave it, of the models that are loaded.
    """

    def __init__(self, control: RegistersModels, run_in_thread: RunInThread) -> None:
        self._control = control
        self._run_in_thread = run_in_thread
        self._places: dict[str, Path] = {}  # of models that are loaded or are being loaded
        self.loaded: dict[str, str] = {}

    async def load(self, name: str, url: str) -> None:
        """Load a model from a directory; return once it is READY.

        Args:
          name: What it is called from now on, whatever its directory and configuration say.
          url: A repository: one model directory, or an ensemble and the models that it needs, which
            keep their names.

        Raises:
          RequestError: ALREADY_EXISTS; there is a model of this name, or the directory is
            registered. Others; it cannot be loaded, and nothing is left of it.
        """
        place, models = await self._run_in_thread(_look_into, name, url)
        await self._control.register(place, models)
        ended = trio.Event()
        outcome: list[RequestError | None] = []

        def finish(error: RequestError | None) -> None:
            outcome.append(error)
            ended.set()

        def done(error: RequestError | None) -> None:
            if error is None:
                self.loaded[name] = url
                finish(None)
                return
            try:
                self._forget(name, lambda _: finish(error))
            except RequestError:  # the server is exiting, which unloads it as well
                finish(error)

        self._places[name] = place
        try:
            self._control.start_load(name, None, done)
        except RequestError:
            self._control.unregister(self._places.pop(name))
            raise
        await ended.wait()
        if outcome[0] is not None:
            raise outcome[0]

    async def unload(self, name: str) -> None:
        """Unload a model of `loaded`, and those that came with it; return once that has ended.

        Their requests in flight finish first.

        Raises:
          RequestError: UNAVAILABLE; it is not even begun, and nothing has changed.
        """
        begun = trio.Event()
        names = self._forget(name, lambda _: begun.set())
        del self.loaded[name]
        await begun.wait()
        await self._control.unloaded(names)

    def _forget(self, name: str, done: Done) -> Collection[str]:
        """Have a model unloaded, as far as it is loaded, and not found any more.

        Returns:
          Its name, and those of the models that came with it.

        Raises:
          RequestError: it does not even begin; nothing has changed, and `done` is told nothing.
        """
        self._control.start_unload(name, True, done)
        return self._control.unregister(self._places.pop(name))


def _look_into(name: str, url: str) -> tuple[Path, dict[str, Path]]:
    """Return the repository that a URL names, and its models: name -> directory.

    Raises:
      RequestError: it may be none, it cannot be read, or no model of it is the one to be named.
    """
    place = Path(os.path.realpath(url))
    check_place(str(place), url)
    try:
        directories = list_repository(place)
    except RequestError as error:
        raise invalid_argument(error.message) from None
    for directory in directories:
        check_place(os.path.realpath(directory), url)
    if not directories:
        raise invalid_argument(f"expected a model directory in url {quoted(url)}, found none")
    if len(directories) == 1:
        return place, {name: directories[0]}
    needs = {directory: written_needs(scan_model(directory)) for directory in directories}
    needed = frozenset[str]().union(*needs.values())
    tops = [path for path in directories if needs[path] and path.name not in needed]
    if len(tops) != 1:
        raise invalid_argument(
            f"expected one model directory in url {quoted(url)}, or one ensemble and the models it "
            f"needs, found {names_text(path.name for path in directories)}"
        )
    others = {path.name: path for path in directories if path != tops[0]}
    if name in others:
        raise RequestError(
            ErrorCode.ALREADY_EXISTS,
            f"model {quoted(name)} lies in url {quoted(url)} beside the ensemble that is to have "
            "its name",
        )
    return place, {name: tops[0], **others}
