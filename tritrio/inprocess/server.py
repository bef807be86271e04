"""The server in a program that runs on trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack, final

import orjson
import trio

from ..actors.core import Core
from ..actors.inference import refuse_decoupled, submit
from ..actors.metrics_collector import render
from ..actors.model_control import LoadOverride
from ..actors.reply import Reply
from ..actors.routing_table import ModelVersion
from ..options import ServerOptions
from ..parts import Parts, build_parts
from ..protocol import management_codec
from ..protocol.config_json import model_config_to_dict
from ..protocol.errors import RequestError
from ..server import start_core
from ..serving import open_repositories
from .answers import Answer, Responses, answer_of
from .requests import RequestOptions, check_text, make_request

_SOCKETS: Final = ("http_address", "grpc_address", "metrics_address")


@final
class Server:
    """Models that run while the block runs: `async with tritrio.Server("models") as server`.

    At the end requests in flight may finish within `exit_timeout_s`; if the block is cancelled, or
    raises, they are cut short.

    Args:
      models: Model repositories, directories of single models, and functions and classes with the
        decorator `tritrio.model`.
      options: Fields of `ServerOptions`; those that concern sockets mean nothing.

    Raises:
      StartError: on entry; a repository cannot be read, or a model cannot be loaded.
      TypeError: there is no such option, or it asks for a socket.
    """

    def __init__(self, *models: Callable[..., Any] | Path | str, **options: Any) -> None:
        for name in _SOCKETS:
            if options.get(name) is not None:
                raise TypeError(f"a server in this process has no sockets, got {name}")
        self._models = models
        self._options = {**options, **dict.fromkeys(_SOCKETS)}
        self._running: AbstractAsyncContextManager[None] | None = None
        self._token: trio.lowlevel.TrioToken
        self._core: Core
        self._parts: Parts

    async def __aenter__(self) -> Self:
        """Load the models."""
        assert self._running is None, "a server runs once"
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Stop."""
        assert self._running is not None
        return await self._running.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        fault: BaseException | None = None
        with ExitStack() as stack:
            repositories = open_repositories(self._models, stack)
            served = ServerOptions(model_repositories=repositories, **self._options)
            async with trio.open_nursery() as nursery:
                try:
                    self._token = trio.lowlevel.current_trio_token()
                    self._core = await start_core(served, nursery)
                    self._parts = build_parts(served, self._core)
                    yield
                    await self._core.stop()
                except (trio.Cancelled, GeneratorExit):
                    raise
                except BaseException as error:  # noqa: BLE001 - raised below, in no group
                    fault = error
                nursery.cancel_scope.cancel()
        if fault is not None:
            raise fault

    def model(self, name: str, version: str | int = "") -> Model:
        """Return a model to be asked; whether it is there is seen when it is.

        Args:
          name: The model's name.
          version: Its version; "" for the latest that is ready each time.

        Raises:
          TypeError: one of them is of another type.
        """
        assert self._running is not None, "a server is asked within its block"
        if type(version) is not int:
            check_text("the version of a model", version)
        check_text("the name of a model", name)
        return Model(self._core, self._token, name, str(version))

    async def load(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load a model, or load it anew, and wait for it; needs `model_control="explicit"`.

        Args:
          name: The model's name.
          config: A configuration in place of `config.pbtxt`, as JSON text or JSON values.
          files: `<version>/<path>` -> content, in place of the model's directory.

        Raises:
          RequestError: it cannot be loaded; what was loaded before goes on.
          TypeError: the name is no text, a file is not bytes, or the configuration has no JSON
            form.
        """
        _check_loop(self._token)
        check_text("the name of a model", name)
        text = config if config is None or isinstance(config, str) else orjson.dumps(config)
        if isinstance(text, bytes):
            text = text.decode()
        contents = {path: bytes(memoryview(content)) for path, content in (files or {}).items()}
        await self._core.control.load(name, LoadOverride(text, contents))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model; needs `model_control="explicit"`.

        Args:
          name: The model's name; one that is not known is no error.
          unload_dependents: Whether the models go too that were loaded only for this ensemble.

        Raises:
          TypeError: the name is no text.
        """
        _check_loop(self._token)
        check_text("the name of a model", name)
        await self._core.control.unload(name, unload_dependents=unload_dependents)

    def live(self) -> bool:
        """Return whether the server can answer."""
        return self._core.router.live()

    def ready(self) -> bool:
        """Return whether the server and, if readiness is strict, all its models are ready."""
        return self._core.router.ready()

    def metadata(self) -> dict[str, Any]:
        """Return what `GET /v2` answers."""
        info = self._parts.info
        return _object(management_codec.server_metadata(info.name, info.version, info.extensions))

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """Return the repository index: each version's name, state and, if it has one, reason.

        Unlike for clients, no disk is read: directories that came or went are not noticed.
        """
        entries = self._core.router.table.index(ready_only=ready)
        found: list[dict[str, Any]] = orjson.loads(management_codec.repository_index(entries))
        return found

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of all ready models, as `GET /v2/models/stats` answers."""
        return _object(management_codec.statistics(self._core.router.table.statistics_of()))

    def metrics(self) -> str:
        """Return every metric as Prometheus text."""
        return render(self._parts.metrics).decode()


@final
class Model:
    """One model of a server in this process; made by `Server.model`."""

    def __init__(self, core: Core, token: trio.lowlevel.TrioToken, name: str, version: str) -> None:
        self._core = core
        self._token = token
        self._version = version
        self.name = name

    def __repr__(self) -> str:
        return f"<Model {self.name} version {self._version or 'latest'}>"

    async def infer(self, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]) -> Answer:
        """Send a request and wait for its only response; cancelling the wait cancels the request.

        Args:
          inputs: Input name -> array, or what an array of the input's data type is made from; with
            the batch dimension if the model batches.
          options: As of `RequestOptions`.

        Raises:
          RequestError: the request failed, or the model is decoupled; see `stream`.
        """
        version = self._find()
        refuse_decoupled(version, "infer")
        reply = self._submit(version, inputs, options)
        try:
            return answer_of(await reply.receive(), reply.request)
        finally:
            reply.close()

    def stream(self, inputs: Mapping[str, Any], **options: Unpack[RequestOptions]) -> Responses:
        """Send a request and return its responses, to be iterated over with `async for`.

        Args:
          inputs: As for `infer`.
          options: As of `RequestOptions`.

        Raises:
          RequestError: the request was refused. If it fails later, the iteration raises.
        """
        return Responses(self._submit(self._find(), inputs, options))

    async def ready(self) -> bool:
        """Return whether a version is ready, and its model says so too."""
        try:
            check = self._find().check_ready
        except RequestError:
            return False
        return check is None or await check()

    def metadata(self) -> dict[str, Any]:
        """Return what `GET /v2/models/<model>` answers."""
        version = self._find()
        table = self._core.router.table
        versions = [version.version] if self._version else table.versions_ready(self.name)
        return _object(management_codec.model_metadata(version.spec, versions))

    def config(self) -> dict[str, Any]:
        """Return the final configuration as JSON values."""
        return model_config_to_dict(self._find().config)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of its ready versions, as `GET /v2/models/<model>/stats` does."""
        table = self._core.router.table
        return _object(management_codec.statistics(table.statistics_of(self.name, self._version)))

    def _find(self) -> ModelVersion:
        return self._core.router.find(self.name, self._version)

    def _submit(
        self, version: ModelVersion, inputs: Mapping[str, Any], options: RequestOptions
    ) -> Reply:
        _check_loop(self._token)
        request = make_request(version.spec, self._version, inputs, options)
        return submit(version, request, trio.current_time())


def _check_loop(token: trio.lowlevel.TrioToken) -> None:
    """Raise RuntimeError on any loop but that of the server, whose tasks another would corrupt."""
    if trio.lowlevel.current_trio_token() is not token:
        raise RuntimeError(
            "a tritrio.Server can be asked only in the trio.run it was entered in; "
            "tritrio.BlockingServer can be asked from anywhere"
        )


def _object(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(body)
    return found
