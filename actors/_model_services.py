"""What the models of one server share, handed down from the core to each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from ..memory.budget import ByteBudget
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.metrics_config import MetricsConfig
from ._cache_access import CacheAccess
from ._device_link import DeviceFactory, DeviceLink
from ._restart_policy import RestartBudget
from ._worker_threads import RunInThread, WorkerThreads
from .bls import Calls
from .overload import Overload
from .rate_limiter import RateLimiter
from .routing_table import ModelVersion

TEXT_THREADS_MAX = 2
"""Threads that make tokens of long prompts and compile guides: they compete with the models for
the processors, and each request needs one for some milliseconds."""


def text_threads() -> RunInThread:
    """Return threads for the text of models that generate some."""
    return WorkerThreads(TEXT_THREADS_MAX)


def _find_nothing(name: str, version: str) -> ModelVersion:
    raise RequestError(ErrorCode.NOT_FOUND, f"model '{name}' version '{version}' is not known")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServices:
    """What the models of one server share.

    Attributes:
      device_factory: Makes the devices of instances.
      budget: How often an instance may be restarted.
      hang_s: How long an execution may take before its instance is given up, in seconds.
      load_max_s: How long an instance may take to load, in seconds.
      byte_budget: What ensembles charge for tensors between their steps; None counts nothing.
      overload: What is admitted on the whole server; None admits everything.
      cache: Where responses are kept of models that want it; None for nowhere.
      limiter: Decides which instances execute; None lets all of them.
      calls: Takes the calls of models by models; None for none.
      metrics: What is measured of each model.
      text_in_thread: Does what takes long for the text of models that generate some.
      find: Returns the READY version of a model by name and version (see `RoutingTable.find`).
      find_for_step: Does so for the steps of ensembles that run; None for `find`.
    """

    device_factory: DeviceFactory = DeviceLink
    budget: RestartBudget = field(default_factory=RestartBudget)
    hang_s: float = inf
    load_max_s: float = inf
    byte_budget: ByteBudget | None = None
    overload: Overload | None = None
    cache: CacheAccess | None = None
    limiter: RateLimiter | None = None
    calls: Calls | None = None
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    text_in_thread: RunInThread = field(default_factory=text_threads)
    find: Callable[[str, str], ModelVersion] = _find_nothing
    find_for_step: Callable[[str, str], ModelVersion] | None = None
