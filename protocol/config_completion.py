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
    DataType,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
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
    supplied = _supplied_by_server(config)
    for name in supplied:
        if name not in model_inputs:
            raise fault(
                config, f"tensor '{name}' is to be supplied by the server, but is no model input"
            )
    _check_known(config, "input", config.input, model_inputs)
    present = supplied.union(tensor.name for tensor in config.input)
    required = [tensor.name for tensor in signature.inputs if not tensor.optional]
    if missing := [name for name in required if name not in present]:
        raise fault(
            config,
            f"expected the {len(model_inputs)} inputs of the model, "
            f"got {len(present)} in its configuration without '{missing[0]}'",
        )
    model_outputs = {tensor.name: tensor for tensor in signature.outputs}
    _check_known(config, "output", config.output, model_outputs)


def _supplied_by_server(config: ModelConfig) -> set[str]:
    """Return the names of the model inputs that no client sends."""
    names = {name for tensor in config.batch_input for name in tensor.target_name}
    if config.sequence_batching is not None:
        names.update(control.name for control in config.sequence_batching.control_input)
        names.update(state.input_name for state in config.sequence_batching.state)
    return names


def _kept_by_server(config: ModelConfig) -> set[str]:
    """Return the names of the model outputs that are state and not shown unless listed."""
    if config.sequence_batching is None:
        return set()
    return {state.output_name for state in config.sequence_batching.state}


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
    names = _supplied_by_server(config).union(tensor.name for tensor in config.input)
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
    names = _kept_by_server(config).union(tensor.name for tensor in config.output)
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
    shape = list(tensor.dims if tensor.reshape is None else tensor.reshape.shape)
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


def _dim_fits(in_model: int, configured: int) -> bool:
    return in_model in {-1, configured}
