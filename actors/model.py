"""The subtree of one model version: a batcher, its instances and their devices, load to unload.

One of the two places that wire actors to each other (the other is `core`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, final

import trio

from ..backends.base import Backend, InstancePlace, ModelInstance, ModelSource
from ..backends.batch_strategy import BatchStrategy
from ..backends.warmup import run_warmup, warmup_samples
from ..memory.cpu_quota import threads_per_instance, usable_cpus
from ..protocol.config_rules import instances
from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.latency_window import LatencyWindow
from ..protocol.metrics_config import first_response_buckets_ms
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig, ModelInstanceGroupKind
from ..protocol.statistics import Histogram, ModelStatistics
from ._completion import Completion
from ._completion_order import CompletionOrder
from ._flight import counts_own_timeouts, has_queue_timeouts
from ._instance_permits import InstancePermits
from ._model_services import ModelServices
from ._restart_policy import RestartPolicy
from .batcher import INBOX_CAPACITY, OUTBOX_CAPACITY
from .bls import Calls
from .caching import Caching
from .instance_slot import InstanceMaking, InstanceSlot
from .messages import Execute, PermitGranted, SchedulerMessage, Stop
from .rate_limiter import Permit
from .routing_table import UNLOADED, ModelState, ModelVersion
from .scheduler import Surroundings, make_scheduler, preserves_ordering
from .supervisor import RestartBudgetSpentError, supervise

FAILED_DRAIN_S = 5.0
"""How long the other instances may work on the queue after one was given up, in seconds."""

REASON_MAX_CHARS = 2048
"""A reason is one sentence, but it may quote a configuration or what a model raised; the index
shows the reasons of all models in one message."""

_logger = logging.getLogger(__name__)

Report: TypeAlias = Callable[[], None]
"""Called after each change of the state of a model version."""


def instance_places(config: ModelConfig, cpus: float) -> list[InstancePlace]:
    """Return where the instances of a model go, from its normalised `instance_group`.

    Args:
      config: The final configuration.
      cpus: CPUs that the instances share.
    """
    wanted = list(instances(config))
    threads = threads_per_instance(cpus, len(wanted)) if wanted else 1
    return [
        InstancePlace(
            instance.name,
            kind=_KINDS[instance.group.kind],
            device_id=instance.device_id,
            cpu_threads=threads,
            passive=instance.group.passive,
        )
        for instance in wanted
    ]


_KINDS = {
    ModelInstanceGroupKind.GPU: "GPU",
    ModelInstanceGroupKind.CPU: "CPU",
    ModelInstanceGroupKind.MODEL: "MODEL",
}


@dataclass(frozen=True, slots=True)
class ModelDefinition:
    """Everything that makes a model version run.

    Attributes:
      source: Where its files lie.
      config: Its final configuration.
      backend: What executes it; None for an ensemble.
      labels: Output name -> its class labels, by index.
      initial_files: State input name -> content of the file of its initial state.
      strategy: Its own say in what joins a batch; closed with the model.
      services: What it shares with other models.
    """

    source: ModelSource
    config: ModelConfig
    backend: Backend | None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    initial_files: Mapping[str, bytes] = field(default_factory=dict)
    strategy: BatchStrategy | None = None
    services: ModelServices = field(default_factory=ModelServices)


@final
class Model:
    """Loads one model version, serves it until told to stop, and unloads it.

    Lifetime: owns the channels between its scheduler and its instances, and the devices. It never
    raises for a fault of the model: `version.state` and `version.reason` tell.

    Attributes:
      version: The version, as the routing table shows it.
    """

    def __init__(self, definition: ModelDefinition, *, report: Report) -> None:
        config = definition.config
        spec = ModelSpec.from_config(config, definition.source.version)
        for name, labels in definition.labels.items():
            spec.outputs[name].labels = labels
        places = instance_places(config, usable_cpus())
        if places and all(place.passive for place in places):
            raise invalid_argument(
                f"model '{spec.name}': expected an instance_group that is not passive, since the "
                "scheduler leaves passive ones alone"
            )
        statistics = _statistics(definition, spec)
        order = CompletionOrder() if preserves_ordering(config) else None
        completion = Completion(spec.name, spec.version, statistics, order)
        to_scheduler, inbox = trio.open_memory_channel[SchedulerMessage](INBOX_CAPACITY)
        self.version = ModelVersion(
            spec=spec, config=config, statistics=statistics, inbox=to_scheduler
        )
        self._caching = self.version.caching = _caching(definition, self.version, completion)
        self._slots: list[InstanceSlot] = []
        outboxes: list[trio.MemorySendChannel[Execute]] = []
        self._calls = calls = definition.services.calls
        for place in places if calls is None else map(calls.number, places):
            outbox, link = trio.open_memory_channel[Execute](OUTBOX_CAPACITY)
            self._slots.append(
                InstanceSlot(
                    index=len(outboxes),
                    place=place,
                    making=_making(definition, spec),
                    inbox=link,
                    outbox=to_scheduler,
                    completion=completion,
                    waited=partial(_waited, calls, place.number),
                )
            )
            if not place.passive:
                outboxes.append(outbox)
        self._permits = _register(definition, to_scheduler)
        active = [slot for slot in self._slots if not slot.place.passive]
        surroundings = Surroundings(
            inbox=inbox,
            to_inbox=to_scheduler,
            outboxes=outboxes,
            completion=completion,
            permits=InstancePermits(self._permits) if self._permits else None,
            hears_ends=lambda index: active[index].hears_sequence_ends,
        )
        self._scheduler = make_scheduler(definition, spec, surroundings)
        self.version.explain = self._scheduler.explain
        if calls is not None:
            calls.add_model(self.version, self._slots)
        self._to_scheduler = to_scheduler
        self._strategy = definition.strategy
        self._budget = definition.services.budget
        self._report = report
        self._scope = trio.CancelScope()
        self._stopping = trio.Event()

    def __repr__(self) -> str:
        return f"<Model {self.version!r} with {len(self._slots)} instances>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load; serve; after `stop` drain and unload. Started once the load has ended."""
        try:
            loaded = await self._load()
            task_status.started()
            if loaded:
                await self._serve()
        finally:
            self._scheduler.close()
            self._to_scheduler.close()
            async with trio.open_nursery() as nursery:  # each end is shielded, and bounded
                for slot in self._slots:
                    nursery.start_soon(slot.end)
            for permit in self._permits:
                permit.close()
            if self._calls is not None:
                self._calls.remove_model(self.version, self._slots)
            if self._strategy is not None:
                self._strategy.close()

    def begin_unload(self) -> None:
        """Be found no more; requests that come nevertheless are taken until `stop`."""
        if self.version.state is ModelState.READY:
            self._set_state(ModelState.UNLOADING)

    async def stop(self, deadline_s: float) -> None:
        """Take no more requests, and finish those there are until the deadline.

        Args:
          deadline_s: When whatever still waits or executes is cut off, in clock seconds.
        """
        self.begin_unload()
        self._stopping.set()
        self._scope.deadline = min(self._scope.deadline, deadline_s)
        if self._caching is not None:
            await self._caching.settle()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # stopped already
            await self._to_scheduler.send(Stop())

    async def _check_ready(self) -> bool:
        """Return whether the version is READY and the models of its instances say so too."""
        answers: list[bool] = []

        async def ask(slot: InstanceSlot) -> None:
            answers.append(await slot.is_ready())

        async with trio.open_nursery() as nursery:
            for slot in self._slots:
                nursery.start_soon(ask, slot)
        return self.version.state is ModelState.READY and all(answers)

    def fail(self, error: RequestError) -> None:
        """Make the version UNAVAILABLE because of an error."""
        self._set_state(ModelState.UNAVAILABLE, reason_of(error))

    def _set_state(self, state: ModelState, reason: str = "") -> None:
        self.version.state = state
        self.version.reason = reason
        self._report()

    async def _load(self) -> bool:
        """Load all instances side by side; return whether the version is READY."""
        start_s = trio.current_time()
        errors: list[RequestError] = []

        async def load(slot: InstanceSlot) -> None:
            try:
                await slot.load()
            except RequestError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for slot in self._slots:
                nursery.start_soon(load, slot)
        self.version.load_duration_s = trio.current_time() - start_s
        if errors:
            self.fail(errors[0])
            return False
        self.version.loaded = True
        if any(slot.says_ready for slot in self._slots):
            self.version.check_ready = self._check_ready
        self._set_state(ModelState.READY)
        self._log_state("READY")
        return True

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                for slot in self._slots:
                    if not slot.place.passive:
                        nursery.start_soon(self._supervise, slot)
                if self._caching is not None:
                    await nursery.start(self._caching.run)
                await nursery.start(self._schedule)
        if self.version.state is not ModelState.UNAVAILABLE:
            self._set_state(ModelState.UNAVAILABLE, UNLOADED)
            self._log_state(UNLOADED)

    def _log_state(self, state: str) -> None:
        name, version = self.version.name, self.version.version
        about = {"model": name, "version": version}
        _logger.info("model %s version %s is %s", name, version, state, extra=about)

    async def _schedule(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await self._scheduler.run(task_status=task_status)
        finally:
            if self._caching is not None:
                self._caching.close()

    async def _supervise(self, slot: InstanceSlot) -> None:
        name = f"model instance '{slot.place.name}'"
        policy = RestartPolicy(self._budget)
        try:
            await supervise(
                name,
                slot.run,
                policy=policy,
                on_crash=slot.crashed,
                stopping=self._stopping,
            )
        except RestartBudgetSpentError as spent:
            _logger.error("%r is UNAVAILABLE from now on: %s", self.version, spent)  # noqa: TRY400
            self.fail(RequestError(ErrorCode.INTERNAL, str(spent)))
            await self.stop(trio.current_time() + FAILED_DRAIN_S)


def _statistics(definition: ModelDefinition, spec: ModelSpec) -> ModelStatistics:
    """Return counters that measure what the server is asked to."""
    statistics, metrics = ModelStatistics(), definition.services.metrics
    if metrics.summary_latencies:
        statistics.latencies = LatencyWindow()
    if metrics.histogram_latencies and spec.decoupled:
        statistics.first_response = Histogram(first_response_buckets_ms(definition.config))
    return statistics


def _caching(
    definition: ModelDefinition, version: ModelVersion, completion: Completion
) -> Caching | None:
    """Return the cache in front of the scheduler, if model and server want one."""
    config, access = definition.config, definition.services.cache
    if config.response_cache is None or not config.response_cache.enable:
        return None
    if access is None:
        _logger.warning(
            "model %r wants its responses cached, but the server has no cache; see --cache-config",
            version.name,
        )
        return None
    return Caching(
        model_name=version.name,
        model_version=version.version,
        access=access,
        completion=completion,
        enqueue=version.enqueue,
        shares_executions=not has_queue_timeouts(config),
        counts_own_timeouts=counts_own_timeouts(config),
    )


def _register(
    definition: ModelDefinition, to_scheduler: trio.MemorySendChannel[SchedulerMessage]
) -> list[Permit]:
    """Return the permits of the instances that are scheduled; none without a rate limiter.

    Raises:
      RequestError: an instance needs more of a resource than there is.
    """
    limiter = definition.services.limiter
    permits: list[Permit] = []
    if limiter is None:
        return permits

    def wake(index: int) -> None:
        # A scheduler whose inbox is full wakes up by itself, and looks at its permits.
        with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            to_scheduler.send_nowait(PermitGranted(index))

    try:
        for instance in instances(definition.config):
            if not instance.group.passive:
                on_grant = partial(wake, len(permits))
                permits.append(
                    limiter.register(instance.name, instance.group, instance.device_id, on_grant)
                )
    except RequestError:
        for permit in permits:
            permit.close()
        raise
    return permits


def _warm_up(definition: ModelDefinition, spec: ModelSpec, instance: ModelInstance) -> None:
    """Execute the samples of `model_warmup` on the instance's thread."""
    samples = warmup_samples(
        definition.config, spec, definition.source.model_directory, definition.initial_files
    )
    run_warmup(instance, samples, decoupled=spec.decoupled)


def _waited(calls: Calls | None, number: int | None) -> bool:
    """Return whether what an instance executes has waited for other models lately."""
    return calls is not None and calls.waited(number)


def _making(definition: ModelDefinition, spec: ModelSpec) -> InstanceMaking:
    assert definition.backend is not None, "only an ensemble has none, and no instances"
    return InstanceMaking(
        source=definition.source,
        config=definition.config,
        backend=definition.backend,
        warm_up=partial(_warm_up, definition, spec),
        device_factory=definition.services.device_factory,
        decoupled=spec.decoupled,
        hang_s=definition.services.hang_s,
        load_max_s=definition.services.load_max_s,
    )


def reason_of(error: RequestError) -> str:
    """Return an error as the repository index shows it, cut to size."""
    text = f"{error.code.display_name}: {error.message}"
    return text if len(text) <= REASON_MAX_CHARS else text[:REASON_MAX_CHARS] + "…"
