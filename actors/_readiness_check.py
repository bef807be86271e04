"""Asks one model whether it is ready: once at a time, and not for ever."""

from __future__ import annotations

import logging
from functools import partial
from typing import final

import outcome
import trio

from ..backends.base import SaysReady
from ._device_link import Device

READY_ANSWER_MAX_S = 5.0
"""How long a model may take to say that it is ready, in seconds; as Triton's Python backend."""

_logger = logging.getLogger(__name__)


@final
class ReadinessCheck:
    """The question to one instance. Who asks while it is being answered shares the answer.

    Args:
      name: The instance, for the log.

    Attributes:
      last: What was said last; True before the first answer.
    """

    def __init__(self, name: str) -> None:
        self.last = True
        self._name = name
        self._device: Device | None = None
        self._answered = trio.Event()

    async def ask(self, device: Device, model: SaysReady) -> bool:
        """Return what the model says; False if it says nothing in time, or raises."""
        if self._device is not device:  # else its answer to the one before is still to come
            self._device = device
            self._answered = trio.Event()
            device.ask(model.is_ready, partial(self._take, device))
        with trio.move_on_after(READY_ANSWER_MAX_S) as patience:
            await self._answered.wait()
        return self.last and not patience.cancelled_caught

    def _take(self, device: Device, answer: outcome.Outcome[bool]) -> None:
        if self._device is not device:
            return  # it was replaced while it was asked
        self._device = None
        if isinstance(answer, outcome.Error):
            self.last = False
            _logger.warning("instance %r is not ready: %s", self._name, answer.error)
        else:
            self.last = answer.unwrap()
        self._answered.set()
