"""Every message between actors. What an actor receives is listed at the top of its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import TypeAlias

import trio

from ..backends.base import SequenceEnd
from ..protocol.errors import RequestError
from ..protocol.requests import InferRequest, InferResponse
from ._instance_permits import Permit
from .reply import Reply


class Infer:
    """One validated request, on its way to a scheduler and on to an instance.

    Attributes:
      request: The request; its rows are counted by `request.batch_size`.
      reply: Where exactly one final response goes.
      arrived_s: When the server had received the request, in clock seconds.
      queued_s: When its scheduler took it, in clock seconds; set by the scheduler.
      expires_s: When it has waited too long for its execution, in clock seconds; set by a scheduler
        that refuses it then.
      level: Its priority level; set by a scheduler that has some.
      on_end: Called with its final response before that is sent, on the event loop; set by a
        scheduler that has to know. It must neither raise nor wait.
      on_turn: Called once when its responses are no longer held back for those of earlier requests;
        set by whoever executes it, and as `on_end`.
      retried: Whether it was executed before, by an instance that did not survive.
      response_count: Responses that a decoupled model has given to it, its end included.
      responded_s: When it had the last of them, in clock seconds.
    """

    __slots__ = (
        "arrived_s",
        "expires_s",
        "level",
        "on_end",
        "on_turn",
        "queued_s",
        "reply",
        "request",
        "responded_s",
        "response_count",
        "retried",
    )

    def __init__(self, request: InferRequest, reply: Reply, arrived_s: float) -> None:
        self.request = request
        self.reply = reply
        self.arrived_s = arrived_s
        self.queued_s = arrived_s
        self.expires_s = inf
        self.level = 1
        self.on_end: Callable[[InferResponse], None] | None = None
        self.on_turn: Callable[[], None] | None = None
        self.retried = False
        self.response_count = 0
        self.responded_s = 0.0


class Cancel:
    """Nobody waits for this request any more; sent by `Reply.on_close`."""

    __slots__ = ("infer",)

    def __init__(self, infer: Infer) -> None:
        self.infer = infer


class InstanceIdle:
    """An instance can take a batch: after its start and after each execution.

    Attributes:
      index: The instance.
      executes: Whether it can although it executes something.
    """

    __slots__ = ("executes", "index")

    def __init__(self, index: int, *, executes: bool = False) -> None:
        self.index = index
        self.executes = executes


class InstanceRests:
    """An instance that was idle while it executed something has come to the end of that."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class InstanceGone:
    """An instance died and will not take batches until it says `InstanceIdle` again."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class InstancesChanged:
    """There are other instances than before, none of which is idle or busy yet.

    Attributes:
      added: Index -> where its batches go, and its permit if there is a rate limiter.
      retired: Indices of instances that get no more batches; one that executes ends after that.
    """

    __slots__ = ("added", "retired")

    def __init__(
        self,
        added: Mapping[int, tuple[trio.MemorySendChannel[Execute], Permit | None]],
        retired: Sequence[int],
    ) -> None:
        self.added = added
        self.retired = retired


class Execute:
    """One batch for an instance.

    Attributes:
      infers: None cancelled when sent; rows in this order. Empty if it only tells of `ends`.
      dispatched_s: When the batch left the queue, in clock seconds.
      fillers: Position in the batch -> request that nobody waits for, where each position means
        a slot; `infers` take the other positions, in order. One that is cancelled by now still
        holds its position.
      ends: Sequences that are over; told to the model before it executes.
    """

    __slots__ = ("dispatched_s", "ends", "fillers", "infers")

    def __init__(
        self,
        infers: list[Infer],
        dispatched_s: float,
        *,
        fillers: Mapping[int, InferRequest] | None = None,
        ends: Sequence[SequenceEnd] = (),
    ) -> None:
        self.infers = infers
        self.dispatched_s = dispatched_s
        self.fillers = fillers
        self.ends = ends

    def rows(self) -> list[tuple[InferRequest, Infer | None]]:
        """Return the batch in order: each request, and what waits for its answer."""
        rows: list[tuple[InferRequest, Infer | None]] = [
            (infer.request, infer) for infer in self.infers
        ]
        for position, filler in sorted((self.fillers or {}).items(), key=itemgetter(0)):
            rows.insert(position, (filler, None))
        return rows


class Retry:
    """Requests that an instance did not survive; for its siblings, if it has any.

    Those that it never began can as well wait for its restart.

    Attributes:
      index: The instance, which is gone.
      infers: The requests, none of them answered or retried before.
      error: What to answer if nobody can take them.
      begun: Whether the instance may have begun to execute them.
    """

    __slots__ = ("begun", "error", "index", "infers")

    def __init__(
        self, index: int, infers: list[Infer], error: RequestError, *, begun: bool = True
    ) -> None:
        self.index = index
        self.infers = infers
        self.error = error
        self.begun = begun


class Reschedule:
    """A request of an iterative sequence that wants to be executed again; not answered yet."""

    __slots__ = ("infer",)

    def __init__(self, infer: Infer) -> None:
        self.infer = infer


class Ended:
    """A request of a sequence has had its final response."""

    __slots__ = ("infer",)

    def __init__(self, infer: Infer) -> None:
        self.infer = infer


class SlotIdle:
    """The sequence in a slot has had no request for too long.

    Attributes:
      slot: The slot's number.
      generation: Which of the slot's sequences is meant.
    """

    __slots__ = ("generation", "slot")

    def __init__(self, slot: int, generation: int) -> None:
        self.slot = slot
        self.generation = generation


class PermitGranted:
    """The rate limiter lets an instance execute one batch."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Stop:
    """Take no more requests; finish those in the queue, without waiting for company."""

    __slots__ = ()


SchedulerMessage: TypeAlias = (
    Infer
    | Cancel
    | InstanceIdle
    | InstanceRests
    | InstanceGone
    | InstancesChanged
    | Retry
    | Reschedule
    | Ended
    | SlotIdle
    | PermitGranted
    | Stop
)
