"""Ends what is done for an execution once nobody waits for any of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar, final

from ..backends.base import InstancePlace
from .messages import Execute, Infer
from .reply import Reply

PartT = TypeVar("PartT")


class Executor(Protocol):
    """An instance, as those see it who watch what it executes."""

    @property
    def place(self) -> InstancePlace:
        """Which instance it is."""

    @property
    def executing(self) -> Execute | None:
        """What it executes now."""


@final
class ExecutionWatch(Generic[PartT]):
    """Hears of each client that leaves, and of the last one tells the parts of an execution.

    It hangs in the `on_close` of the replies, from its making until `remove` returns True.

    Args:
      infers: The requests of the execution.
      cancel: Ends a part of it; called on the event loop, and must neither raise nor wait.

    Attributes:
      parts: What there is to end.
    """

    def __init__(self, infers: Sequence[Infer], cancel: Callable[[PartT], None]) -> None:
        self.parts: dict[PartT, None] = {}
        self._infers = infers
        self._cancel = cancel
        self._hooked: list[tuple[Reply, Callable[[], None], Callable[[], None] | None]] = []
        for infer in infers:
            reply = infer.reply
            if not reply.done:
                before = reply.on_close
                reply.on_close = hook = partial(self._left, before)
                self._hooked.append((reply, hook, before))

    def add(self, part: PartT) -> None:
        """Take a part; it is cancelled at once if nobody waits any more."""
        self.parts[part] = None
        self._cancel_if_left()

    def remove(self, part: PartT) -> bool:
        """Let go of a part that has ended; True if there is none left."""
        self.parts.pop(part, None)
        if self.parts:
            return False
        for reply, hook, before in self._hooked:
            if reply.on_close is hook:
                reply.on_close = before
        return True

    def _left(self, before: Callable[[], None] | None) -> None:
        if before is not None:
            before()
        self._cancel_if_left()

    def _cancel_if_left(self) -> None:
        infers = self._infers
        if any(infer.request.cancelled for infer in infers) and all(
            infer.reply.done for infer in infers
        ):
            for part in list(self.parts):
                self._cancel(part)
