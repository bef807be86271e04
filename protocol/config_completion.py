"""Fills a partial configuration in from the tensors that a model file lists.

Source: the autofill of Triton's onnxruntime backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Final, NamedTuple

from ._config_faults import fault, shape_text, type_name
from .dtypes import CONFIG_NUMBERS, PROTOCOL_NAMES
from .pb.inference import (
    BatchInput,
    BatchInputKind,
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelSequenceBatchingControl,
    ModelSequenceBatchingControlKind,
    ModelTensorReshape,
)

DEFAULT_MAX_BATCH_SIZE: Final = 4
"""What `default-max-batch-size` is unless the command line says otherwise."""


class TensorSignature(NamedTuple):
    """One input or output as the model file lists it.

    Attributes:
      name: Its name.
      datatype: Protocol string, such as "FP32".
      shape: With the batch dimension, if there is one; -1 is variable; () is a scalar.
      optional: Whether the model has a default for it.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


class ModelSignature(NamedTuple):
    """The inputs and outputs of a model file."""

    inputs: Sequence[TensorSignature]
    outputs: Sequence[TensorSignature]


def complete_from_signature(
    config: ModelConfig, signature: ModelSignature, *, default_max_batch_size: int
) -> ModelConfig:
    """Return the configuration with inputs, outputs and batching taken from the model file.

    What is written is kept. A configuration that lists inputs and outputs is complete: it is
    only compared with the model.

    Args:
      config: With a name; is not changed.
      signature: What the model file says.
      default_max_batch_size: The max_batch_size of a model that can batch but does not say.

    Raises:
      RequestError: INVALID_ARG; the configuration contradicts the model. Names the model, the
        tensor, and both sides.
    """
    if not config.input or not config.output:
        config = deepcopy(config)
        _complete_batching(config, signature, default_max_batch_size)
        _complete_tensors(config, signature)
    check_signature(config, signature)
    return config


def check_signature(config: ModelConfig, signature: ModelSignature) -> None:
    """Compare a complete configuration with the model file.

    Raises:
      RequestError: INVALID_ARG; as `complete_from_signature`.
    """
    _check_batching(config, signature)
    model_inputs = {tensor.name: tensor for tensor in signature.inputs}
    added = _added_inputs(config)
    for label, tensor in added:
        if tensor.name not in model_inputs:
            raise fault(config, f"{label} is to be supplied by the server, but is no model input")
        _check_tensor(config, label, tensor, model_inputs[tensor.name])
    _check_known(config, "input", config.input, model_inputs)
    present = {tensor.name for tensor in (*config.input, *(tensor for _, tensor in added))}
    required = [tensor.name for tensor in signature.inputs if not tensor.optional]
    if missing := [name for name in required if name not in present]:
        raise fault(
            config,
            f"expected the {len(model_inputs)} inputs of the model, "
            f"got {len(present)} in its configuration without '{missing[0]}'",
        )
    model_outputs = {tensor.name: tensor for tensor in signature.outputs}
    _check_known(config, "output", config.output, model_outputs)
    for label, state in _kept_outputs(config):
        if state.name not in model_outputs:
            raise fault(config, f"{label} is to be kept by the server, but is no model output")
        _check_tensor(config, label, state, model_outputs[state.name])


def _added_inputs(config: ModelConfig) -> list[tuple[str, ModelInput]]:
    """Return each model input that no client sends, and what to call it in errors."""
    added: list[tuple[str, ModelInput]] = []
    for batch_input in config.batch_input:
        dims = _dims_of_batch_input(config, batch_input)
        for name in batch_input.target_name:
            tensor = ModelInput(name=name, data_type=batch_input.data_type, dims=dims)
            added.append((f"batch_input '{name}'", tensor))
    if config.sequence_batching is not None:
        for control_input in config.sequence_batching.control_input:
            name = control_input.name
            for control in control_input.control:
                tensor = ModelInput(name=name, data_type=_type_of_control(control), dims=[1])
                added.append((f"control_input '{name}'", tensor))
        for state in config.sequence_batching.state:
            name = state.input_name
            tensor = ModelInput(name=name, data_type=state.data_type, dims=state.dims)
            added.append((f"state input '{name}'", tensor))
    return added


def _kept_outputs(config: ModelConfig) -> list[tuple[str, ModelOutput]]:
    """Return each model output that is a state, and what to call it in errors."""
    states = [] if config.sequence_batching is None else config.sequence_batching.state
    return [
        (
            f"state output '{state.output_name}'",
            ModelOutput(name=state.output_name, data_type=state.data_type, dims=state.dims),
        )
        for state in states
    ]


def _dims_of_batch_input(config: ModelConfig, batch_input: BatchInput) -> list[int]:
    """Return the dims without the first one, which counts something of the whole batch."""
    first = [] if config.max_batch_size > 0 else [-1]
    if batch_input.kind != BatchInputKind.BATCH_ITEM_SHAPE:
        return first
    sources = [tensor for tensor in config.input if tensor.name in batch_input.source_input]
    return [*first, *(len(_model_dims(source)) for source in sources)]


def _type_of_control(control: ModelSequenceBatchingControl) -> DataType:
    if control.kind == ModelSequenceBatchingControlKind.CONTROL_SEQUENCE_CORRID:
        return DataType(control.data_type)
    if control.int32_false_true:
        return DataType.TYPE_INT32
    return DataType.TYPE_FP32 if control.fp32_false_true else DataType.TYPE_BOOL


def _model_dims(tensor: ModelInput | ModelOutput) -> list[int]:
    """Return the dims that the model sees."""
    return list(tensor.dims if tensor.reshape is None else tensor.reshape.shape)


def _fixed_batch(signature: ModelSignature) -> TensorSignature | None:
    """Return a tensor whose first dimension is not variable, so that the model cannot batch."""
    tensors = (*signature.inputs, *signature.outputs)
    return next((tensor for tensor in tensors if tensor.shape[:1] != (-1,)), None)


def _complete_batching(config: ModelConfig, signature: ModelSignature, default: int) -> None:
    if _fixed_batch(signature) is not None:
        return
    if config.max_batch_size == 0 and not _has_full_rank(config, signature):
        config.max_batch_size = max(default, 0)
    unscheduled = config.dynamic_batching is None and config.sequence_batching is None
    if config.max_batch_size > 1 and unscheduled:
        config.dynamic_batching = ModelDynamicBatching()


def _has_full_rank(config: ModelConfig, signature: ModelSignature) -> bool:
    """Return whether a written tensor lists every dimension: its author wants no batching."""
    ranks = {tensor.name: len(tensor.shape) for tensor in (*signature.inputs, *signature.outputs)}
    written: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    return any(ranks.get(tensor.name) == len(tensor.dims) for tensor in written)


def _complete_tensors(config: ModelConfig, signature: ModelSignature) -> None:
    names = {tensor.name for _, tensor in _added_inputs(config)}
    names.update(tensor.name for tensor in config.input)
    for tensor in signature.inputs:
        if tensor.name not in names:
            data_type, dims, reshape = _described(config, "input", tensor)
            config.input.append(
                ModelInput(
                    name=tensor.name,
                    data_type=data_type,
                    dims=dims,
                    reshape=reshape,
                    optional=tensor.optional,
                )
            )
    names = {tensor.name for _, tensor in _kept_outputs(config)}
    names.update(tensor.name for tensor in config.output)
    for tensor in signature.outputs:
        if tensor.name not in names:
            data_type, dims, reshape = _described(config, "output", tensor)
            config.output.append(
                ModelOutput(name=tensor.name, data_type=data_type, dims=dims, reshape=reshape)
            )


def _described(
    config: ModelConfig, what: str, tensor: TensorSignature
) -> tuple[DataType, list[int], ModelTensorReshape | None]:
    number = CONFIG_NUMBERS.get(tensor.datatype)
    if number is None:
        raise fault(
            config,
            f"{what} '{tensor.name}' has the datatype {tensor.datatype} in the model, "
            "which cannot be served",
        )
    if config.max_batch_size == 0:
        return DataType(number), list(tensor.shape) or [1], None
    if len(tensor.shape) > 1:
        return DataType(number), list(tensor.shape[1:]), None
    return DataType(number), [1], ModelTensorReshape()  # one number an item of the batch


def _check_batching(config: ModelConfig, signature: ModelSignature) -> None:
    if config.max_batch_size == 0:
        return
    fixed = _fixed_batch(signature)
    if fixed is not None:
        raise fault(
            config,
            f"max_batch_size is {config.max_batch_size}, but the model does not support batching: "
            f"the first dimension of '{fixed.name}' {shape_text(fixed.shape)} is not variable",
        )
    for tensor in signature.inputs:
        if tensor.optional:
            raise fault(
                config,
                f"input '{tensor.name}' is optional in the model, which works without batching "
                f"only, but max_batch_size is {config.max_batch_size}",
            )


def _check_known(
    config: ModelConfig,
    what: str,
    tensors: Sequence[ModelInput | ModelOutput],
    in_model: Mapping[str, TensorSignature],
) -> None:
    for tensor in tensors:
        signature = in_model.get(tensor.name)
        label = f"{what} '{tensor.name}'"
        if signature is None:
            raise fault(
                config,
                f"{label} is not among the {len(in_model)} {what}s of the model, "
                f"got {len(tensors)} in its configuration",
            )
        _check_tensor(config, label, tensor, signature)


def _check_tensor(
    config: ModelConfig, label: str, tensor: ModelInput | ModelOutput, signature: TensorSignature
) -> None:
    configured = PROTOCOL_NAMES.get(tensor.data_type)
    if configured != signature.datatype:
        raise fault(
            config,
            f"{label}: the datatype in the model is {signature.datatype}, "
            f"got {configured or type_name(tensor.data_type)} in its configuration",
        )
    _check_shape(config, label, tensor, signature.shape)


def _check_shape(
    config: ModelConfig, label: str, tensor: ModelInput | ModelOutput, in_model: tuple[int, ...]
) -> None:
    if isinstance(tensor, ModelInput) and tensor.allow_ragged_batch:
        if in_model != (-1,):
            raise fault(
                config,
                f"{label}: allow_ragged_batch requires the shape [-1] in the model, "
                f"which has {shape_text(in_model)}",
            )
        return
    if isinstance(tensor, ModelOutput) and in_model == (-1,) and _is_scattered(config, tensor):
        return
    shape = _model_dims(tensor)
    if config.max_batch_size > 0:
        shape.insert(0, -1)
    scalar = not in_model and shape == [1]
    fits = len(shape) == len(in_model) and all(map(_dim_fits, in_model, shape))
    if not scalar and not fits:
        raise fault(
            config,
            f"{label}: the model has {len(in_model)} dims {shape_text(in_model)}, "
            f"got {len(shape)} dims {shape_text(shape)} in its configuration"
            f"{' with the batch dimension' if config.max_batch_size > 0 else ''}",
        )


def _is_scattered(config: ModelConfig, output: ModelOutput) -> bool:
    """Return whether an output is cut by the shapes of an input, so that it may be flat."""
    return any(output.name in batch_output.target_name for batch_output in config.batch_output)


def _dim_fits(in_model: int, configured: int) -> bool:
    return in_model in {-1, configured}
