"""Every message between actors. What an actor receives is listed at the top of its file."""

from __future__ import annotations

from typing import TypeAlias

from ..protocol.requests import InferRequest
from .reply import Reply


class Infer:
    """One validated request, on its way to a scheduler and on to an instance.

    Attributes:
      request: The request; its rows are counted by `request.batch_size`.
      reply: Where exactly one final response goes.
      arrived_s: When the server had received the request, in clock seconds.
      queued_s: When its scheduler took it, in clock seconds; set by the scheduler.
    """

    __slots__ = ("arrived_s", "queued_s", "reply", "request")

    def __init__(self, request: InferRequest, reply: Reply, arrived_s: float) -> None:
        self.request = request
        self.reply = reply
        self.arrived_s = arrived_s
        self.queued_s = arrived_s


class Cancel:
    """Nobody waits for this request any more; sent by `Reply.on_close`."""

    __slots__ = ("infer",)

    def __init__(self, infer: Infer) -> None:
        self.infer = infer


class InstanceIdle:
    """An instance can take a batch: after its start and after each execution."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class InstanceGone:
    """An instance died and will not take batches until it says `InstanceIdle` again."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Execute:
    """One batch for an instance.

    Attributes:
      infers: At least one, none cancelled when sent; rows in this order.
      dispatched_s: When the batch left the queue, in clock seconds.
    """

    __slots__ = ("dispatched_s", "infers")

    def __init__(self, infers: list[Infer], dispatched_s: float) -> None:
        self.infers = infers
        self.dispatched_s = dispatched_s


class Stop:
    """Take no more requests; finish those in the queue, without waiting for company."""

    __slots__ = ()


SchedulerMessage: TypeAlias = Infer | Cancel | InstanceIdle | InstanceGone | Stop
