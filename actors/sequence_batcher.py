"""The sequence batcher actor: one per version of a model with `sequence_batching`.

Inbox `SchedulerMessage`, outboxes `Execute`. As the batcher it hears of everything over one
channel; only the end of a request that was executed reaches it by a call, because the state of its
sequence has to be taken out of the response before that is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any, TypeAlias, assert_never, final

import trio

from ..backends.base import SequenceEnd
from ..protocol.requests import InferResponse
from ._completion import STOPPING, Completion
from ._instance_permits import InstancePermits
from ._sequence_actions import SequenceSnapshot, sequence_lost
from ._sequence_policy import SequencePolicy
from .messages import (
    Cancel,
    Ended,
    Execute,
    Infer,
    InstanceGone,
    InstanceIdle,
    InstanceRests,
    InstancesChanged,
    PermitGranted,
    Reschedule,
    Retry,
    SchedulerMessage,
    SlotIdle,
    Stop,
)
from .sequence_slot import SequenceSlot

Inbox: TypeAlias = trio.MemoryReceiveChannel[SchedulerMessage]
ToInbox: TypeAlias = trio.MemorySendChannel[SchedulerMessage]
Outbox: TypeAlias = trio.MemorySendChannel[Execute]

_logger = logging.getLogger(__name__)


@final
class SequenceBatcher:
    """Takes the requests of sequences to the instances that hold their sequences.

    Lifetime: owns the inbox and the outboxes, and a task for each slot. After `Stop` it goes on
    until no request waits or executes, ends the sequences that are idle, closes its channels and
    returns; a cancellation ends the drain. However it ends, every request that waits is answered.

    Args:
      inbox: What it receives.
      to_inbox: The other end of its inbox; not owned.
      outboxes: One for each instance.
      policy: The sequences.
      completion: How requests end.
      hears_ends: Whether the model of an idle instance wants to hear of the ends of sequences.
      permits: Says which instances may execute; None lets all of them.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        to_inbox: ToInbox,
        outboxes: Sequence[Outbox],
        policy: SequencePolicy,
        completion: Completion,
        hears_ends: Callable[[int], bool],
        permits: InstancePermits | None = None,
    ) -> None:
        self._inbox = inbox
        self._inbox_capacity = inbox.statistics().max_buffer_size
        self._to_inbox = to_inbox
        self._outboxes = outboxes
        self._policy = policy
        self._completion = completion
        self._hears_ends = hears_ends
        self._permits = permits
        self._lack_permits: set[int] = set()
        self._idle: set[int] = set()
        self._busy: set[int] = set()
        self._stopping = False
        self._handled: SchedulerMessage | None = None
        self._slots: dict[int, SequenceSlot] = {}
        self._restarts = 0

    def __repr__(self) -> str:
        return f"<SequenceBatcher {self._policy!r}, idle {self._idle}, busy {self._busy}>"

    def snapshot(self) -> SequenceSnapshot:
        """Return how full it is."""
        return self._policy.snapshot()

    def explain(self) -> dict[str, Any]:
        """Return how full it is, as JSON values."""
        return {"scheduler": "sequence", "sequences": asdict(self.snapshot())}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until told to stop."""
        async with trio.open_nursery() as slots:
            task_status.started()
            try:
                while not self._stopping or self._policy or self._busy:
                    await self._step(slots)
                self._unload()
            finally:
                self.close()
                slots.cancel_scope.cancel()

    def close(self) -> None:
        """Answer what waits and what is in the inbox, and close all channels; idempotent."""
        now_s = trio.current_time()
        self._policy.refuse_all(STOPPING, now_s)
        self._refuse(now_s)
        if self._handled is not None:
            self._refuse_message(self._handled, now_s)
            self._handled = None
        with suppress(trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            while True:
                self._refuse_message(self._inbox.receive_nowait(), now_s)
        self._inbox.close()
        for outbox in self._outboxes:
            outbox.close()

    def _refuse_message(self, message: SchedulerMessage, now_s: float) -> None:
        """Answer the requests of a message that was not handled."""
        match message:
            case Infer():
                self._completion.refuse_pending(message, STOPPING, now_s)
            case Reschedule(infer=infer):
                self._completion.fail(infer, STOPPING, now_s)
            case Retry(infers=infers):
                for infer in infers:
                    self._completion.fail(infer, STOPPING, now_s)

    def _unload(self) -> None:
        """Tell the instances, all of which are idle, of the sequences that nobody ended."""
        now_s = trio.current_time()
        self._policy.end_idle(now_s)
        for index in sorted(self._idle):
            self._tell_ends(index, now_s)

    async def _step(self, slots: trio.Nursery) -> None:
        """Wait for a message or a deadline, then take all messages and act on all of them."""
        wake_at_s = self._policy.timeout_at_s()
        for index in self._idle - self._lack_permits:
            wake_at_s = min(wake_at_s, self._policy.ripe_at_s(index))
        message: SchedulerMessage | None = None
        if wake_at_s == inf:
            message = await self._inbox.receive()
        else:
            with trio.move_on_at(wake_at_s):
                message = await self._inbox.receive()
        now_s = trio.current_time()
        if message is not None:
            self._handle_all(message, now_s)
        self._act(now_s)
        for slot in self._policy.take_moved():
            task = self._slots.get(slot.number)
            if task is None and slot.idle_at_s < inf:
                task = self._slots[slot.number] = SequenceSlot(slot.number, self._to_inbox)
                slots.start_soon(task.run)
            if task is not None:
                generation = 0 if slot.sequence is None else slot.sequence.generation
                task.watch(generation, slot.idle_at_s)

    def _handle_all(self, message: SchedulerMessage, now_s: float) -> None:
        handled = 0
        with suppress(trio.WouldBlock):
            while True:
                self._handled = message  # so that a crash does not lose it
                self._handle(message, now_s)
                self._handled = None
                handled += 1
                message = self._inbox.receive_nowait()
        if handled >= self._inbox_capacity:  # the inbox was full, so a Cancel may not have fitted
            self._policy.cancel_all(now_s)

    def _handle(self, message: SchedulerMessage, now_s: float) -> None:
        policy = self._policy
        match message:
            case Infer():
                self._queue(message, now_s)
            case InstanceIdle(index=index):
                self._busy.discard(index)
                self._idle.add(index)
                policy.restore(index, now_s)
                if self._permits is not None:
                    self._permits.ended(index)
            case Cancel(infer=infer):
                policy.cancel(infer, now_s)
            case InstanceGone(index=index):
                self._busy.discard(index)
                self._idle.discard(index)
                policy.lose(index, now_s)
                if self._permits is not None:
                    self._permits.gone(index)
            case Retry(infers=infers):
                self._fail_lost(infers, now_s)
            case Reschedule(infer=infer):
                policy.reschedule(infer, now_s)
            case SlotIdle(slot=number, generation=generation):
                policy.idle(number, generation, now_s)
            case Stop():
                self._stopping = True
                policy.stop()
            case Ended() | PermitGranted() | InstancesChanged() | InstanceRests():
                # Seen when something is done about it, in the same turn; the last never comes,
                # since a model with sequences is loaded anew instead.
                pass
            case _:
                assert_never(message)

    def _queue(self, infer: Infer, now_s: float) -> None:
        request = infer.request
        restarts = request.sequence_start and self._policy.is_unfinished(request)
        error = self._policy.add(infer, now_s)
        if error is not None:
            self._completion.refuse_pending(infer, error, now_s)
            return
        if restarts:
            self._restarts += 1
            if self._restarts & (self._restarts - 1) == 0:  # ever more rarely
                _logger.warning(
                    "sequence %r of model '%s' starts again before its end (such starts: %d)",
                    request.sequence_id,
                    request.model_name,
                    self._restarts,
                )

    def _fail_lost(self, infers: list[Infer], now_s: float) -> None:
        """End requests that an instance did not survive; none other has their state."""
        for infer in infers:
            request = infer.request
            error = sequence_lost(request.sequence_id, request.model_name)
            self._completion.fail(infer, error, now_s)

    def _act(self, now_s: float) -> None:
        """Do what is due: refuse what is over, hand out what is ripe."""
        self._policy.expire(now_s)
        if self._stopping:
            self._policy.make_room(now_s)
        take_s = inf if self._stopping else now_s
        for index in self._permitted(take_s):
            if not self._dispatch(index, take_s, now_s):
                self._tell_ends(index, now_s)
        if self._stopping and not (self._idle or self._busy):
            self._policy.refuse_all(STOPPING, now_s)  # no instance is left to work on it
        self._refuse(now_s)

    def _permitted(self, take_s: float) -> list[int]:
        """Return the idle instances that may execute, or have nothing to."""
        permits = self._permits
        if permits is None:
            return sorted(self._idle)
        ripe = {index for index in self._idle if self._policy.is_ripe(index, take_s)}
        nothing = sorted(self._idle - ripe)
        permits.let_go(nothing)
        permitted: list[int] = []
        while (index := permits.choose(sorted(ripe))) is not None:
            permits.executes(index)
            ripe.remove(index)
            permitted.append(index)
        self._lack_permits = ripe
        return permitted + nothing

    def _dispatch(self, index: int, take_s: float, now_s: float) -> bool:
        """Hand what is ripe to an idle instance, and what it may want to hear; False if nothing."""
        dispatch = self._policy.take(index, take_s)
        if dispatch is None:
            return False
        self._completion.dispatched(dispatch.fresh)
        for infer in dispatch.infers:
            infer.on_end = partial(self._on_end, infer)
        ends = self._ends_for(index)
        self._send(index, Execute(dispatch.infers, now_s, fillers=dispatch.fillers, ends=ends))
        return True

    def _tell_ends(self, index: int, now_s: float) -> None:
        """Let an idle instance know of the sequences that are over, if it wants to."""
        ends = self._ends_for(index)
        if ends:
            self._send(index, Execute([], now_s, ends=ends))

    def _ends_for(self, index: int) -> list[SequenceEnd]:
        ends = self._policy.take_ends(index)
        return ends if ends and self._hears_ends(index) else []

    def _send(self, index: int, execute: Execute) -> None:
        self._idle.remove(index)
        self._busy.add(index)
        self._outboxes[index].send_nowait(execute)

    def _on_end(self, infer: Infer, response: InferResponse) -> None:
        self._policy.ended(infer, response, trio.current_time())
        # Wakes the batcher, which may have to act now. A full inbox wakes it as well.
        with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self._to_inbox.send_nowait(Ended(infer))

    def _refuse(self, now_s: float) -> None:
        for refusal in self._policy.take_refusals():
            end = self._completion.fail if refusal.dispatched else self._completion.refuse_pending
            end(refusal.infer, refusal.error, now_s)
