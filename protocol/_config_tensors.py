"""What the inputs, outputs and batch tensors of a configuration must be.

Source: Triton's validation of `ModelInput`, `ModelOutput`, `BatchInput` and `BatchOutput`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from math import prod
from typing import Final

from ._config_faults import fault, known_name, shape_text, type_name
from .config_detection import TENSORRT_PLATFORM
from .dtypes import PROTOCOL_NAMES
from .pb.inference import (
    BatchInputKind,
    BatchOutputKind,
    DataType,
    ModelConfig,
    ModelInput,
    ModelInputFormat,
    ModelOutput,
)

_BATCH_INPUT_TYPES: Final = frozenset({DataType.TYPE_INT32, DataType.TYPE_FP32})
_IMAGE_DIMS: Final = 3
"""Height, width and channels, in whatever order."""


def check_tensors(config: ModelConfig) -> None:
    """Check every input and output.

    Raises:
      RequestError: INVALID_ARG; names the model, the tensor and the rule.
    """
    _check_each(config, "input", config.input)
    _check_each(config, "output", config.output)


def _check_each(
    config: ModelConfig, what: str, tensors: Sequence[ModelInput | ModelOutput]
) -> None:
    names: set[str] = set()
    for index, tensor in enumerate(tensors):
        if not tensor.name:
            raise fault(config, f"{what} {index} has no name")
        label = f"{what} '{tensor.name}'"
        if tensor.name in names:
            raise fault(config, f"{label} is given twice")
        names.add(tensor.name)
        _check_required(config, label, tensor)
        _check_reshape(config, label, tensor)
        _check_format(config, label, tensor)


def _check_required(config: ModelConfig, label: str, tensor: ModelInput | ModelOutput) -> None:
    if tensor.data_type == DataType.TYPE_INVALID:
        raise fault(config, f"{label} has no data_type")
    if tensor.data_type not in PROTOCOL_NAMES:
        raise fault(config, f"{label} has the unknown data_type {int(tensor.data_type)}")
    if not tensor.dims:
        raise fault(config, f"{label} has no dims")
    _check_dims(config, label, "dims", tensor.dims)


def _check_dims(config: ModelConfig, label: str, field: str, dims: list[int]) -> None:
    for dim in dims:
        if dim < 1 and dim != -1:
            raise fault(
                config, f"{label}: each of its {field} must be at least 1 or else -1, got {dim}"
            )


def _check_reshape(config: ModelConfig, label: str, tensor: ModelInput | ModelOutput) -> None:
    if tensor.reshape is None:
        return
    shape = tensor.reshape.shape
    if not shape and config.max_batch_size == 0:
        raise fault(
            config,
            f"{label}: its reshape is empty, but a model without batching cannot take a scalar",
        )
    _check_dims(config, label, "reshape dims", shape)
    both = f"dims are {shape_text(tensor.dims)} and its reshape is {shape_text(shape)}"
    if tensor.dims.count(-1) != shape.count(-1):
        raise fault(
            config, f"{label}: dims and reshape must have as many variable dims, but its {both}"
        )
    if _fixed_sizes(tensor.dims) != _fixed_sizes(shape):
        raise fault(config, f"{label}: dims and reshape must have the same size, but its {both}")


def _fixed_sizes(dims: Iterable[int]) -> list[int]:
    """Return the sizes before, between and after the variable dims."""
    sizes = [1]
    for variable, run in groupby(dims, key=lambda dim: dim == -1):
        if variable:
            sizes.extend(1 for _ in run)
        else:
            sizes[-1] = prod(run)
    return sizes


def _check_format(config: ModelConfig, label: str, tensor: ModelInput | ModelOutput) -> None:
    ranked = len(tensor.dims) == _IMAGE_DIMS
    if isinstance(tensor, ModelInput) and tensor.format != ModelInputFormat.NONE:
        name = known_name(config, f"{label} format", ModelInputFormat(tensor.format))
        if not ranked:
            raise fault(
                config,
                f"{label}: {name} requires {_IMAGE_DIMS} dims, got {shape_text(tensor.dims)}",
            )
    on_tensorrt = config.platform == TENSORRT_PLATFORM or config.backend == "tensorrt"
    if tensor.is_shape_tensor and not on_tensorrt:
        raise fault(config, f"{label}: is_shape_tensor is for TensorRT models only")
    if tensor.is_non_linear_format_io and not on_tensorrt:
        raise fault(config, f"{label}: is_non_linear_format_io is for TensorRT models only")
    if tensor.is_non_linear_format_io and not ranked:
        raise fault(
            config,
            f"{label}: is_non_linear_format_io requires {_IMAGE_DIMS} dims, "
            f"got {shape_text(tensor.dims)}",
        )


def check_batch_tensors(config: ModelConfig) -> None:
    """Check every batch input and batch output.

    Raises:
      RequestError: INVALID_ARG; names the model, the kind and the tensor.
    """
    for batch_input in config.batch_input:
        kind = known_name(config, "batch_input kind", BatchInputKind(batch_input.kind))
        label = f"batch_input {kind}"
        _check_source(config, label, batch_input.source_input)
        if batch_input.data_type not in _BATCH_INPUT_TYPES:
            raise fault(
                config,
                f"{label}: data_type must be TYPE_INT32 or TYPE_FP32, "
                f"got {type_name(batch_input.data_type)}",
            )
    outputs = {output.name for output in config.output}
    taken: set[str] = set()
    for batch_output in config.batch_output:
        kind = known_name(config, "batch_output kind", BatchOutputKind(batch_output.kind))
        label = f"batch_output {kind}"
        _check_source(config, label, batch_output.source_input)
        for name in batch_output.target_name:
            if name not in outputs:
                raise fault(config, f"{label}: target_name '{name}' is no output of the model")
            if name in taken:
                raise fault(config, f"{label}: target_name '{name}' is named twice")
            taken.add(name)


def _check_source(config: ModelConfig, label: str, sources: list[str]) -> None:
    if len(sources) != 1:
        raise fault(config, f"{label}: expected one source_input, got {len(sources)}")
    if all(tensor.name != sources[0] for tensor in config.input):
        raise fault(config, f"{label}: source_input '{sources[0]}' is no input of the model")
