"""One batch that could form, while a decision walks through the queue.  Pure."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from enum import Enum
from typing import Protocol, final

from ..protocol.requests import InferRequest
from .messages import Infer

_logger = logging.getLogger(__name__)


class BatchReason(Enum):
    """Why a batch left, or why the next request did not leave with it; what clients are shown."""

    FULL = "full"
    PREFERRED = "preferred size"
    DELAY = "delay over"
    NO_DELAY = "nothing to wait for"
    DRAINED = "drained"
    SHAPE = "unequal shapes"
    STRATEGY = "batch strategy"
    ALONE = "no batching"


class BatchStrategy(Protocol):
    """A model's own say in what joins a batch; its calls take microseconds and may raise."""

    def begin(self) -> object:
        """Return what the strategy knows a new batch by."""

    def include(self, batch: object, request: InferRequest) -> bool:
        """Whether a request may join; what it says of the first request of a batch is ignored."""

    def end(self, batch: object) -> None:
        """Let go of a batch, which has left or begins anew in the next decision."""


@final
class Candidate:
    """Requests that may leave together.

    Attributes:
      key: What they have in common.
      place: Index of the queue where the first of them stands; lower ones go first.
      infers: In order.
      rows: Rows of them.
      best: How many of them make the best preferred size; 0 is none.
      best_rows: Rows of those.
      oldest_s: When the one was queued that waits longest.
      closed: Why nothing can join them any more, or None.
    """

    __slots__ = ("best", "best_rows", "closed", "infers", "key", "oldest_s", "place", "rows")

    def __init__(self, infer: Infer, rows: int, key: Hashable, place: int) -> None:
        self.key = key
        self.place = place
        self.infers = [infer]
        self.rows = rows
        self.best = 0
        self.best_rows = 0
        self.oldest_s = infer.queued_s
        self.closed: BatchReason | None = None


@final
class StrategyGuard:
    """Asks a model's own strategy, and survives its faults.

    A fault counts as a refusal; the first, second, fourth, eighth, ... one is logged.

    Args:
      model_name: Named in the log.
      strategy: The strategy.
    """

    def __init__(self, model_name: str, strategy: BatchStrategy) -> None:
        self._model_name = model_name
        self._strategy = strategy
        self._batches: dict[Candidate, object] = {}
        self.fault_count = 0

    def __repr__(self) -> str:
        return type(self._strategy).__name__

    def begin(self, candidate: Candidate, request: InferRequest) -> None:
        """Begin a batch with its first request, which is in it whatever the strategy says."""
        try:
            batch = self._batches[candidate] = self._strategy.begin()
            self._strategy.include(batch, request)
        except Exception as fault:  # whatever a plug-in may raise  # noqa: BLE001
            self._count(fault)

    def include(self, candidate: Candidate, request: InferRequest) -> bool:
        """Whether the strategy takes one more request."""
        if candidate not in self._batches:
            return False  # it failed to begin
        try:
            return bool(self._strategy.include(self._batches[candidate], request))
        except Exception as fault:  # whatever a plug-in may raise  # noqa: BLE001
            self._count(fault)
            return False

    def end(self) -> None:
        """End every batch that was begun."""
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            try:
                self._strategy.end(batch)
            except Exception as fault:  # whatever a plug-in may raise  # noqa: BLE001
                self._count(fault)

    def _count(self, fault: Exception) -> None:
        self.fault_count += 1
        if self.fault_count & (self.fault_count - 1) == 0:
            _logger.error(
                "the batch strategy %r of model '%s' failed (fault %d)",
                self,
                self._model_name,
                self.fault_count,
                exc_info=fault,
            )
