"""Small helpers for tests of a queue: make one, fill it, and read what leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.builders import infer
from tritrio.actors._batch_policy import BatchPolicy, batch_policy
from tritrio.actors.messages import Infer
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest


def batching_queue(rows_max: int = 8, **attributes: Any) -> BatchPolicy:
    """A queue whose requests may share a batch."""
    return BatchPolicy("model", rows_max=rows_max, batching=True, **attributes)


def configured_queue(config: pb.ModelConfig, **attributes: Any) -> BatchPolicy:
    """The queue that a configuration makes."""
    return batch_policy(config, ModelSpec.from_config(config, 1), **attributes)


def add(queue: BatchPolicy, number: int, *, at_s: float = 0.0, **attributes: Any) -> Infer:
    """Queue one request, which the queue has to take."""
    message = infer(number, **attributes)
    assert queue.add(message, at_s) is None
    return message


def ids(infers: list[Infer]) -> list[int]:
    """The numbers of requests."""
    return [int(message.request.id) for message in infers]


class ListStrategy:
    """A batch strategy that takes requests as long as `takes` says so, and notes its calls.

    Attributes:
      takes: Called with the numbers of the batch and the number of the next request; may raise.
      open: Batches that were begun and have not ended.
      offered: Numbers in the order in which they were offered.
    """

    def __init__(self, takes: Callable[[list[int], int], bool]) -> None:
        self.takes = takes
        self.open: list[list[int]] = []
        self.offered: list[int] = []

    def begin(self) -> object:
        batch: list[int] = []
        self.open.append(batch)
        return batch

    def include(self, batch: object, request: InferRequest) -> bool:
        assert isinstance(batch, list)
        assert any(batch is other for other in self.open)
        number = int(request.id)
        self.offered.append(number)
        taken = self.takes(batch, number)
        batch.append(number)
        return taken

    def end(self, batch: object) -> None:
        self.open = [other for other in self.open if other is not batch]
