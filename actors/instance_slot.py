"""The place of one instance within its model: its device and its model object, restart to restart.

Part of the composition of `model`: it makes the devices, and the `Instance` or `LlmEngine` actors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import final

import trio

from ..backends.base import (
    Backend,
    CanBeKilled,
    InstancePlace,
    ModelInstance,
    ModelSource,
    SaysReady,
)
from ..backends.llm.steps import GeneratesTokens
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.pb.inference import ModelConfig
from ._completion import CUT_OFF, Completion
from ._device_link import Device, DeviceFactory, DeviceHungError
from ._readiness_check import ReadinessCheck
from ._worker_threads import RunInThread
from .instance import Instance
from .llm_engine import LlmEngine
from .messages import Execute, InstanceGone, SchedulerMessage
from .supervisor import RestartBudgetSpentError

UNLOAD_MAX_S = 5.0
"""How long an instance may take to unload when its subtree is cancelled, in seconds."""

HANGING_MAX = 8
"""Threads that hang, of one instance: each keeps its memory, and may never be heard of again. With
that many, something is broken that restarts do not mend."""

LOAD_AGAIN_FACTOR = 10
"""How much longer than before a load may take when hanging instances are replaced."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InstanceMaking:
    """What the instances of a model version are made from.

    Attributes:
      source: Where its files lie.
      config: Its final configuration.
      backend: What executes it.
      warm_up: Called on the thread of an instance that has loaded; its errors fail the load.
      device_factory: Makes the devices.
      decoupled: Whether a request may have any number of responses.
      text_in_thread: Does what takes long for a model that generates text.
      hang_s: How long an execution may take before its instance is given up, in seconds.
      load_max_s: How long the first load of an instance may take, in seconds.
    """

    source: ModelSource
    config: ModelConfig
    backend: Backend
    warm_up: Callable[[ModelInstance], None]
    device_factory: DeviceFactory
    decoupled: bool
    text_in_thread: RunInThread
    hang_s: float
    load_max_s: float


@final
class InstanceSlot:
    """The place of one instance: its device and model, and the channels that outlive both.

    Attributes:
      place: Where it lies.
      index: What the scheduler calls it.
      stopping: Once set, it is not started again when it crashes.
    """

    def __init__(
        self,
        *,
        index: int,
        place: InstancePlace,
        making: InstanceMaking,
        inbox: trio.MemoryReceiveChannel[Execute],
        outbox: trio.MemorySendChannel[SchedulerMessage],
        completion: Completion,
        waited: Callable[[], bool],
    ) -> None:
        self.place = place
        self.index = index
        self.stopping = trio.Event()
        self._making = making
        self._inbox = inbox
        self._outbox = outbox
        self._completion = completion
        self._waited = waited
        self._device: Device | None = None
        self._model: ModelInstance | None = None
        self._instance: Instance | None = None
        self._readiness = ReadinessCheck(place.name)
        self._hanging: list[Device] = []
        self._load_s = 0.0

    @property
    def hears_sequence_ends(self) -> bool:
        """Whether the loaded model wants to know which of its sequences are over."""
        return bool(getattr(self._model, "hears_sequence_ends", False))

    @property
    def executing(self) -> Execute | None:
        """What the instance executes now."""
        return None if self._instance is None else self._instance.executing

    @property
    def generates(self) -> GeneratesTokens | None:
        """The loaded model, if it generates text."""
        return self._model if isinstance(self._model, GeneratesTokens) else None

    @property
    def says_ready(self) -> bool:
        """Whether the loaded model has a say in whether it is ready."""
        return bool(getattr(self._model, "says_ready", False))

    async def is_ready(self) -> bool:
        """Return whether the instance is there and, if its model has a say in it, is ready.

        A model that executes is asked later: until then what it said last holds.
        """
        device, model = self._device, self._model
        if device is None or model is None or device.abandoned:
            return False
        if not isinstance(model, SaysReady) or not model.says_ready:
            return True
        if self.executing is not None:
            return self._readiness.last
        return await self._readiness.ask(device, model)

    async def load(self) -> None:
        """Make the device and load the model on it.

        Raises:
          RequestError: the model cannot be loaded, or it took too long.
        """
        max_s = self._making.load_max_s
        try:
            await self._load_within(max_s)
        except DeviceHungError:
            message = f"model instance '{self.place.name}' did not load within {max_s:g} s"
            raise RequestError(ErrorCode.UNAVAILABLE, message) from None

    async def _load_within(self, hang_s: float) -> None:
        """Do as `load`.

        Raises:
          RequestError: the model cannot be loaded.
          DeviceHungError: it took longer than that, in seconds.
        """
        start_s = trio.current_time()
        making = self._making
        device = self._device = making.device_factory(self.place)
        device.start()
        model = self._model = making.backend.create_instance(
            making.source, making.config, self.place
        )
        error = await device.run(_load, model, self.place.name, making.warm_up, hang_s=hang_s)
        if error is not None:
            raise error
        self._load_s = trio.current_time() - start_s

    async def run(self) -> None:
        """Serve until the inbox closes, then unload.

        Raises:
          RestartBudgetSpentError: too many of its threads hang to start another.
        """
        if self._device is None:
            await self._load_again()
        assert self._device is not None
        assert self._model is not None
        model = self._model
        if isinstance(model, GeneratesTokens):
            engine = LlmEngine(
                index=self.index,
                name=self.place.name,
                inbox=self._inbox,
                outbox=self._outbox,
                device=self._device,
                model=model,
                completion=self._completion,
                run_in_thread=self._making.text_in_thread,
                hang_s=self._making.hang_s,
                waited=self._waited,
            )
            await engine.run()
        else:
            self._instance = instance = Instance(
                index=self.index,
                name=self.place.name,
                inbox=self._inbox,
                outbox=self._outbox,
                device=self._device,
                model=model,
                completion=self._completion,
                decoupled=self._making.decoupled,
                hang_s=self._making.hang_s,
                waited=self._waited,
            )
            await instance.run()
        await self.unload()

    async def _load_again(self) -> None:
        self._hanging = [device for device in self._hanging if device.hangs]
        if len(self._hanging) >= HANGING_MAX:
            raise RestartBudgetSpentError(
                f"model instance '{self.place.name}' is given up: {len(self._hanging)} of its "
                "threads hang"
            )
        hang_s = self._making.hang_s
        if hang_s < inf:
            hang_s = max(hang_s, LOAD_AGAIN_FACTOR * self._load_s)
        await self._load_within(min(hang_s, self._making.load_max_s))

    async def crashed(self) -> None:
        """Take the instance out of service."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the batcher ended
            await self._outbox.send(InstanceGone(self.index))
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
        if device.hangs:
            if model is not None and isinstance(model, CanBeKilled):
                model.kill()
            self._hanging.append(device)
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


def _load(
    model: ModelInstance, name: str, warm_up: Callable[[ModelInstance], None]
) -> RequestError | None:
    """Load on the device's thread; whatever a model raises becomes the reason of its version."""
    try:
        model.load()
        warm_up(model)
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
