"""The `triton_python_backend_utils` module that Python models import.

It is importable anywhere, so that a model can be tested without a server: its requests, tensors
and responses can be made by hand and given to `execute`.
Source: the documented interface of Triton's Python backend.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Any, Final, final

import numpy as np

from ..protocol.dtypes import BYTES, CONFIG_NUMBERS, NUMPY_DTYPES, PROTOCOL_NAMES, datatype_of
from ..protocol.tensors import Array, Buffer, decode_bytes_elements, encode_bytes_elements
from .pb_model_config import ModelConfig
from .pb_objects import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    TritonError,
)
from .pb_tensor import Tensor, TritonModelException

__all__ = [
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "LogLevel",
    "Logger",
    "ModelConfig",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
]

_LOGGER: Final = logging.getLogger("tritrio.model")

_CONFIG_TYPE_NAMES: Final = {
    ("TYPE_STRING" if name == BYTES else f"TYPE_{name}"): dtype.type
    for name, dtype in NUMPY_DTYPES.items()
    if name != "BF16"
}


class LogLevel(IntEnum):
    """How important a message is; the values are those of Python's `logging`."""

    VERBOSE = logging.DEBUG
    INFO = logging.INFO
    WARNING = logging.WARNING
    ERROR = logging.ERROR


@final
class Logger:
    """Writes to the server's log, as logger "tritrio.model"; also knows the levels."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: int = LogLevel.INFO) -> None:
        """Log at `level`."""
        _LOGGER.log(level, "%s", message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        _LOGGER.info("%s", message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        _LOGGER.warning("%s", message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        _LOGGER.error("%s", message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level VERBOSE."""
        _LOGGER.debug("%s", message)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return an input of a request, or None if the request lacks it."""
    return inference_request._inputs().get(name)  # noqa: SLF001 - the quick way to one tensor


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return an output of a response, or None if the response lacks it."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the `input` entry of a model configuration (a dict), or None."""
    return _by_name(model_config.get("input", []), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the `output` entry of a model configuration (a dict), or None."""
    return _by_name(model_config.get("output", []), name)


def _by_name(entries: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Return whether a model configuration (a dict) says that the model is decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> type[np.generic]:
    """Return the numpy type of a data type's number in a model configuration.

    Raises:
      KeyError: there is no such number.
    """
    return NUMPY_DTYPES[PROTOCOL_NAMES[data_type]].type


def numpy_to_triton_type(data_type: Any) -> int:
    """Return the number, in a model configuration, of the data type of a numpy type.

    Raises:
      KeyError: no data type has such elements.
    """
    dtype = np.dtype(data_type)
    datatype = datatype_of(dtype)
    if datatype is None:
        raise KeyError(dtype)
    return CONFIG_NUMBERS[datatype]


def triton_string_to_numpy(triton_type_string: str) -> type[np.generic]:
    """Return the numpy type of a configuration's type name, such as "TYPE_FP32".

    Raises:
      KeyError: there is no such name, or it is TYPE_BF16, which plain numpy lacks.
    """
    return _CONFIG_TYPE_NAMES[triton_type_string]


def serialize_byte_tensor(input_tensor: Array) -> bytes:
    """Return the wire form of a BYTES array: each element after its uint32 length.

    Raises:
      TritonModelException: the elements are neither objects nor strings.
    """
    if datatype_of(input_tensor.dtype) != BYTES:
        raise TritonModelException(
            f"expected an array of objects or strings, got one of {input_tensor.dtype}"
        )
    return encode_bytes_elements(np.asarray(input_tensor).ravel().tolist())


def deserialize_bytes_tensor(encoded_tensor: Buffer) -> Array:
    """Return the elements of a BYTES tensor's wire form as a flat array of `bytes` objects.

    Raises:
      ValueError: the wire form is cut off.
    """
    elements = decode_bytes_elements(encoded_tensor)
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
