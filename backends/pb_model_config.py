"""The `pb_utils.ModelConfig` that a Python model's `auto_complete_config` fills in.

A model may add what the configuration lacks, and must not contradict what its author wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Final, TypeVar, final

from ..protocol.config_json import model_config_from_dict, model_config_to_dict
from ..protocol.errors import RequestError
from ..protocol.pb.inference import (
    ModelConfig as ServerConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelTransactionPolicy,
)

_TENSOR_KEYS: Final = frozenset({"name", "data_type", "dims"})

_TensorT = TypeVar("_TensorT", ModelInput, ModelOutput)


@final
class ModelConfig:
    """A model configuration to be completed.

    Args:
      config: What the author wrote; is not changed.

    Attributes:
      config: The configuration so far.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = deepcopy(config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration so far as the objects of its JSON form; a copy."""
        return model_config_to_dict(self.config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch.

        Raises:
          ValueError: the author wrote a larger one.
        """
        written = self.config.max_batch_size
        if written > max_batch_size:
            raise ValueError(f"max_batch_size is {written}, cannot be lowered to {max_batch_size}")
        self.config.max_batch_size = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Turn dynamic batching on, with defaults unless the author wrote more.

        Raises:
          ValueError: the author chose another scheduler.
        """
        for other in ("sequence_batching", "ensemble_scheduling"):
            if getattr(self.config, other) is not None:
                raise ValueError(f"dynamic_batching cannot be set: the configuration has {other}")
        if self.config.dynamic_batching is None:
            self.config.dynamic_batching = ModelDynamicBatching()

    def add_input(self, tensor: Mapping[str, Any]) -> None:
        """Add an input, or fill in one the author named.

        Args:
          tensor: `name`, `data_type` (such as "TYPE_FP32") and `dims`; optionally `optional`.

        Raises:
          ValueError: a key is missing or unknown, or the author wrote something else.
        """
        _check_keys("an input", tensor, _TENSOR_KEYS, {"optional"})
        _add(self.config.input, _parse({"input": [tensor]}).input[0])

    def add_output(self, tensor: Mapping[str, Any]) -> None:
        """Add an output, or fill in one the author named.

        Args:
          tensor: `name`, `data_type` (such as "TYPE_FP32") and `dims`.

        Raises:
          ValueError: a key is missing or unknown, or the author wrote something else.
        """
        _check_keys("an output", tensor, _TENSOR_KEYS)
        _add(self.config.output, _parse({"output": [tensor]}).output[0])

    def set_model_transaction_policy(self, policy: Mapping[str, Any]) -> None:
        """Say whether the model is decoupled.

        Args:
          policy: `decoupled`, a bool.

        Raises:
          ValueError: a key is missing or unknown, or the author wrote true and this is false.
        """
        _check_keys("a transaction policy", policy, {"decoupled"})
        decoupled = policy["decoupled"]
        if not isinstance(decoupled, bool):
            raise ValueError(f"decoupled must be a bool, got {type(decoupled).__name__}")  # noqa: TRY004 - what models catch
        written = self.config.model_transaction_policy
        if written is not None and written.decoupled and not decoupled:
            raise ValueError("decoupled is true in the configuration, cannot be set to false")
        self.config.model_transaction_policy = ModelTransactionPolicy(decoupled=decoupled)


def _check_keys(
    what: str, given: Mapping[str, Any], required: Iterable[str], optional: Iterable[str] = ()
) -> None:
    required = set(required)
    if missing := required.difference(given):
        raise ValueError(f"{what} needs the keys {sorted(required)}, got none for {min(missing)!r}")
    if unknown := set(given).difference(required, optional):
        raise ValueError(f"{what} has the keys {sorted(required)}, got also {min(unknown)!r}")


def _parse(fields: dict[str, Any]) -> ServerConfig:
    try:
        return model_config_from_dict(fields)
    except RequestError as error:
        raise ValueError(error.message) from None


def _add(tensors: list[_TensorT], new: _TensorT) -> None:
    written = next((tensor for tensor in tensors if tensor.name == new.name), None)
    if written is None:
        tensors.append(new)
        return
    if int(written.data_type) not in {0, int(new.data_type)}:
        raise ValueError(
            f"tensor '{new.name}' has data_type {written.data_type.name} in the configuration, "
            f"cannot be set to {new.data_type.name}"
        )
    if written.dims and written.dims != new.dims:
        raise ValueError(
            f"tensor '{new.name}' has dims {written.dims} in the configuration, "
            f"cannot be set to {new.dims}"
        )
    written.data_type = new.data_type
    written.dims = new.dims
    if isinstance(written, ModelInput) and isinstance(new, ModelInput):
        written.optional = written.optional or new.optional
