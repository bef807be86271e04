"""The `triton_python_backend_utils` module that Python models import.

It is importable anywhere, so that a model can be tested without a server: its requests, tensors
and responses can be made by hand and given to `execute`.
Source: the documented interface of Triton's Python backend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, Final, final

import numpy as np

from ..protocol.dtypes import BYTES, CONFIG_NUMBERS, NUMPY_DTYPES, PROTOCOL_NAMES, datatype_of
from ..protocol.errors import RequestError
from ..protocol.tensors import Array, Buffer, decode_bytes_elements, encode_bytes_elements
from .pb_calls import ResponseIterator
from .pb_context import about_caller, required_context, required_server
from .pb_metrics import Metric, MetricFamily
from .pb_model_config import ModelConfig
from .pb_objects import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    InferenceResponseSender,
    TritonError,
)
from .pb_request import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from .pb_tensor import Tensor, TritonModelException

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "LogLevel",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_MEMORY_CPU: Final = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU: Final = MemoryType.TRITONSERVER_MEMORY_GPU

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
        _write(level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at level INFO."""
        _write(LogLevel.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at level WARNING."""
        _write(LogLevel.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at level ERROR."""
        _write(LogLevel.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at level VERBOSE."""
        _write(LogLevel.VERBOSE, message)


def _write(level: int, message: str) -> None:
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, "%s", message, stacklevel=3, extra=about_caller())


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


def get_model_dir() -> str:
    """Return the version directory of the calling model, `<repository>/<model>/<version>`.

    Raises:
      TritonModelException: the caller is not the code of a model.
    """
    return str(required_context("get_model_dir()").source.version_directory)


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load a model, or load it again.

    Args:
      model_name: Its name.
      config: Its configuration as JSON text; "" for what is in the repository.
      files: "file:" and a path below the model's directory -> content, in place of the repository.

    Raises:
      TritonModelException: it cannot be loaded, or not on request.
    """
    context, server = required_server("load_model()")
    contents = {name.removeprefix("file:"): content for name, content in (files or {}).items()}
    load = partial(server.load_model, caller=context.number)
    _ask(load, model_name, config or None, contents)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Begin to unload a model.

    Raises:
      TritonModelException: it cannot be unloaded, or not on request.
    """
    context, server = required_server("unload_model()")
    unload = partial(server.unload_model, caller=context.number)
    _ask(partial(unload, model_name, unload_dependents=unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a version of a model, or with "" any version, takes requests."""
    _, server = required_server("is_model_ready()")
    return server.is_model_ready(model_name, model_version)


def _ask(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except RequestError as error:
        raise TritonModelException(error.message) from None


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
