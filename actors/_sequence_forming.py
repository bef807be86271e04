"""What forms the batches of one instance, and what may share a batch.  Pure: no trio, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, final

from ..protocol.model_spec import ModelSpec
from ..protocol.requests import InferRequest
from ._sequence_slots import Slot


@final
@dataclass(frozen=True, slots=True)
class Formed:
    """A batch of one instance.

    Attributes:
      slots: Whose requests are in it; rows in this order. Not empty.
      fillers: Row -> request that nobody waits for; `slots` take the other rows.
    """

    slots: list[Slot]
    fillers: Mapping[int, InferRequest] = field(default_factory=dict)


class Forming(Protocol):
    """Forms the batches of one instance from the first requests of its sequences."""

    def offer(self, slot: Slot, now_s: float) -> None:
        """Let the first request of a slot's sequence be executed; its inputs are complete."""

    def withdraw(self, slot: Slot) -> None:
        """Undo `offer`; nothing happens if the slot is not offered."""

    def take(self, now_s: float) -> Formed | None:
        """Remove and return the batch that is ripe; `inf` makes everything ripe."""

    def is_ripe(self, now_s: float) -> bool:
        """Whether `take` would return a batch."""

    def ripe_at_s(self) -> float:
        """When a batch ripens by waiting, after `take` found none; `inf` if none can."""


@final
class StackingRule:
    """Which requests can be stacked: those with equal keys.

    Attributes:
      shape_inputs: Inputs, states included, whose shapes must be equal.
      optional_inputs: Inputs that every request of a batch must have, or none.
    """

    def __init__(self, spec: ModelSpec) -> None:
        states = [name.input_name for name in spec.states.values() if -1 in name.dims]
        self.shape_inputs = tuple(
            [
                name
                for name, tensor in spec.inputs.items()
                if -1 in tensor.dims and not tensor.allow_ragged_batch
            ]
            + states
        )
        self.optional_inputs = tuple(
            [name for name, tensor in spec.inputs.items() if tensor.optional]
        )

    def key_of(self, request: InferRequest) -> Hashable:
        """Return the key of a request whose inputs are complete."""
        inputs = request.inputs
        shapes = [inputs[name].shape if name in inputs else None for name in self.shape_inputs]
        return (*shapes, *[name in inputs for name in self.optional_inputs])
