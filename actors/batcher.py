"""The batcher actor: one per model version. Inbox `SchedulerMessage`, outboxes `Execute`.

It hears of requests, cancellations and its instances over one channel, so that what happened
first is seen first, and hands each batch to an idle instance.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, TypeAlias, assert_never, final

import trio

from ._batch_explanation import BatchLog
from ._batch_policy import BatchPolicy
from ._completion import STOPPING, Completion, timed_out
from ._instance_permits import InstancePermits
from ._overload_policy import OverloadState
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
from .overload import Overload

Inbox: TypeAlias = trio.MemoryReceiveChannel[SchedulerMessage]
Outbox: TypeAlias = trio.MemorySendChannel[Execute]

INBOX_CAPACITY = 8192
"""The batcher empties its inbox in each turn of the event loop, so this bounds the requests and
cancellations that a model version gets in one turn. More of them are refused."""

OUTBOX_CAPACITY = 1
"""An instance gets its next batch only after it said that it is idle."""

_logger = logging.getLogger(__name__)


@final
class Batcher:
    """Turns the requests of one model version into batches for its instances.

    Lifetime: owns the inbox and the outboxes. After `Stop` it drains its queue, closes its
    channels and returns; a cancellation ends the drain. However it ends, every request it still
    holds is answered.

    Args:
      inbox: Where everything comes from.
      outboxes: One an instance.
      policy: Decides what leaves.
      completion: Ends what does not.
      permits: Says which instances may execute; None lets all of them.
      overload: What is admitted on the whole server; None admits everything.

    Attributes:
      explains: Whether decisions are remembered.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        outboxes: Sequence[Outbox],
        policy: BatchPolicy,
        completion: Completion,
        permits: InstancePermits | None = None,
        overload: Overload | None = None,
    ) -> None:
        self._inbox = inbox
        self._outboxes = dict(enumerate(outboxes))
        self._policy = policy
        self._completion = completion
        self._permits = permits
        self._lacks_permit = False
        self._overload = overload
        self._log = BatchLog()
        self.explains = True
        self._idle: deque[int] = deque()
        self._busy: set[int] = set()
        self._stopping = False
        self._handled: SchedulerMessage | None = None

    def __repr__(self) -> str:
        return f"<Batcher {len(self._policy)} queued, idle {list(self._idle)}, busy {self._busy}>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until told to stop."""
        task_status.started()
        if self._overload is not None:
            self._overload.join(self, trio.current_time())
        try:
            while not self._stopping or self._policy:
                await self._step()
        finally:
            self.close()

    def close(self) -> None:
        """Answer what is left in the queue and in the inbox, and close all channels; idempotent."""
        now_s = trio.current_time()
        if self._overload is not None:
            self._overload.leave(self)
        self._refuse_queued(now_s)
        message, self._handled = self._handled, None
        try:
            while True:
                self._refuse(message, now_s)
                message = self._inbox.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            pass
        self._inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()

    def explain(self) -> dict[str, Any]:
        """Return the rules in force and the last decisions, as JSON values."""
        rules = self._policy.describe()
        return {
            "scheduler": "dynamic" if rules["batching"] else "default",
            "rules": rules,
            "explains": self.explains,
            "instances": {"idle": len(self._idle), "busy": len(self._busy)},
            "decisions": self._log.describe(self._policy, trio.current_time()),
        }

    def oldest_due_s(self) -> float:
        """Since when a request waits for an instance alone; see `BatchPolicy.oldest_due_s`."""
        return self._policy.oldest_due_s()

    def heed(self, state: OverloadState, now_s: float) -> None:
        """Admit what the state of the server allows, and refuse the rest of what is queued."""
        self.explains = state.optional_work
        for infer, error in self._policy.shed(state.admitted_share):
            self._completion.refuse_pending(infer, error, now_s)

    def _refuse(self, message: SchedulerMessage | None, now_s: float) -> None:
        if isinstance(message, Infer):
            self._completion.refuse_pending(message, STOPPING, now_s)
        elif isinstance(message, Retry):
            for infer in message.infers:
                self._completion.fail(infer, message.error, now_s)

    async def _step(self) -> None:
        """Wait for a message or a deadline, then take all messages and act on all of them."""
        wake_at_s = self._policy.timeout_at_s()
        if self._idle and not self._lacks_permit:
            wake_at_s = min(wake_at_s, self._policy.ripe_at_s())
        message: SchedulerMessage | None = None
        if wake_at_s == inf:
            message = await self._inbox.receive()
        else:
            with trio.move_on_at(wake_at_s):
                message = await self._inbox.receive()
        now_s = trio.current_time()
        if self._overload is not None:
            self._overload.check(now_s)
        if message is not None:
            self._handle_all(message, now_s)
        self._act(now_s)

    def _handle_all(self, message: SchedulerMessage, now_s: float) -> None:
        receive_nowait = self._inbox.receive_nowait
        handled = 0
        try:
            while True:
                self._handled = message  # so that a crash does not lose it
                self._handle(message, now_s)
                self._handled = None
                handled += 1
                message = receive_nowait()
        except trio.WouldBlock:
            pass
        if handled >= INBOX_CAPACITY:  # the inbox was full, so a Cancel may not have fitted
            for infer in self._policy.remove_cancelled():
                self._completion.drop_pending(infer, now_s)

    def _handle(self, message: SchedulerMessage, now_s: float) -> None:
        match message:
            case Infer():
                self._queue(message, now_s)
            case InstanceIdle():
                self._instance_idle(message)
            case InstanceRests(index=index):
                self._instance_rests(index)
            case Cancel(infer=infer):
                if self._policy.remove(infer):
                    self._completion.drop_pending(infer, now_s)
            case InstanceGone(index=index):
                self._instance_gone(index)
            case InstancesChanged():
                self._instances_changed(message)
            case Retry():
                self._retry(message, now_s)
            case Stop():
                self._stopping = True
            case PermitGranted():
                pass  # it is seen when the queue is looked at, in the same turn
            case Reschedule() | Ended() | SlotIdle():
                raise AssertionError(f"not for a batcher: {message!r}")
            case _:
                assert_never(message)

    def _instance_idle(self, message: InstanceIdle) -> None:
        index = message.index
        if index not in self._outboxes:
            self._forget(index)
            return
        self._busy.discard(index)
        self._idle.append(index)
        if self._permits is not None:
            if message.executes:
                self._permits.goes_on(index)
            else:
                self._permits.ended(index)

    def _instance_rests(self, index: int) -> None:
        """Let go of the permit of an instance, unless it has got something else to execute."""
        if self._permits is not None and index in self._idle:
            self._permits.ended(index)

    def _instance_gone(self, index: int) -> None:
        if index not in self._outboxes:
            self._forget(index)
            return
        self._busy.discard(index)
        if index in self._idle:
            self._idle.remove(index)
        if self._permits is not None:
            self._permits.gone(index)

    def _instances_changed(self, change: InstancesChanged) -> None:
        """Take new instances in, and let others end: at once, or after what they execute."""
        for index, (outbox, permit) in change.added.items():
            self._outboxes[index] = outbox
            if self._permits is not None and permit is not None:
                self._permits.add(index, permit)
        for index in change.retired:
            self._outboxes.pop(index).close()
            if index not in self._busy:
                self._forget(index)

    def _forget(self, index: int) -> None:
        """Forget an instance that was retired and executes nothing any more."""
        self._busy.discard(index)
        if index in self._idle:
            self._idle.remove(index)
        if self._permits is not None:
            self._permits.remove(index)

    def _retry(self, retry: Retry, now_s: float) -> None:
        """Let the siblings of a lost instance have its requests; each of them alone, once."""
        siblings = self._outboxes.keys() & {*self._idle, *self._busy} - {retry.index}
        for infer in retry.infers:
            if (retry.begun and not siblings) or infer.request.cancelled:
                self._completion.fail(infer, retry.error, now_s)
            else:
                infer.retried = True
        again = [infer for infer in retry.infers if infer.retried]
        self._completion.requeued(again)
        self._policy.requeue(again)

    def _queue(self, infer: Infer, now_s: float) -> None:
        if infer.request.cancelled:
            self._completion.drop_pending(infer, now_s)
            return
        error = STOPPING if self._stopping else self._policy.add(infer, now_s)
        if error is not None:
            self._completion.refuse_pending(infer, error, now_s)

    def _act(self, now_s: float) -> None:
        """Do what is due: refuse what timed out, hand out what is ripe."""
        policy = self._policy
        for infer in policy.expire(now_s):
            self._completion.expire_pending(infer, timed_out(infer, now_s), now_s)
        splits = policy.shape_splits
        take_s = inf if self._stopping else now_s
        while self._idle:
            index = self._chosen(take_s)
            infers = [] if index is None else policy.take(take_s)
            if index is None or not infers:
                break
            self._idle.remove(index)
            self._busy.add(index)
            if self.explains:
                self._log.record(policy, len(infers), index, now_s)
            self._completion.dispatched(infers)
            self._outboxes[index].send_nowait(Execute(infers, now_s))
        if policy.shape_splits and not splits:
            _logger.info(
                "model %r: requests of unequal shapes do not share a batch; "
                "GET /v2/models/%s/batching says which",
                policy.model_name,
                policy.model_name,
            )
        if self._stopping and not (self._idle or self._busy):
            self._refuse_queued(now_s)  # no instance is left to work on it

    def _chosen(self, take_s: float) -> int | None:
        """Return the idle instance that gets the next batch, if there is one and it may."""
        if self._permits is None:
            return self._idle[0]
        self._lacks_permit = False
        if not self._policy.is_ripe(take_s):
            self._permits.let_go(self._idle)
            return None
        index = self._permits.choose(self._idle)
        self._lacks_permit = index is None
        if index is not None:
            self._permits.executes(index)
        return index

    def _refuse_queued(self, now_s: float) -> None:
        for infer in self._policy.remove_all():
            self._completion.refuse_pending(infer, STOPPING, now_s)
