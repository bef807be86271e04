"""The instances of one model version: which there are, how they are made, and how that changes.

Part of the composition of `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import trio

from ..backends.base import InstancePlace
from ..memory.cpu_quota import threads_per_instance, usable_cpus
from ..protocol.config_rules import Instance, instances
from ..protocol.errors import RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig, ModelInstanceGroupKind
from ._completion import Completion
from .batcher import OUTBOX_CAPACITY
from .bls import Calls
from .instance_slot import InstanceMaking, InstanceSlot
from .messages import Execute, InstancesChanged, PermitGranted, SchedulerMessage
from .rate_limiter import Permit, RateLimiter

_KINDS = {
    ModelInstanceGroupKind.GPU: "GPU",
    ModelInstanceGroupKind.CPU: "CPU",
    ModelInstanceGroupKind.MODEL: "MODEL",
}


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


@dataclass(frozen=True, slots=True, eq=False)
class PlacedInstance:
    """One instance, and what connects it with its scheduler.

    Attributes:
      instance: What the configuration says of it.
      slot: Its place.
      outbox: Where its scheduler sends batches; unused if it is passive.
      permit: Its right to execute; None without a rate limiter, or if it is passive.
    """

    instance: Instance
    slot: InstanceSlot
    outbox: trio.MemorySendChannel[Execute]
    permit: Permit | None


@dataclass(frozen=True, slots=True, eq=False)
class InstanceUpdate:
    """A change of the instances of a version that runs.

    Attributes:
      config: The configuration that asks for it.
      added: Instances that are new.
      kept: Those that go on.
      retired: Those that are to end.
    """

    config: ModelConfig
    added: list[PlacedInstance]
    kept: list[PlacedInstance]
    retired: list[PlacedInstance]

    @property
    def message(self) -> InstancesChanged:
        """What tells the scheduler."""
        added = {
            each.slot.index: (each.outbox, each.permit)
            for each in self.added
            if not each.slot.place.passive
        }
        retired = [each.slot.index for each in self.retired if not each.slot.place.passive]
        return InstancesChanged(added, retired)


@final
class ModelInstances:
    """The instances of one model version.

    Args:
      config: The final configuration.
      making: What they are made from, given a configuration.
      calls: What numbers them, or None.
      limiter: What gives permits, or None.
      completion: How their requests end.
      to_scheduler: Where they report.

    Attributes:
      placed: Those that the configuration asks for.

    Raises:
      RequestError: all are passive, or one needs more of a resource than there is.
    """

    def __init__(
        self,
        config: ModelConfig,
        making: Callable[[ModelConfig], InstanceMaking],
        *,
        calls: Calls | None,
        limiter: RateLimiter | None,
        completion: Completion,
        to_scheduler: trio.MemorySendChannel[SchedulerMessage],
    ) -> None:
        self._making = making
        self._calls = calls
        self._limiter = limiter
        self._completion = completion
        self._to_scheduler = to_scheduler
        self._next_index = 0
        self._leaving: list[PlacedInstance] = []
        self.placed = self._make(config, list(instances(config)))

    def __repr__(self) -> str:
        return f"<ModelInstances: {len(self.placed)}, {len(self._leaving)} leaving>"

    @property
    def slots(self) -> list[InstanceSlot]:
        """The places of all that the configuration asks for."""
        return [each.slot for each in self.placed]

    @property
    def active(self) -> list[PlacedInstance]:
        """Those of them that are scheduled, by index as long as nothing was changed."""
        return [each for each in self.placed if not each.slot.place.passive]

    def update(self, config: ModelConfig) -> InstanceUpdate:
        """Return what a configuration changes; its new instances are to be loaded, or ended.

        Raises:
          RequestError: all are passive, or one needs more of a resource than there is.
        """
        old = {_identity(each.instance): each for each in self.placed}
        wanted = {_identity(each): each for each in instances(config)}
        added = self._make(config, [each for key, each in wanted.items() if key not in old])
        kept = [each for key, each in old.items() if key in wanted]
        return InstanceUpdate(
            config, added, kept, [each for key, each in old.items() if key not in wanted]
        )

    def change(self, update: InstanceUpdate) -> None:
        """Count the new instances, and no more those that leave, which still have to end."""
        self.placed = [*update.kept, *update.added]
        self._leaving += update.retired
        for each in update.retired:
            each.slot.stopping.set()

    def is_leaving(self, slot: InstanceSlot) -> bool:
        """Return whether a change has made an instance superfluous."""
        return any(each.slot is slot for each in self._leaving)

    def stop(self) -> None:
        """Have no instance restarted any more."""
        for slot in self.slots:
            slot.stopping.set()

    async def end(self, ending: Sequence[PlacedInstance] | None = None) -> list[InstanceSlot]:
        """End instances for good, by default all; bounded in time, also when cancelled.

        Returns:
          Their places.
        """
        if ending is None:
            ending = [*self.placed, *self._leaving]
        async with trio.open_nursery() as nursery:  # each end is shielded, and bounded
            for each in ending:
                nursery.start_soon(each.slot.end)
        for each in ending:
            each.outbox.close()
            if each.permit is not None:
                each.permit.close()
        return [each.slot for each in ending]

    async def leave(self, slot: InstanceSlot) -> None:
        """End an instance that a change has made superfluous, and forget it."""
        [leaving] = [each for each in self._leaving if each.slot is slot]
        await self.end([leaving])
        self._leaving.remove(leaving)

    def _make(self, config: ModelConfig, wanted: Sequence[Instance]) -> list[PlacedInstance]:
        places = instance_places(config, usable_cpus())
        by_identity = dict(zip(map(_identity, instances(config)), places, strict=True))
        if places and all(place.passive for place in places):
            raise invalid_argument(
                f"model '{config.name}': expected an instance_group that is not "
                "passive, since the scheduler leaves passive ones alone"
            )
        made: list[PlacedInstance] = []
        try:
            for instance in wanted:
                place = by_identity[_identity(instance)]
                made.append(self._place(config, instance, place))
        except RequestError:
            for each in made:
                if each.permit is not None:
                    each.permit.close()
            raise
        return made

    def _place(
        self, config: ModelConfig, instance: Instance, place: InstancePlace
    ) -> PlacedInstance:
        calls, index = self._calls, self._next_index
        if calls is not None:
            place = calls.number(place)
        permit: Permit | None = None
        if not place.passive:
            self._next_index += 1
            if self._limiter is not None:
                permit = self._limiter.register(
                    instance.name, instance.group, instance.device_id, partial(self._wake, index)
                )
        outbox, link = trio.open_memory_channel[Execute](OUTBOX_CAPACITY)
        slot = InstanceSlot(
            index=index,
            place=place,
            making=self._making(config),
            inbox=link,
            outbox=self._to_scheduler,
            completion=self._completion,
            waited=partial(_waited, calls, place.number),
        )
        return PlacedInstance(instance, slot, outbox, permit)

    def _wake(self, index: int) -> None:
        # A scheduler whose inbox is full wakes up by itself, and looks at its permits.
        with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self._to_scheduler.send_nowait(PermitGranted(index))


async def load_all(slots: Iterable[InstanceSlot]) -> list[RequestError]:
    """Load instances side by side; return why those were not loaded that failed."""
    errors: list[RequestError] = []

    async def load(slot: InstanceSlot) -> None:
        try:
            await slot.load()
        except RequestError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for slot in slots:
            nursery.start_soon(load, slot)
    return errors


def differs_in_instances_alone(old: ModelConfig, new: ModelConfig) -> bool:
    """Return whether a version goes on with another configuration once its instances are changed.

    Those of a model with sequences hold their states, and an ensemble has none.
    """
    if new.sequence_batching is not None or new.ensemble_scheduling is not None:
        return False
    if (old.instance_group, old.version_policy) == (new.instance_group, new.version_policy):
        return False  # something else has changed, if only the file's time
    return replace(old, instance_group=[], version_policy=None) == replace(
        new, instance_group=[], version_policy=None
    )


def _identity(instance: Instance) -> tuple[object, ...]:
    """Return what tells an instance from one that has to be made anew."""
    alike = replace(instance.group, count=0, gpus=[])
    return (instance.name, instance.device_id, repr(alike))


def _waited(calls: Calls | None, number: int | None) -> bool:
    """Return whether what an instance executes has waited for other models lately."""
    return calls is not None and calls.waited(number)
