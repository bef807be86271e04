"""The defaults a model configuration gets before it is served, and the instances it asks for.

Source: Triton's normalisation of `ModelConfig`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from copy import deepcopy
from typing import Final, NamedTuple

from .config_detection import ENSEMBLE_PLATFORM
from .pb.inference import (
    ModelConfig,
    ModelInstanceGroup,
    ModelInstanceGroupKind,
    ModelOptimizationPolicy,
    ModelOptimizationPolicyPinnedMemoryBuffer,
    ModelVersionPolicy,
    ModelVersionPolicyLatest,
)

SEQUENCE_IDLE_DEFAULT_US: Final = 1_000_000
CPU_INSTANCES_DEFAULT: Final = 2
"""Instances on the CPU of a backend that leaves cores idle with one."""
_TWO_CPU_INSTANCES: Final = frozenset({"onnxruntime", "tensorflow"})


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigContext:
    """What a configuration is judged against besides itself.

    Attributes:
      gpus: Ids of the usable GPUs.
      min_compute_capability: What a GPU needs to be usable; errors state it.
      preferred_kind: Where the backend likes to run when the configuration does not say.
      preferred_count: Instances the backend likes to have; 0 is no preference.
    """

    gpus: tuple[int, ...] = ()
    min_compute_capability: float = 6.0
    preferred_kind: ModelInstanceGroupKind = ModelInstanceGroupKind.AUTO
    preferred_count: int = 0


class Instance(NamedTuple):
    """One instance a configuration asks for.

    Attributes:
      name: `<group name>_<i>`; the instances of one group on several GPUs share their names.
      group: Where it comes from.
      device_id: The GPU; 0 where the group is not on GPUs.
    """

    name: str
    group: ModelInstanceGroup
    device_id: int


def is_ensemble(config: ModelConfig) -> bool:
    """Return whether the model is a graph of other models."""
    return config.platform == ENSEMBLE_PLATFORM or config.ensemble_scheduling is not None


def normalise(config: ModelConfig, *, context: ConfigContext) -> ModelConfig:
    """Return the configuration with its defaults written out.

    Args:
      config: Completed, with a name; is not changed.
      context: Where it is going to run.
    """
    config = deepcopy(config)
    if config.version_policy is None:
        latest = ModelVersionPolicyLatest(num_versions=1)
        config.version_policy = ModelVersionPolicy(latest=latest)
    _normalise_schedulers(config)
    if not is_ensemble(config):
        _normalise_optimization(config)
        _normalise_instances(config, context)
    return config


def _normalise_schedulers(config: ModelConfig) -> None:
    largest = [config.max_batch_size] if config.max_batch_size > 0 else []
    dynamic = config.dynamic_batching
    if dynamic is not None and not dynamic.preferred_batch_size:
        dynamic.preferred_batch_size = largest
    sequence = config.sequence_batching
    if sequence is None:
        return
    if sequence.max_sequence_idle_microseconds == 0:
        sequence.max_sequence_idle_microseconds = SEQUENCE_IDLE_DEFAULT_US
    if sequence.oldest is not None and not sequence.oldest.preferred_batch_size:
        sequence.oldest.preferred_batch_size = largest


def _normalise_optimization(config: ModelConfig) -> None:
    if config.optimization is None:
        config.optimization = ModelOptimizationPolicy()
    pinned = ModelOptimizationPolicyPinnedMemoryBuffer
    if config.optimization.input_pinned_memory is None:
        config.optimization.input_pinned_memory = pinned(enable=True)
    if config.optimization.output_pinned_memory is None:
        config.optimization.output_pinned_memory = pinned(enable=True)


def _normalise_instances(config: ModelConfig, context: ConfigContext) -> None:
    if not config.instance_group:
        group = ModelInstanceGroup(name=config.name, kind=context.preferred_kind)
        config.instance_group = [group]
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == ModelInstanceGroupKind.AUTO:
            usable = bool(context.gpus) and set(group.gpus) <= set(context.gpus)
            group.kind = ModelInstanceGroupKind.GPU if usable else ModelInstanceGroupKind.CPU
        if group.kind == ModelInstanceGroupKind.GPU and not group.gpus:
            group.gpus = list(context.gpus)
        if group.count < 1:
            group.count = _default_count(config, group, context)


def _default_count(config: ModelConfig, group: ModelInstanceGroup, context: ConfigContext) -> int:
    if context.preferred_count > 0:
        return context.preferred_count
    on_cpu = group.kind == ModelInstanceGroupKind.CPU
    return CPU_INSTANCES_DEFAULT if on_cpu and config.backend in _TWO_CPU_INSTANCES else 1


def instances(config: ModelConfig) -> Iterator[Instance]:
    """Yield the instances of a normalised configuration, in the order of its groups."""
    for group in config.instance_group:
        on_gpu = group.kind == ModelInstanceGroupKind.GPU
        for device_id in group.gpus if on_gpu else [0]:
            for index in range(group.count):
                yield Instance(f"{group.name}_{index}", group, device_id)
