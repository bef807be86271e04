"""The slot actor: one for each slot of a sequence batcher. It sends `SlotIdle` to the batcher.

It sleeps until the sequence in its slot has been idle for too long; nobody scans slots.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TypeAlias, final

import trio

from .messages import SchedulerMessage, SlotIdle

Outbox: TypeAlias = trio.MemorySendChannel[SchedulerMessage]


@final
class SequenceSlot:
    """The task of one slot, started when a sequence in it is idle for the first time.

    Args:
      number: The slot's number.
      outbox: Where the batcher receives; not owned.
    """

    def __init__(self, number: int, outbox: Outbox) -> None:
        self._number = number
        self._outbox = outbox
        self._generation = 0
        self._idle_at_s = inf
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<SequenceSlot {self._number}: idle at {self._idle_at_s}>"

    def watch(self, generation: int, idle_at_s: float) -> None:
        """Report the sequence of this generation at that time, in clock seconds; `inf`: never."""
        self._generation = generation
        self._idle_at_s = self._scope.deadline = idle_at_s

    async def run(self) -> None:
        """Report each sequence that is idle for too long, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._idle_at_s) as self._scope:
                await trio.sleep_forever()
            if self._idle_at_s > trio.current_time():
                continue  # it was moved in the very turn in which it passed
            self._idle_at_s = inf
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # it has ended
                await self._outbox.send(SlotIdle(self._number, self._generation))
