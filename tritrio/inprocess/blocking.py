"""The server for programs that do not run on trio: scripts, notebooks, other event loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, final

import outcome
import trio

from ..backends.device_context import HostContext
from ..backends.device_thread import DeviceThread
from ..protocol.errors import ErrorCode, RequestError
from .answers import Answer, Responses
from .requests import RequestOptions
from .server import Model, Server

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class _Loop:
    """Where the server runs, and how other threads have something run there.

    Args:
      token: Its loop; None if it does not run yet.
    """

    def __init__(self, token: trio.lowlevel.TrioToken | None = None) -> None:
        self._token = token

    def run(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run an async function to its end; whoever interrupts the wait cancels it.

        Raises:
          RequestError: UNAVAILABLE; the server does not run, or ended meanwhile.
        """
        scope = trio.CancelScope()

        async def run() -> T:
            with scope:
                return await function(*args)
            raise KeyboardInterrupt  # nobody waits for this

        if self._token is None:
            raise _not_running()
        try:
            return trio.from_thread.run(run, trio_token=self._token)
        except trio.RunFinishedError:
            raise _not_running() from None
        except BaseException:
            self.soon(scope.cancel)
            raise

    def call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function and return what it does; raises as `run`."""
        if self._token is None:
            raise _not_running()
        try:
            return trio.from_thread.run_sync(function, *args, trio_token=self._token)
        except trio.RunFinishedError:
            raise _not_running() from None

    def soon(self, function: Callable[[], object]) -> None:
        """Have a function called without waiting for it, unless the server has ended."""
        assert self._token is not None, "the server was not entered"
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)


def _not_running() -> RequestError:
    return RequestError(
        ErrorCode.UNAVAILABLE, "the server is not running: it runs within its `with` block"
    )


@final
class BlockingServer:
    """`Server` on a thread of its own: `with tritrio.BlockingServer("models") as server`.

    All methods block, and may be called from any number of threads; Ctrl-C cancels what the main
    thread waits for.

    Args:
      models: As for `Server`.
      options: As for `Server`.
    """

    def __init__(self, *models: Callable[..., Any] | Path | str, **options: Any) -> None:
        self._server = Server(*models, **options)
        self._news: SimpleQueue[outcome.Outcome[_Loop | None]] = SimpleQueue()
        self._thread = DeviceThread("tritrio", HostContext(), lambda done, *args: done(*args))
        self._stop = trio.Event()
        self._scope = trio.CancelScope()
        self._loop = _Loop()

    def __enter__(self) -> Self:
        """Load the models; an interrupt ends that."""
        self._thread.start()
        self._thread.submit(self._ended, self._run)
        self._thread.stop()
        loop = self._news.get().unwrap()
        assert loop is not None
        try:
            self._news.get().unwrap()
        except BaseException:
            loop.soon(self._scope.cancel)
            self._thread.join(0)
            raise
        self._loop = loop
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop, after what is in flight."""
        self._loop.soon(self._stop.set)
        self._news.get().unwrap()

    def _ended(self, result: outcome.Outcome[None]) -> None:
        self._news.put(result)

    def _run(self) -> None:
        trio.run(self._main)

    async def _main(self) -> None:
        self._news.put(outcome.Value(_Loop(trio.lowlevel.current_trio_token())))
        with self._scope:
            async with self._server:
                self._news.put(outcome.Value(None))
                await self._stop.wait()

    def model(self, name: str, version: str | int = "") -> BlockingModel:
        """Return a model to be asked; see `Server.model`."""
        return BlockingModel(self._loop, self._loop.call(self._server.model, name, version))

    def load(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load a model, or load it anew; see `Server.load`."""

        async def load() -> None:
            await self._server.load(name, config=config, files=files)

        self._loop.run(load)

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model; see `Server.unload`."""

        async def unload() -> None:
            await self._server.unload(name, unload_dependents=unload_dependents)

        self._loop.run(unload)

    def live(self) -> bool:
        """Return whether the server can answer."""
        return self._loop.call(self._server.live)

    def ready(self) -> bool:
        """Return whether the server is ready; see `Server.ready`."""
        return self._loop.call(self._server.ready)

    def metadata(self) -> dict[str, Any]:
        """Return what `GET /v2` answers."""
        return self._loop.call(self._server.metadata)

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """Return the repository index; see `Server.index`."""
        return self._loop.call(lambda: self._server.index(ready=ready))

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of all ready models."""
        return self._loop.call(self._server.statistics)

    def metrics(self) -> str:
        """Return every metric as Prometheus text."""
        return self._loop.call(self._server.metrics)


@final
class BlockingModel:
    """One model of a `BlockingServer`; made by its `model`."""

    def __init__(self, loop: _Loop, model: Model) -> None:
        self._loop = loop
        self._model = model
        self.name = model.name

    def infer(self, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]) -> Answer:
        """Send a request and wait for its only response; see `Model.infer`."""

        async def infer() -> Answer:
            return await self._model.infer(inputs, **options)

        return self._loop.run(infer)

    def stream(
        self, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> Iterator[Answer]:
        """Send a request, and yield its responses; closing the iterator cancels the request.

        Raises:
          RequestError: the request failed.
        """

        async def begin() -> Responses:
            return self._model.stream(inputs, **options)

        async def step(responses: Responses) -> Answer | None:
            return await anext(responses, None)

        responses = self._loop.run(begin)
        try:
            while (answer := self._loop.run(step, responses)) is not None:
                yield answer
        finally:
            self._loop.soon(responses.close)

    def ready(self) -> bool:
        """Return whether a version is ready, and its model says so too."""
        return self._loop.run(self._model.ready)

    def metadata(self) -> dict[str, Any]:
        """Return what `GET /v2/models/<model>` answers."""
        return self._loop.call(self._model.metadata)

    def config(self) -> dict[str, Any]:
        """Return the final configuration as JSON values."""
        return self._loop.call(self._model.config)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of its ready versions."""
        return self._loop.call(self._model.statistics)
