"""The subtree of one model version: a batcher, its instances and their devices, load to unload.

One of the two places that wire actors to each other (the other is `core`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, final

import trio

from ..backends.base import Backend, ModelInstance, ModelSource
from ..backends.batch_strategy import BatchStrategy
from ..backends.llm.steps import GeneratesTokens
from ..backends.openai_settings import OpenAiSettings
from ..backends.warmup import run_warmup, warmup_samples
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.latency_window import LatencyWindow
from ..protocol.llm_statistics import LLM_BACKEND, LlmStatistics
from ..protocol.metrics_config import first_response_buckets_ms
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.statistics import Histogram, ModelStatistics
from ._batch_explanation import continuous
from ._completion import Completion
from ._completion_order import CompletionOrder
from ._flight import counts_own_timeouts, has_queue_timeouts
from ._instance_permits import InstancePermits
from ._model_keys import printed
from ._model_services import ModelServices
from ._restart_policy import RestartPolicy
from .batcher import INBOX_CAPACITY
from .caching import Caching
from .instance_slot import InstanceMaking, InstanceSlot
from .messages import SchedulerMessage, Stop
from .model_instances import InstanceUpdate, ModelInstances, load_all
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
      openai: What it says for OpenAI's API.
      services: What it shares with other models.
      namespace: The repository that tells it from models of the same name; "" without namespaces.
    """

    source: ModelSource
    config: ModelConfig
    backend: Backend | None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    initial_files: Mapping[str, bytes] = field(default_factory=dict)
    strategy: BatchStrategy | None = None
    openai: OpenAiSettings = field(default_factory=OpenAiSettings)
    services: ModelServices = field(default_factory=ModelServices)
    namespace: str = ""


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
        statistics = _statistics(definition, spec)
        order = CompletionOrder() if preserves_ordering(config) else None
        completion = Completion(spec.name, spec.version, statistics, order)
        to_scheduler, inbox = trio.open_memory_channel[SchedulerMessage](INBOX_CAPACITY)
        self.version = ModelVersion(
            spec=spec,
            config=config,
            statistics=statistics,
            inbox=to_scheduler,
            namespace=definition.namespace,
        )
        self.version.openai = definition.openai
        self._caching = self.version.caching = _caching(definition, self.version, completion)
        self._calls = calls = definition.services.calls
        self._instances = ModelInstances(
            config,
            partial(_making, definition, spec),
            calls=calls,
            limiter=definition.services.limiter,
            completion=completion,
            to_scheduler=to_scheduler,
        )
        active = self._instances.active
        permits = {each.slot.index: each.permit for each in active if each.permit is not None}
        surroundings = Surroundings(
            inbox=inbox,
            to_inbox=to_scheduler,
            outboxes=[each.outbox for each in active],
            completion=completion,
            permits=InstancePermits(permits) if permits else None,
            hears_ends=lambda index: active[index].slot.hears_sequence_ends,
        )
        self._scheduler = make_scheduler(definition, spec, surroundings)
        self.version.explain = self._explain
        if calls is not None:
            calls.add_model(self.version, self._instances.slots)
        self._to_scheduler = to_scheduler
        self._strategy = definition.strategy
        self._budget = definition.services.budget
        self._report = report
        self._end_reason = UNLOADED
        self._scope = trio.CancelScope()
        self._running: trio.Nursery | None = None  # where instances run, while it serves

    def __repr__(self) -> str:
        return f"<Model {self.version!r} with {self._instances!r}>"

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
            slots = await self._instances.end()
            if self._calls is not None:
                self._calls.remove_model(self.version, slots)
            if self._strategy is not None:
                self._strategy.close()

    def begin_unload(self, reason: str = UNLOADED) -> None:
        """Be found no more; requests that come nevertheless are taken until `stop`.

        Args:
          reason: What is said of the version once it has ended; one that `is_unloaded`.
        """
        if self.version.state is ModelState.READY:
            self._end_reason = reason
            self._set_state(ModelState.UNLOADING)

    async def stop(self, deadline_s: float) -> None:
        """Take no more requests, and finish those there are until the deadline.

        Args:
          deadline_s: When whatever still waits or executes is cut off, in clock seconds.
        """
        self.begin_unload()
        self._instances.stop()
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
            for slot in self._instances.slots:
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
        errors = await load_all(self._instances.slots)
        self.version.load_duration_s = trio.current_time() - start_s
        if errors:
            self.fail(errors[0])
            return False
        self.version.loaded = True
        generating = self._generating()
        if generating:
            self.version.text = generating[0].text
            self.version.tokens_max = generating[0].limits.tokens_per_row
        self._let_instances_say_ready()
        self._set_state(ModelState.READY)
        self._log_state("READY")
        return True

    def _generating(self) -> list[GeneratesTokens]:
        models = (slot.generates for slot in self._instances.slots)
        return [model for model in models if model is not None]

    def _explain(self) -> dict[str, Any] | None:
        explained, llm = self._scheduler.explain(), self.version.statistics.llm
        limits = [model.limits for model in self._generating()]
        if explained is None or llm is None or not limits:
            return explained
        return continuous(explained["rules"], limits, llm.totals())

    def _let_instances_say_ready(self) -> None:
        says_ready = any(slot.says_ready for slot in self._instances.slots)
        self.version.check_ready = self._check_ready if says_ready else None

    async def load_update(self, config: ModelConfig) -> InstanceUpdate:
        """Load the instances that another configuration adds, while the others go on.

        Args:
          config: One that `differs_in_instances_alone`.

        Raises:
          RequestError: one of them cannot be loaded; then none is there.
        """
        update = self._instances.update(config)
        loaded = False
        try:
            errors = await load_all(each.slot for each in update.added)
            if errors:
                raise errors[0]
            loaded = True
        finally:
            if not loaded:
                await self.undo(update)
        return update

    async def undo(self, update: InstanceUpdate) -> None:
        """End the instances that an update has loaded; bounded in time, also when cancelled."""
        await self._instances.end(update.added)

    async def commit(self, update: InstanceUpdate) -> bool:
        """Have new instances take batches, and let those end that are superfluous.

        Returns:
          Whether that is done; else the version serves no more, and the update is to be undone.
        """
        while self.version.state is ModelState.READY and self._running is not None:
            try:
                self._to_scheduler.send_nowait(update.message)
            except trio.WouldBlock:  # it empties its inbox in each turn of the loop
                await trio.lowlevel.checkpoint()
                continue
            self._instances.change(update)
            self.version.config = update.config
            self._let_instances_say_ready()
            if self._calls is not None:
                self._calls.add_model(self.version, self._instances.slots)
            for each in update.added:
                if not each.slot.place.passive:
                    self._running.start_soon(self._supervise, each.slot)
            for each in update.retired:
                if each.slot.place.passive:
                    self._running.start_soon(self._leave, each.slot)
            return True
        return False

    async def _leave(self, slot: InstanceSlot) -> None:
        await self._instances.leave(slot)
        if self._calls is not None:
            self._calls.remove_model(self.version, [slot])
            self._calls.add_model(self.version, self._instances.slots)

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._running = nursery
                for each in self._instances.active:
                    nursery.start_soon(self._supervise, each.slot)
                if self._caching is not None:
                    await nursery.start(self._caching.run)
                await nursery.start(self._schedule)
        if self.version.state is not ModelState.UNAVAILABLE:
            self._set_state(ModelState.UNAVAILABLE, self._end_reason)
            self._log_state(self._end_reason)

    def _log_state(self, state: str) -> None:
        name, version = self.version.name, self.version.version
        about = {"model": name, "version": version}
        key = printed(self.version.key)
        _logger.info("model %s version %s is %s", key, version, state, extra=about)

    async def _schedule(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await self._scheduler.run(task_status=task_status)
        finally:
            self._running = None
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
                stopping=slot.stopping,
            )
        except RestartBudgetSpentError as spent:
            if self._instances.is_leaving(slot):
                return
            _logger.error("%r is UNAVAILABLE from now on: %s", self.version, spent)  # noqa: TRY400
            self.fail(RequestError(ErrorCode.INTERNAL, str(spent)))
            await self.stop(trio.current_time() + FAILED_DRAIN_S)
        finally:
            if self._instances.is_leaving(slot):
                await self._leave(slot)


def _statistics(definition: ModelDefinition, spec: ModelSpec) -> ModelStatistics:
    """Return counters that measure what the server is asked to."""
    statistics, metrics = ModelStatistics(), definition.services.metrics
    if metrics.summary_latencies:
        statistics.latencies = LatencyWindow()
    if metrics.histogram_latencies and spec.decoupled:
        statistics.first_response = Histogram(first_response_buckets_ms(definition.config))
    if definition.config.backend == LLM_BACKEND:
        statistics.llm = LlmStatistics()
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
        namespace=version.namespace,
        access=access,
        completion=completion,
        enqueue=version.enqueue,
        shares_executions=not has_queue_timeouts(config),
        counts_own_timeouts=counts_own_timeouts(config),
    )


def _warm_up(definition: ModelDefinition, spec: ModelSpec, instance: ModelInstance) -> None:
    """Execute the samples of `model_warmup` on the instance's thread."""
    samples = warmup_samples(
        definition.config, spec, definition.source.model_directory, definition.initial_files
    )
    run_warmup(instance, samples, decoupled=spec.decoupled)


def _making(definition: ModelDefinition, spec: ModelSpec, config: ModelConfig) -> InstanceMaking:
    assert definition.backend is not None, "only an ensemble has none, and no instances"
    return InstanceMaking(
        source=definition.source,
        config=config,
        backend=definition.backend,
        warm_up=partial(_warm_up, definition, spec),
        device_factory=definition.services.device_factory,
        decoupled=spec.decoupled,
        text_in_thread=definition.services.text_in_thread,
        hang_s=definition.services.hang_s,
        load_max_s=definition.services.load_max_s,
    )


def reason_of(error: RequestError) -> str:
    """Return an error as the repository index shows it, cut to size."""
    text = f"{error.code.display_name}: {error.message}"
    return text if len(text) <= REASON_MAX_CHARS else text[:REASON_MAX_CHARS] + "…"
