"""The configuration of a model that generates text: always the tensors of Triton's vLLM backend.

Source: what Triton's vLLM backend completes.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from ...protocol.dtypes import CONFIG_NUMBERS, PROTOCOL_NAMES
from ...protocol.errors import RequestError, invalid_argument
from ...protocol.llm_tensors import INPUTS, OUTPUTS
from ...protocol.pb.inference import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelTransactionPolicy,
)
from ...protocol.tensors import Shape
from ...protocol.wording import names_text, quoted, shape_text

Described = tuple[str, str, Shape]


def completed(config: ModelConfig) -> ModelConfig:
    """Return the configuration with all tensors, decoupled.

    Raises:
      RequestError: INVALID_ARG; what is written contradicts that.
    """
    config = deepcopy(config)
    if config.model_transaction_policy is None:
        config.model_transaction_policy = ModelTransactionPolicy(decoupled=True)
    written = {tensor.name for tensor in config.input}
    config.input += [
        ModelInput(name=name, data_type=_number(datatype), dims=list(shape), optional=True)
        for name, datatype, shape in INPUTS
        if name not in written
    ]
    written = {tensor.name for tensor in config.output}
    config.output += [
        ModelOutput(name=name, data_type=_number(datatype), dims=list(shape))
        for name, datatype, shape in OUTPUTS
        if name not in written
    ]
    check_config(config)
    return config


def check_config(config: ModelConfig) -> None:
    """Refuse what a model that generates text cannot be.

    Raises:
      RequestError: INVALID_ARG; the configuration batches, is not decoupled, has other tensors, or
        wants something that has no meaning for such a model.
    """
    if config.max_batch_size != 0:
        raise _fault(
            config,
            f"expected max_batch_size 0, since requests join a batch token by token and "
            f"max_num_seqs in model.json says how many, got {config.max_batch_size}",
        )
    policy = config.model_transaction_policy
    if policy is None or not policy.decoupled:
        raise _fault(config, "expected model_transaction_policy { decoupled: true }, got false")
    if config.sequence_batching is not None:
        raise _fault(config, "expected no sequence_batching, since each request is a sequence")
    if config.model_warmup:
        raise _fault(config, "expected no model_warmup, since the model takes no batches")
    _check_tensors(config, "input", config.input, INPUTS)
    _check_tensors(config, "output", config.output, OUTPUTS)
    for tensor in config.input:
        if not tensor.optional:
            raise _fault(config, f"expected input {quoted(tensor.name)} to be optional: true")


def _check_tensors(
    config: ModelConfig,
    what: str,
    tensors: Sequence[ModelInput | ModelOutput],
    expected: Sequence[Described],
) -> None:
    known = {name: (datatype, shape) for name, datatype, shape in expected}
    for tensor in tensors:
        if tensor.name not in known:
            raise _fault(
                config, f"expected {what}s among {names_text(known)}, got {quoted(tensor.name)}"
            )
        got = PROTOCOL_NAMES.get(tensor.data_type, "another type"), tuple(tensor.dims)
        if got != known[tensor.name] or tensor.reshape is not None:
            datatype, shape = known[tensor.name]
            raise _fault(
                config,
                f"expected {what} {quoted(tensor.name)} to be {datatype} {shape_text(shape)} "
                f"without reshape, got {got[0]} {shape_text(got[1])}",
            )


def _number(datatype: str) -> DataType:
    return DataType(CONFIG_NUMBERS[datatype])


def _fault(config: ModelConfig, message: str) -> RequestError:
    return invalid_argument(f"model '{config.name}': {message}")
