"""The subtree of one model version: a batcher, its instances and their devices, load to unload.

One of the two places that wire actors to each other (the other is `core`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, final

import trio

from ..backends.base import Backend, InstancePlace, ModelInstance, ModelSource
from ..memory.cpu_quota import threads_per_instance, usable_cpus
from ..protocol.config_rules import instances
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig, ModelInstanceGroupKind
from ..protocol.statistics import ModelStatistics
from ._batch_policy import batch_policy
from ._completion import CUT_OFF, Completion
from ._completion_order import CompletionOrder
from ._device_link import Device, DeviceFactory
from ._restart_policy import RestartBudget, RestartPolicy
from .batcher import INBOX_CAPACITY, OUTBOX_CAPACITY, Batcher
from .instance import Instance
from .messages import Execute, InstanceGone, SchedulerMessage, Stop
from .routing_table import UNLOADED, ModelState, ModelVersion
from .supervisor import RestartBudgetSpentError, supervise

UNLOAD_MAX_S = 5.0
"""How long an instance may take to unload when its subtree is cancelled, in seconds."""

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
      backend: What executes it.
      labels: Output name -> its class labels, by index.
      device_factory: Makes the devices of its instances.
      budget: How often an instance may be restarted.
    """

    source: ModelSource
    config: ModelConfig
    backend: Backend
    device_factory: DeviceFactory
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    budget: RestartBudget = field(default_factory=RestartBudget)


@final
class Model:
    """Loads one model version, serves it until told to stop, and unloads it.

    Lifetime: owns the channels between its batcher and its instances, and the devices. It never
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
        statistics = ModelStatistics()
        batching = config.dynamic_batching
        ordered = batching is not None and batching.preserve_ordering
        order = CompletionOrder() if ordered else None
        completion = Completion(spec.name, spec.version, statistics, order)
        to_batcher, inbox = trio.open_memory_channel[SchedulerMessage](INBOX_CAPACITY)
        links = [trio.open_memory_channel[Execute](OUTBOX_CAPACITY) for _ in places]
        self.version = ModelVersion(
            spec=spec, config=config, statistics=statistics, inbox=to_batcher
        )
        self._batcher = Batcher(
            inbox=inbox,
            outboxes=[outbox for outbox, _ in links],
            policy=batch_policy(config, spec),
            completion=completion,
        )
        self._slots = [
            _Slot(
                index=index,
                place=place,
                definition=definition,
                decoupled=spec.decoupled,
                inbox=inbox_of_instance,
                outbox=to_batcher,
                completion=completion,
            )
            for index, (place, (_, inbox_of_instance)) in enumerate(zip(places, links, strict=True))
        ]
        self._to_batcher = to_batcher
        self._completion = completion
        self._budget = definition.budget
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
            self._batcher.close()
            self._to_batcher.close()
            async with trio.open_nursery() as nursery:  # each end is shielded, and bounded
                for slot in self._slots:
                    nursery.start_soon(slot.end)

    async def stop(self, deadline_s: float) -> None:
        """Take no more requests, and finish those there are until the deadline.

        Args:
          deadline_s: When whatever still waits or executes is cut off, in clock seconds.
        """
        if self.version.state is ModelState.READY:
            self._set_state(ModelState.UNLOADING)
        self._stopping.set()
        self._scope.deadline = min(self._scope.deadline, deadline_s)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # stopped already
            await self._to_batcher.send(Stop())

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

        async def load(slot: _Slot) -> None:
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
        self._set_state(ModelState.READY)
        return True

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                for slot in self._slots:
                    nursery.start_soon(self._supervise, slot)
                await nursery.start(self._batcher.run)
        if self.version.state is not ModelState.UNAVAILABLE:
            self._set_state(ModelState.UNAVAILABLE, UNLOADED)

    async def _supervise(self, slot: _Slot) -> None:
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
            self.fail(RequestError(ErrorCode.INTERNAL, str(spent)))
            await self.stop(trio.current_time() + FAILED_DRAIN_S)


class _Slot:
    """The place of one instance: its device and model, and the channels that outlive both."""

    def __init__(
        self,
        *,
        index: int,
        place: InstancePlace,
        definition: ModelDefinition,
        decoupled: bool,
        inbox: trio.MemoryReceiveChannel[Execute],
        outbox: trio.MemorySendChannel[SchedulerMessage],
        completion: Completion,
    ) -> None:
        self.place = place
        self._index = index
        self._definition = definition
        self._decoupled = decoupled
        self._inbox = inbox
        self._outbox = outbox
        self._completion = completion
        self._device: Device | None = None
        self._model: ModelInstance | None = None

    async def load(self) -> None:
        """Make the device and load the model on it.

        Raises:
          RequestError: the model cannot be loaded.
        """
        definition = self._definition
        device = self._device = definition.device_factory(self.place)
        device.start()
        self._model = definition.backend.create_instance(
            definition.source, definition.config, self.place
        )
        error = await device.run(_load, self._model, self.place.name)
        if error is not None:
            raise error

    async def run(self) -> None:
        """Serve until the inbox closes, then unload."""
        if self._device is None:
            await self.load()
        assert self._device is not None
        assert self._model is not None
        instance = Instance(
            index=self._index,
            name=self.place.name,
            inbox=self._inbox,
            outbox=self._outbox,
            device=self._device,
            model=self._model,
            completion=self._completion,
            decoupled=self._decoupled,
        )
        await instance.run()
        await self.unload()

    async def crashed(self) -> None:
        """Take the instance out of service."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the batcher ended
            await self._outbox.send(InstanceGone(self._index))
        await self.unload()

    async def unload(self) -> None:
        """Unload the model and end the device; bounded in time, also when cancelled."""
        device, self._device = self._device, None
        model, self._model = self._model, None
        if device is None:
            return
        if model is not None and not device.abandoned:
            with trio.move_on_after(UNLOAD_MAX_S, shield=True):
                await device.run(_unload, model, self.place.name)
        device.stop()

    async def end(self) -> None:
        """Unload what is left, and answer a batch that was sent and never received."""
        await self.unload()
        with self._inbox:
            try:
                execute = self._inbox.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return
        now_s = trio.current_time()
        for infer in execute.infers:
            self._completion.fail(infer, CUT_OFF, now_s)


def _load(model: ModelInstance, name: str) -> RequestError | None:
    """Load on the device's thread; whatever a model raises becomes the reason of its version."""
    try:
        model.load()
    except RequestError as error:
        return RequestError(error.code, error.message)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model may raise
        message = f"loading model instance '{name}' failed with {type(error).__name__}: {error}"
        return RequestError(ErrorCode.INTERNAL, message)
    return None


def _unload(model: ModelInstance, name: str) -> None:
    """Unload on the device's thread; a fault is logged, since nobody waits for an answer."""
    try:
        model.unload()
    except (Exception, SystemExit):  # whatever a model may raise
        _logger.exception("unloading model instance %r failed", name)


def reason_of(error: RequestError) -> str:
    """Return an error as the repository index shows it, cut to size."""
    text = f"{error.code.display_name}: {error.message}"
    return text if len(text) <= REASON_MAX_CHARS else text[:REASON_MAX_CHARS] + "…"
