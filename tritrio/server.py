"""Composition: the core, its frontends, and the order in which they start and stop.

start:  core loads every model -> ports open -> ready
stop:   not ready, new inference refused -> ports close, connections are told to go
        -> requests in flight finish -> models unload -> return
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from .actors.core import CoreOptions, run_core
from .actors.frontend import Frontend
from .actors.grpc_connection import GrpcConnection, GrpcSettings
from .actors.grpc_health import HealthService
from .actors.grpc_service import InferenceService
from .actors.http_api import HttpApi
from .actors.http_asgi import HttpApplication
from .actors.http_connection import HttpConnection, HttpSettings
from .actors.management_frontend import ManagementApplication, serve_asgi
from .actors.metrics_collector import ModelCollector
from .actors.router import Router
from .actors.server_info import ServerInfo
from ._version import __version__
from .memory.budget import ByteBudget
from .options import ServerOptions

CLOSE_TIMEOUT_S = 1.0
"""What cutting the last connections may take after the exit timeout: nothing there waits for a
client or a model."""

_log = logging.getLogger("tritrio")


class StartError(Exception):
    """The server cannot start; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One server's frontends over one core, not listening yet.

    Attributes:
      router: The core's router.
      budget: The byte budget all frontends share.
      http_api: Answers HTTP requests.
      http: Runs HTTP connections.
      grpc: Runs gRPC connections.
      metrics: Every metric of the server.
    """

    router: Router
    budget: ByteBudget
    http_api: HttpApi
    http: Frontend
    grpc: Frontend
    metrics: CollectorRegistry


def build_parts(options: ServerOptions, router: Router) -> Parts:
    """Wire the frontends to a core."""
    budget = ByteBudget(options.byte_budget)
    info = ServerInfo(options.server_id, __version__)
    api = HttpApi(router=router, info=info, input_bytes_max=options.http_input_bytes_max)
    service = InferenceService(router=router, info=info)
    handlers = {**service.mapping(), **HealthService(router=router).mapping()}
    metrics = CollectorRegistry()
    metrics.register(ModelCollector(router.measured_models))  # type: ignore[arg-type] # duck-typed
    return Parts(
        router=router,
        budget=budget,
        http_api=api,
        http=Frontend(
            lambda stream: HttpConnection(
                stream=stream,
                handler=api.handle,
                admit=api.admit,
                budget=budget,
                settings=HttpSettings(cancel_on_eof=not options.http_half_close),
            )
        ),
        grpc=Frontend(
            lambda stream: GrpcConnection(
                stream=stream, handlers=handlers, budget=budget, settings=GrpcSettings()
            )
        ),
        metrics=metrics,
    )


def core_options(options: ServerOptions) -> CoreOptions:
    """Return what the core needs of the server's options."""
    return CoreOptions(
        repositories=options.model_repositories,
        strict_readiness=options.strict_readiness,
        backend_settings=options.backend_settings,
        auto_complete_config=options.auto_complete_config,
        exit_timeout_s=options.exit_timeout_s,
    )


@dataclass(frozen=True, slots=True)
class BoundAddresses:
    """Where a server listens: (host, port) pairs, empty for what is switched off."""

    http: tuple[tuple[str, int], ...]
    grpc: tuple[tuple[str, int], ...]
    metrics: tuple[tuple[str, int], ...]


class Server:
    """One server from start to stop.

    Args:
      options: What to serve and where.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._stop = trio.Event()

    def begin_shutdown(self) -> None:
        """Start the graceful stop; `run` returns when it is done."""
        self._stop.set()

    async def run(
        self, *, task_status: trio.TaskStatus[BoundAddresses] = trio.TASK_STATUS_IGNORED
    ) -> bool:
        """Serve until `begin_shutdown`.

        Returns:
          Whether everything ended within the exit timeout.

        Raises:
          StartError: a start-up model failed (with `exit_on_error`), or a port cannot be bound.
        """
        options = self._options
        async with trio.open_nursery() as nursery:
            core = await nursery.start(run_core, core_options(options))
            try:
                in_time = await self._serve(core.router, task_status)
            except StartError:
                nursery.cancel_scope.cancel()
                raise
            return in_time and await core.stop()

    async def _serve(self, router: Router, task_status: trio.TaskStatus[BoundAddresses]) -> bool:
        raise NotImplementedError
