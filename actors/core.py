"""Everything behind the frontends: router, repository, and below it the models.

One of the two places that wire actors to each other (the other is `model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TypeVar, TypeVarTuple, final

import trio

from ..backends.metric_store import MetricStore
from ..memory.budget import ByteBudget
from ..memory.cache_config import CacheConfig
from ..memory.response_cache import ResponseCache
from ..protocol.errors import RequestError
from ..protocol.metrics_config import MetricsConfig
from ..protocol.trace_config import TraceConfig
from ._cache_access import open_cache
from ._device_link import DeviceFactory, DeviceLink
from ._model_preparation import PreparationSettings
from ._model_services import ModelServices, text_threads
from ._overload_policy import OverloadPolicy
from ._rate_limit_policy import Capacities
from ._repository_scan import ScanSettings
from ._restart_policy import RestartBudget
from ._worker_threads import RunInThread, WorkerThreads
from .bls import Calls
from .model_control import ModelControl, RegistersModels
from .overload import Overload
from .rate_limiter import RateLimiter
from .repository import MODEL_LOADS_MAX, Repository, RepositorySettings
from .repository_control import RepositoryControl
from .repository_index import RepositoryIndex
from .repository_polling import RepositoryPolling
from .router import Router
from .served_models import ServedModels
from .tracing import Tracing

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BYTE_BUDGET_DEFAULT = 4 * 1024**3
"""Room for one request and one response of the largest size gRPC allows (2 GiB each)."""

PREPARATION_THREADS_MAX = 64
"""Threads that scan and prepare: a few at a time, since few models are loaded at a time, and those
that hang in the code of a model and were abandoned, for as long as they hang."""


def _preparation_threads() -> RunInThread:
    return WorkerThreads(PREPARATION_THREADS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """What a core serves, and how.

    Attributes:
      repositories: Directories of model directories.
      exit_timeout_s: How long requests may finish after a shutdown began, in seconds.
      strict_readiness: Whether the server is ready only with every model ready.
      auto_complete_config: Whether configurations are completed from the models' files.
      backend_settings: Backend name ("" for all) -> settings of the backend.
      model_control: "none" for all models from start to end, "poll" for all models that lie in the
        repositories at any time, "explicit" for models that are loaded and unloaded on request.
      poll_s: Seconds between two looks at the repositories; 0 for none but the first.
      startup_models: What explicit control loads at the start; ("*",) for all models.
      namespaces: Whether models of one name may lie in several repositories.
      config_name: `configs/<name>.pbtxt` goes before `config.pbtxt`; "" for that alone.
      loads_max: Models loaded at a time.
      load_retries: How often the load of a model that failed is tried again.
      device_factory: Makes the devices of instances.
      run_in_thread: Runs blocking work off the event loop.
      text_in_thread: Does so for the text of models that generate some.
      hang_s: How long an execution may take before its instance is given up, in seconds.
      load_max_s: How long preparing a model may take, and then loading an instance, in seconds.
      cache: Where responses are kept; None for nowhere.
      byte_budget: Most bytes of request bodies, queued tensors and unsent responses together.
      overload_queue_age_s: How long a request may wait before low priorities are refused.
      rate_limits: What the resources of the rate limiter are; None for no rate limiter.
      budget: How often an instance may be restarted.
      metrics: What is measured of each model.
      trace: What is traced from the start.
    """

    repositories: tuple[Path, ...]
    exit_timeout_s: float = 30.0
    strict_readiness: bool = True
    auto_complete_config: bool = True
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    model_control: str = "none"
    poll_s: float = 15.0
    startup_models: tuple[str, ...] = ()
    namespaces: bool = False
    config_name: str = ""
    loads_max: int = MODEL_LOADS_MAX
    load_retries: int = 0
    device_factory: DeviceFactory = DeviceLink
    run_in_thread: RunInThread = field(default_factory=_preparation_threads)
    text_in_thread: RunInThread = field(default_factory=text_threads)
    hang_s: float = inf
    load_max_s: float = inf
    rate_limits: Capacities | None = None
    cache: CacheConfig | None = None
    byte_budget: int = BYTE_BUDGET_DEFAULT
    overload_queue_age_s: float = inf
    budget: RestartBudget = field(default_factory=RestartBudget)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)


@final
class Core:
    """A running core.

    Attributes:
      router: Where frontends ask for models.
      budget: What frontends charge for what they hold.
      cache: Where responses are kept, or None.
      custom_metrics: The metrics that models make themselves.
      control: Loads and unloads models on request.
      index: What models there are.
      registers: The same, for models that lie outside the repositories.
      run_in_thread: Runs blocking work off the event loop.
      metrics: What is measured of each model.
      tracing: Samples the requests of frontends.
    """

    def __init__(
        self,
        *,
        router: Router,
        budget: ByteBudget,
        cache: ResponseCache | None,
        custom_metrics: MetricStore,
        metrics: MetricsConfig,
        tracing: Tracing,
        repository: Repository,
        control: RepositoryControl,
        index: RepositoryIndex,
        polling: RepositoryPolling | None,
        run_in_thread: RunInThread,
        exit_timeout_s: float,
    ) -> None:
        self.router = router
        self.budget = budget
        self.cache = cache
        self.custom_metrics = custom_metrics
        self.control: ModelControl = control
        self.index = index
        self.registers: RegistersModels = control
        self.run_in_thread = run_in_thread
        self.metrics = metrics
        self.tracing = tracing
        self._repository = repository
        self._control = control
        self._polling = polling
        self._exit_timeout_s = exit_timeout_s
        self._deadline_s: float | None = None
        self._ended = trio.Event()

    def begin_shutdown(self) -> None:
        """Refuse new requests, and let the exit timeout run; requests in flight go on."""
        if self._deadline_s is None:
            self._deadline_s = trio.current_time() + self._exit_timeout_s
            self.router.begin_shutdown()
            self._control.begin_close()
            if self._polling is not None:
                self._polling.begin_close()

    async def stop(self) -> bool:
        """Let all models drain, within what is left of the exit timeout, and unload.

        Returns:
          Whether all of them ended in time.
        """
        self.begin_shutdown()
        assert self._deadline_s is not None
        await self._control.close()
        if self._polling is not None:
            await self._polling.close()
        await self._repository.stop(self._deadline_s)
        await self._ended.wait()
        return trio.current_time() <= self._deadline_s

    def end(self) -> None:
        """Note that every model has ended."""
        self._ended.set()


async def run_core(
    options: CoreOptions, *, task_status: trio.TaskStatus[Core] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the models of some repositories until `Core.stop`.

    Started once every start-up load has ended; models that failed are in the index of
    `core.router.table` with their reason. Cancelling it is the abrupt stop: what is in flight is
    answered with an error, models still unload, both bounded in time.

    Raises:
      RequestError: a repository cannot be read, or the way of tracing is not installed.
    """
    tracing = Tracing(options.trace, options.run_in_thread)
    router = Router(strict_readiness=options.strict_readiness)
    budget = ByteBudget(options.byte_budget)
    access = None if options.cache is None else open_cache(options.cache)
    overload = Overload(budget, OverloadPolicy(queue_age_high_s=options.overload_queue_age_s))
    models = ServedModels(publish=router.apply, withdraw=router.withdraw)
    calls = Calls(models.find)
    explicit, poll = options.model_control == "explicit", options.model_control == "poll"
    settings = RepositorySettings(
        repositories=options.repositories,
        preparation=PreparationSettings(
            options.auto_complete_config, options.backend_settings, options.load_max_s
        ),
        run_in_thread=options.run_in_thread,
        services=ModelServices(
            device_factory=options.device_factory,
            budget=options.budget,
            hang_s=options.hang_s,
            load_max_s=options.load_max_s,
            byte_budget=budget,
            overload=overload,
            cache=access,
            limiter=None if options.rate_limits is None else RateLimiter(options.rate_limits),
            calls=calls,
            metrics=options.metrics,
            text_in_thread=options.text_in_thread,
        ),
        scan=ScanSettings(
            options.config_name,
            fingerprints=explicit or poll,
            contents=poll,
            namespaces=options.namespaces,
        ),
        startup_models=options.startup_models if explicit else None,
        loads_max=options.loads_max,
        retries=options.load_retries,
    )
    repository = Repository(settings, models=models)
    control = RepositoryControl(
        repository=repository, run_in_thread=options.run_in_thread, explicit=explicit
    )
    polling: RepositoryPolling | None = None
    if poll and options.poll_s > 0:
        polling = RepositoryPolling(repository, interval_s=options.poll_s)
    calls.connect(control)
    core = Core(
        router=router,
        budget=budget,
        cache=None if access is None else access.cache,
        custom_metrics=calls.metrics,
        metrics=options.metrics,
        tracing=tracing,
        repository=repository,
        control=control,
        index=RepositoryIndex(
            router=router,
            repositories=options.repositories if explicit else (),
            run_in_thread=options.run_in_thread,
            namespaces=options.namespaces,
        ),
        polling=polling,
        run_in_thread=options.run_in_thread,
        exit_timeout_s=options.exit_timeout_s,
    )
    fault: RequestError | None = None
    with closing(calls):
        async with trio.open_nursery() as watching:
            await watching.start(overload.run)
            await watching.start(tracing.run)
            async with trio.open_nursery() as nursery:
                try:
                    await nursery.start(repository.run)
                except RequestError as error:
                    fault = error
                else:
                    control.open()
                    if polling is not None:
                        nursery.start_soon(polling.run)
                    router.started()
                    task_status.started(core)
            await tracing.stop()
            watching.cancel_scope.cancel()
    if access is not None:
        access.cache.close()
    if fault is not None:
        raise fault
    core.end()
