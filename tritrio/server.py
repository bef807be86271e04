"""Composition: the core, its frontends, and the order in which they start and stop.

start:  core loads every model -> ports open -> ready
stop:   not ready, new inference refused -> ports close, connections are told to go
        -> requests in flight finish -> models unload -> return
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from contextlib import AsyncExitStack
from typing import final

import trio

from .actors.core import Core, CoreOptions, run_core
from .actors.frontend import Frontend
from .actors.http_asgi import HttpApplication
from .actors.management_frontend import AsgiFrontend, ManagementApplication
from .actors.routing_table import ModelState
from .call_rules import call_rules
from .listening import BoundAddresses, OpenPorts, Place, StartError, bound_address
from .logs import Logs
from .options import ServerOptions
from .parts import Parts, build_parts
from .progress import log_drain, log_keys, log_models, work_text
from .protocol.errors import RequestError
from .protocol.metrics_config import parse_metrics_config
from .protocol.trace_config import parse_trace_config
from .tls import TlsContexts, tls_contexts

__all__ = [
    "BoundAddresses",
    "Server",
    "StartError",
    "core_options",
    "serve_until_signal",
    "settle_heap",
    "start_core",
]

GC_YOUNG_MAX = 20_000
"""Young objects before a collection; Python's 700 are made by a dozen requests in flight, these
by a few hundred, and what a cycle could hold until then stays within the byte budget."""

EXIT_S_MIN = 1.0
"""Even a stop without patience takes this long if it has to: gRPC says goodbye over a tenth of a
second and models unload, so that a server that owes nothing ends cleanly."""

_log = logging.getLogger("tritrio")


def core_options(options: ServerOptions) -> CoreOptions:
    """Return what the core needs of the server's options.

    Raises:
      StartError: the options of metrics or of tracing are no options.
    """
    try:
        metrics = parse_metrics_config(options.metrics_config)
        trace = parse_trace_config(options.trace_config, os.environ)
    except RequestError as error:
        raise StartError(error.message) from None
    for text in metrics.skipped:
        _log.error(text)
    return CoreOptions(
        metrics=metrics,
        trace=trace,
        repositories=options.model_repositories,
        strict_readiness=options.strict_readiness,
        backend_settings=options.backend_settings,
        auto_complete_config=options.auto_complete_config,
        exit_timeout_s=_exit_timeout_s(options),
        model_control=options.model_control,
        poll_s=options.repository_poll_s,
        startup_models=options.startup_models,
        namespaces=options.model_namespacing,
        config_name=options.model_config_name,
        loads_max=options.model_load_threads,
        load_retries=options.model_load_retries,
        hang_s=options.instance_hang_s,
        load_max_s=options.model_load_timeout_s,
        byte_budget=options.byte_budget,
        cache=options.cache,
        overload_queue_age_s=options.overload_queue_age_s,
        rate_limits=options.rate_limit_resources if options.rate_limit else None,
    )


async def start_core(options: ServerOptions, nursery: trio.Nursery) -> Core:
    """Load the models and say how each fared; the core then runs in the nursery.

    Raises:
      StartError: an option is malformed, a repository cannot be read, or a model failed (with
        `exit_on_error`).
    """
    try:
        call_rules(options)  # models may take long to load, so what is malformed is said before
        core: Core = await nursery.start(run_core, core_options(options))
    except* RequestError as group:
        raise StartError(_first_message(group)) from None
    index = core.router.table.index()
    log_models(index, options.model_repositories)
    failed = [entry for entry in index if entry.state is ModelState.UNAVAILABLE]
    if failed and options.exit_on_error:
        names = ", ".join(sorted({entry.name for entry in failed}))
        raise StartError(
            f"not every model could be loaded ({names}); the others are served with "
            "--exit-on-error=false or, in a program, exit_on_error=False"
        )
    return core


@final
class Server:
    """One server from start to stop.

    Args:
      options: What to serve and where.
      logs: The log, if it is written here; else whoever embeds the server writes it.
    """

    def __init__(self, options: ServerOptions, logs: Logs | None = None) -> None:
        self._options = options
        self._logs = logs
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
          StartError: a start-up model failed (with `exit_on_error`), nothing can be served, a
            port cannot be bound, or a certificate or key cannot be used.
        """
        options = self._options
        services = (
            options.http_address,
            options.grpc_address,
            options.metrics_address,
            options.sagemaker,
            options.vertex_ai,
        )
        if all(service is None for service in services):
            raise StartError("nothing is served: all endpoints are switched off")
        tls = tls_contexts(options)
        in_time = True
        fault: StartError | None = None
        async with trio.open_nursery() as nursery:
            starting = trio.CancelScope()
            nursery.start_soon(self._cancel_when_stopped, starting)
            try:
                with starting:
                    if options.model_control != "none":
                        settle_heap()  # before the models, which may go
                    core = await start_core(options, nursery)
                if not starting.cancelled_caught:
                    in_time = await self._serve(core, tls, task_status)
            except StartError as error:
                fault = error
            nursery.cancel_scope.cancel()
        if fault is not None:
            raise fault
        return in_time

    async def _cancel_when_stopped(self, starting: trio.CancelScope) -> None:
        """Give up loading models when the server is to stop before it has started."""
        await self._stop.wait()
        starting.cancel()

    async def _serve(
        self, core: Core, tls: TlsContexts, task_status: trio.TaskStatus[BoundAddresses]
    ) -> bool:
        options = self._options
        parts = build_parts(options, core, self._logs, tls)
        http = _http_frontend(options, parts, tls)
        clouds = [each for each in (parts.sagemaker, parts.vertex_ai) if each is not None]
        frontends: list[Frontend | AsgiFrontend] = [http, parts.grpc, *clouds]
        # A server that drains can still be watched, so metrics end last, and at once.
        metrics = AsgiFrontend("metrics", ManagementApplication(parts.metrics), grace_s=0)
        async with AsyncExitStack() as stack:
            ports: list[list[trio.SocketListener]] = []
            opened = OpenPorts()
            stack.callback(opened.remove_files)
            for place in _places(options):
                listeners = await opened.listen(place)
                for listener in listeners:
                    stack.push_async_callback(listener.aclose)
                ports.append(listeners)
            bound = BoundAddresses(*map(bound_address, ports))
            async with trio.open_nursery() as nursery:
                served = (http, parts.grpc, metrics, parts.sagemaker, parts.vertex_ai)
                for frontend, listeners in zip(served, ports, strict=True):
                    if listeners and frontend is not None:
                        await nursery.start(frontend.run, listeners)
                if parts.system is not None and bound.metrics is not None:
                    nursery.start_soon(parts.system.run)
                http_tls, grpc_tls = tls.http is not None, tls.grpc is not None
                for line in bound.lines(http_tls=http_tls, grpc_tls=grpc_tls):
                    _log.info(line)
                if bound.http is not None:
                    log_keys(options)
                if options.model_control == "none":
                    settle_heap()
                task_status.started(bound)
                await self._stop.wait()
                in_time = await self._drain(core, frontends)
                nursery.cancel_scope.cancel()
        in_time = await core.stop() and in_time
        _log.info("stopped" if in_time else "stopped late")
        return in_time

    async def _drain(self, core: Core, frontends: list[Frontend | AsgiFrontend]) -> bool:
        """Tell every client to go and wait for what is owed, within the exit timeout."""
        exit_timeout_s = _exit_timeout_s(self._options)
        work = work_text(core.router.measured_models())
        _log.info("stopping: %s, %g s are left", work, exit_timeout_s)
        core.begin_shutdown()
        with trio.move_on_after(exit_timeout_s) as scope:
            for frontend in frontends:
                frontend.begin_shutdown()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log_drain, core.router, frontends, scope.deadline)
                for frontend in frontends:
                    await frontend.drained()
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught:
            left = ", ".join(map(str, frontends))
            work = work_text(core.router.measured_models())
            _log.error("the exit timeout has passed: what is left is cut off: %s; %s", left, work)
            for frontend in frontends:
                if isinstance(frontend, Frontend):
                    frontend.cut()
        return not scope.cancelled_caught


def _places(options: ServerOptions) -> list[Place]:
    """Return where each service is to listen, in the order of `BoundAddresses`."""
    clouds = (("SageMaker", options.sagemaker), ("Vertex AI", options.vertex_ai))
    return [
        Place("HTTP", options.http_address, options.http_port, options.http_reuse_port),
        Place("gRPC", options.grpc_address, options.grpc_port, options.grpc_reuse_port),
        Place("metrics", options.metrics_address, options.metrics_port),
        *(
            Place(name, None, 0) if cloud is None else Place(name, cloud.address, cloud.port)
            for name, cloud in clouds
        ),
    ]


def _http_frontend(
    options: ServerOptions, parts: Parts, tls: TlsContexts
) -> Frontend | AsgiFrontend:
    if options.http_server == "tritrio" or options.http_address is None:
        return parts.http
    application = HttpApplication(api=parts.http_api, budget=parts.budget, calls=parts.calls)
    return AsgiFrontend(
        "HTTP",
        application,
        grace_s=_exit_timeout_s(options),
        on_shutdown=application.begin_shutdown,
        tls=tls.http,
    )


def _exit_timeout_s(options: ServerOptions) -> float:
    return max(options.exit_timeout_s, EXIT_S_MIN)


def _first_message(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the text of the first error in a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def settle_heap() -> None:
    """Spare the garbage collector what cannot be garbage.

    What start-up made stays until the end (models too, unless they are loaded on request), and an
    inference makes no cycles, so that collections at Python's usual pace would cost a tenth of the
    processor and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_MAX, *gc.get_threshold()[1:])


async def serve_until_signal(options: ServerOptions, logs: Logs | None = None) -> bool:
    """Run a server until SIGINT or SIGTERM; see `Server`."""
    server = Server(options, logs)
    in_time = False
    fault: StartError | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for number in signals:
                    _log.info("got signal %d (%s)", number, signal.Signals(number).name)
                    server.begin_shutdown()

            nursery.start_soon(watch)
            try:
                in_time = await server.run()
            except StartError as error:  # not in the nursery, which would wrap it in a group
                fault = error
            nursery.cancel_scope.cancel()
    if fault is not None:
        raise fault
    return in_time
