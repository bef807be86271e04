"""Which scheduler a model version gets, and what all of them have in common.

Part of the composition of `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import trio

from ..backends.base import Backend
from ..backends.batch_strategy import BatchStrategy
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.sequence_tensors import SequenceTensors
from ._batch_policy import batch_policy
from ._completion import Completion
from ._ensemble_validation import make_graph
from ._instance_permits import InstancePermits
from ._model_services import ModelServices
from ._sequence_config import sequence_policy
from .batcher import Batcher
from .ensemble import Ensemble
from .messages import Execute, SchedulerMessage
from .sequence_batcher import SequenceBatcher

Inbox: TypeAlias = trio.MemoryReceiveChannel[SchedulerMessage]
Outbox: TypeAlias = trio.MemorySendChannel[Execute]


class Scheduler(Protocol):
    """Takes the requests of one model version to its instances."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until told to stop, then finish what is there."""

    def close(self) -> None:
        """Answer everything it still holds and close its channels; idempotent."""

    def explain(self) -> dict[str, Any] | None:
        """Return how it forms batches, as JSON values; None if it forms none."""


class Scheduled(Protocol):
    """What a scheduler is made from; see `ModelDefinition`."""

    @property
    def config(self) -> ModelConfig:
        """The final configuration."""

    @property
    def backend(self) -> Backend | None:
        """What executes it; None for an ensemble."""

    @property
    def initial_files(self) -> Mapping[str, bytes]:
        """The files of initial states."""

    @property
    def strategy(self) -> BatchStrategy | None:
        """Its own say in what joins a batch."""

    @property
    def services(self) -> ModelServices:
        """What it shares with other models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a scheduler of one model version works with.

    Attributes:
      inbox: What it receives; owned by the scheduler.
      to_inbox: The other end of its inbox.
      outboxes: One an instance that is not passive; owned by the scheduler.
      completion: How requests end.
      permits: Which instances may execute; None lets all of them.
      hears_ends: Whether the model of an instance wants to hear of the ends of sequences.
    """

    inbox: Inbox
    to_inbox: trio.MemorySendChannel[SchedulerMessage]
    outboxes: Sequence[Outbox]
    completion: Completion
    permits: InstancePermits | None
    hears_ends: Callable[[int], bool]


def preserves_ordering(config: ModelConfig) -> bool:
    """Return whether responses leave in the order in which their requests were dispatched."""
    if config.dynamic_batching is not None:
        return config.dynamic_batching.preserve_ordering
    sequence = config.sequence_batching
    return (
        sequence is not None and sequence.oldest is not None and (sequence.oldest.preserve_ordering)
    )


def make_scheduler(definition: Scheduled, spec: ModelSpec, surroundings: Surroundings) -> Scheduler:
    """Return the scheduler that the configuration asks for.

    Raises:
      RequestError: the models of an ensemble do not fit together.
    """
    config = definition.config
    if config.ensemble_scheduling is not None:
        find = definition.services.find
        return Ensemble(
            inbox=surroundings.inbox,
            completion=surroundings.completion,
            graph=make_graph(config, spec, lambda name, version: find(name, version).spec),
            spec=spec,
            find=definition.services.find_for_step or find,
            budget=definition.services.byte_budget,
        )
    if config.sequence_batching is not None:
        return SequenceBatcher(
            inbox=surroundings.inbox,
            to_inbox=surroundings.to_inbox,
            outboxes=surroundings.outboxes,
            policy=sequence_policy(
                config,
                spec,
                tensors=SequenceTensors(config, definition.initial_files),
                instances=len(surroundings.outboxes),
            ),
            completion=surroundings.completion,
            permits=surroundings.permits,
            hears_ends=surroundings.hears_ends,
        )
    assert definition.backend is not None, "only an ensemble has none"
    return Batcher(
        inbox=surroundings.inbox,
        outboxes=surroundings.outboxes,
        policy=batch_policy(
            config,
            spec,
            stacks_inputs=definition.backend.stacks_inputs,
            strategy=definition.strategy,
        ),
        completion=surroundings.completion,
        permits=surroundings.permits,
        overload=definition.services.overload,
    )
