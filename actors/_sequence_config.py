"""The sequences of a model version as its configuration wants them."""

from __future__ import annotations

from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import (
    ModelConfig,
    ModelSequenceBatchingStrategyDirect,
    ModelSequenceBatchingStrategyOldest,
)
from ..protocol.sequence_tensors import SequenceTensors
from ._batch_policy import BatchPolicy
from ._sequence_direct import DirectForming
from ._sequence_forming import Forming, StackingRule
from ._sequence_oldest import OldestForming
from ._sequence_policy import SequencePolicy


def sequence_policy(
    config: ModelConfig, spec: ModelSpec, *, tensors: SequenceTensors, instances: int
) -> SequencePolicy:
    """Return the policy of a model with `sequence_batching`.

    Args:
      config: Completed, normalised and validated.
      spec: The spec made from it.
      tensors: What requests of the model need beside the inputs of the client.
      instances: How many instances the scheduler feeds.
    """
    batching = config.sequence_batching
    assert batching is not None
    rows_max = slots = max(1, spec.max_batch_size)
    stacking = StackingRule(spec)
    oldest = batching.oldest
    if oldest is not None and oldest.max_candidate_sequences > 0:
        slots = oldest.max_candidate_sequences
    direct = batching.direct or ModelSequenceBatchingStrategyDirect()

    def make_forming() -> Forming:
        if oldest is not None:
            return OldestForming(_inner_policy(oldest, spec, rows_max, stacking))
        return DirectForming(
            slots=slots,
            utilization=direct.minimum_slot_utilization,
            delay_max_s=direct.max_queue_delay_microseconds / 1e6,
            shape_key=stacking.key_of,
            make_filler=tensors.filler,
        )

    return SequencePolicy(
        spec.name,
        instances=instances,
        slots=slots,
        idle_max_s=batching.max_sequence_idle_microseconds / 1e6,
        iterative=batching.iterative_sequence,
        tensors=tensors,
        make_forming=make_forming,
    )


def _inner_policy(
    oldest: ModelSequenceBatchingStrategyOldest,
    spec: ModelSpec,
    rows_max: int,
    stacking: StackingRule,
) -> BatchPolicy:
    return BatchPolicy(
        spec.name,
        rows_max=rows_max,
        batching=rows_max > 1,
        preferred_sizes=tuple(size for size in oldest.preferred_batch_size if size <= rows_max),
        delay_max_s=oldest.max_queue_delay_microseconds / 1e6,
        shape_inputs=stacking.shape_inputs,
        optional_inputs=stacking.optional_inputs,
    )
