"""What the schedulers of a configuration must be.

Source: Triton's validation of `ModelDynamicBatching` and `ModelSequenceBatching`.
"""

from __future__ import annotations

from typing import Final

from ._config_faults import fault, known_name, shape_text, type_name
from ._message_schema import enum_name
from .pb.inference import (
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroupKind,
    ModelQueuePolicy,
    ModelQueuePolicyTimeoutAction,
    ModelSequenceBatching,
    ModelSequenceBatchingControl,
    ModelSequenceBatchingControlKind,
    ModelSequenceBatchingState,
)

_CORRELATION_ID_TYPES: Final = (
    DataType.TYPE_UINT64,
    DataType.TYPE_INT64,
    DataType.TYPE_UINT32,
    DataType.TYPE_INT32,
    DataType.TYPE_STRING,
)
_FALSE_TRUE_FIELDS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")


def check_dynamic_batching(config: ModelConfig) -> None:
    """Check `dynamic_batching`, if the model has it.

    Raises:
      RequestError: INVALID_ARG; names the model, the field and the range.
    """
    dynamic = config.dynamic_batching
    if dynamic is None:
        return
    _check_preferred(config, "dynamic_batching", dynamic.preferred_batch_size)
    _check_priorities(config, dynamic)
    if dynamic.preserve_ordering:
        _check_ordering(config, dynamic)


def _check_preferred(config: ModelConfig, scheduler: str, sizes: list[int]) -> None:
    for size in sizes:
        if size < 1:
            raise fault(config, f"{scheduler}: preferred_batch_size must be positive, got {size}")
        if size > config.max_batch_size:
            raise fault(
                config,
                f"{scheduler}: preferred_batch_size must not exceed max_batch_size "
                f"{config.max_batch_size}, got {size}",
            )


def _check_priorities(config: ModelConfig, dynamic: ModelDynamicBatching) -> None:
    levels = dynamic.priority_levels
    if levels == 0:
        return
    if not 1 <= dynamic.default_priority_level <= levels:
        raise fault(
            config,
            f"dynamic_batching: default_priority_level must be from 1 to {levels}, "
            f"got {dynamic.default_priority_level}",
        )
    for level in dynamic.priority_queue_policy:
        if not 1 <= level <= levels:
            raise fault(
                config,
                f"dynamic_batching: a key of priority_queue_policy must be from 1 to {levels}, "
                f"got {level}",
            )


def _check_ordering(config: ModelConfig, dynamic: ModelDynamicBatching) -> None:
    if dynamic.priority_levels > 1:
        raise fault(
            config,
            "dynamic_batching: preserve_ordering works with one priority level only, "
            f"got priority_levels {dynamic.priority_levels}",
        )
    default = dynamic.default_queue_policy
    policies = [*([] if default is None else [default]), *dynamic.priority_queue_policy.values()]
    if any(map(_delays, policies)):
        raise fault(
            config,
            "dynamic_batching: preserve_ordering does not work with the timeout_action DELAY",
        )


def _delays(policy: ModelQueuePolicy) -> bool:
    delays = policy.timeout_action == ModelQueuePolicyTimeoutAction.DELAY
    return delays and policy.default_timeout_microseconds != 0


def check_sequence_batching(config: ModelConfig) -> None:
    """Check `sequence_batching`, if the model has it.

    Raises:
      RequestError: INVALID_ARG; names the model, the tensor or control kind, and the field.
    """
    sequence = config.sequence_batching
    if sequence is None:
        return
    if config.response_cache is not None and config.response_cache.enable:
        raise fault(
            config,
            "the response cache does not work with sequence_batching; disable response_cache",
        )
    _check_controls(config, sequence)
    if sequence.oldest is not None:
        _check_preferred(config, "sequence_batching: oldest", sequence.oldest.preferred_batch_size)
    if sequence.direct is not None:
        utilization = sequence.direct.minimum_slot_utilization
        if not 0.0 <= utilization <= 1.0:  # the default 0 leaves it out; NaN is refused as well
            raise fault(
                config,
                "sequence_batching: direct: minimum_slot_utilization must be in (0.0, 1.0], "
                f"got {utilization}",
            )
    _check_states(config, sequence)


def _check_controls(config: ModelConfig, sequence: ModelSequenceBatching) -> None:
    tensor_of: dict[str, str] = {}  # control kind -> tensor
    taken: set[str] = set()
    for tensor in sequence.control_input:
        if not tensor.name:
            raise fault(config, "sequence_batching: a control_input has no name")
        if tensor.name in taken or len(tensor.control) > 1:
            raise fault(
                config,
                f"sequence_batching: control_input '{tensor.name}' stands for several controls, "
                "expected one",
            )
        taken.add(tensor.name)
        for control in tensor.control:
            kind = known_name(
                config, "sequence_batching: control", ModelSequenceBatchingControlKind(control.kind)
            )
            if kind in tensor_of:
                raise fault(
                    config,
                    f"sequence_batching: {kind} must have one tensor, "
                    f"got '{tensor_of[kind]}' and '{tensor.name}'",
                )
            tensor_of[kind] = tensor.name
            _check_control(config, kind, control)


def _check_control(config: ModelConfig, kind: str, control: ModelSequenceBatchingControl) -> None:
    label = f"sequence_batching: {kind}"
    given = [field for field in _FALSE_TRUE_FIELDS if getattr(control, field)]
    if control.kind == ModelSequenceBatchingControlKind.CONTROL_SEQUENCE_CORRID:
        if given:
            raise fault(config, f"{label} has no false and true values, got {given[0]}")
        if control.data_type not in _CORRELATION_ID_TYPES:
            allowed = ", ".join(map(type_name, _CORRELATION_ID_TYPES))
            raise fault(
                config,
                f"{label}: data_type must be one of {allowed}, got {type_name(control.data_type)}",
            )
        return
    if len(given) != 1:
        raise fault(
            config,
            f"{label}: expected one of {', '.join(_FALSE_TRUE_FIELDS)}, "
            f"got {' and '.join(given) or 'none'}",
        )
    count = len(getattr(control, given[0]))
    if count != 2:
        raise fault(config, f"{label}: {given[0]} must have 2 entries, got {count}")


def _check_states(config: ModelConfig, sequence: ModelSequenceBatching) -> None:
    names: set[str] = set()
    for state in sequence.state:
        if state.input_name in names:
            raise fault(
                config, f"sequence_batching: state input_name '{state.input_name}' is given twice"
            )
        names.add(state.input_name)
        _check_growable(config, state)
        _check_initial_state(config, state)


def _check_growable(config: ModelConfig, state: ModelSequenceBatchingState) -> None:
    if not state.use_growable_memory:
        return
    label = f"sequence_batching: state '{state.input_name}'"
    if not state.use_same_buffer_for_input_output:
        raise fault(
            config, f"{label}: use_growable_memory requires use_same_buffer_for_input_output"
        )
    for group in config.instance_group:
        if group.kind != ModelInstanceGroupKind.GPU:
            kind = enum_name(ModelInstanceGroupKind(group.kind))
            raise fault(config, f"{label}: use_growable_memory requires KIND_GPU, got {kind}")


def _check_initial_state(config: ModelConfig, state: ModelSequenceBatchingState) -> None:
    label = f"sequence_batching: initial_state of '{state.input_name}'"
    if len(state.initial_state) > 1:
        raise fault(config, f"{label}: expected zero or one, got {len(state.initial_state)}")
    for initial in state.initial_state:
        if not initial.name:
            raise fault(config, f"{label} has no name")
        if initial.data_type != state.data_type:
            raise fault(
                config,
                f"{label}: data_type must be that of the state, {type_name(state.data_type)}, "
                f"got {type_name(initial.data_type)}",
            )
        if len(initial.dims) != len(state.dims):
            raise fault(
                config,
                f"{label}: expected {len(state.dims)} dims as the state has, "
                f"got {len(initial.dims)}",
            )
        for dim, state_dim in zip(initial.dims, state.dims, strict=True):
            if dim < 1:
                raise fault(config, f"{label}: dims must be fixed, got {shape_text(initial.dims)}")
            if state_dim not in {-1, dim}:
                raise fault(
                    config, f"{label}: expected the dim {state_dim} of the state, got {dim}"
                )
        if initial.zero_data is None and initial.data_file is None:
            raise fault(config, f"{label}: expected zero_data or data_file, got neither")
