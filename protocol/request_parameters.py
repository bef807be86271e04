"""Request parameters: the reserved ones become attributes, the rest reach the model.

HTTP and gRPC spell them alike and differ in few kinds, so one set of rules serves both.
Source: the KServe v2 parameters, sequence, schedule policy and shared memory extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .errors import ErrorCode, RequestError, invalid_argument
from .requests import InferRequest, RequestedOutput
from .shared_tensors import region_slice
from .wording import quoted, shown

RESERVED_PREFIX: Final = "triton_"
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
SEQUENCE_ID_CHARACTERS_MAX: Final = 128
"""The longest string sequence id Triton accepts."""

_INT64_MIN = -(2**63)
_INT64_END = 2**63
_UINT64_END = 2**64
_SCALARS = (bool, int, float, str)


def take_parameters(request: InferRequest, given: Mapping[str, Any], *, grpc: bool) -> None:
    """Move the parameters of a request into its attributes and its custom parameters.

    Args:
      request: Gets the values.
      given: Name -> value as the transport parsed it; any JSON value over HTTP.
      grpc: Which transport: `binary_data_output` exists over HTTP only, the empty final response
        over gRPC only.

    Raises:
      RequestError: a reserved name, or a value of the wrong kind; names the key.
    """
    for key, value in given.items():
        if key == "sequence_id":
            request.sequence_id = _sequence_id(value)
        elif key == "sequence_start":
            request.sequence_start = _boolean(key, value)
        elif key == "sequence_end":
            request.sequence_end = _boolean(key, value)
        elif key == "priority":
            request.priority = _unsigned(key, value)
        elif key == "timeout":
            request.timeout_us = _unsigned(key, value)
        elif key == "binary_data_output" and not grpc:
            request.binary_default = _boolean(key, value)
        elif key == EMPTY_FINAL_RESPONSE and grpc:
            request.empty_final_response = _boolean(key, value)
        elif key.startswith(RESERVED_PREFIX):
            allowed = f"; only '{EMPTY_FINAL_RESPONSE}' may be given" if grpc else ""
            raise invalid_argument(
                f"parameter {quoted(key)} starts with the reserved prefix "
                f"'{RESERVED_PREFIX}'{allowed}"
            )
        elif type(value) not in _SCALARS or (
            type(value) is int and not _INT64_MIN <= value < _INT64_END
        ):
            raise invalid_argument(
                f"parameter {quoted(key)} must be a string, an int64, a boolean or a double, got "
                f"{shown(value)}"
            )
        else:
            request.parameters[key] = value


def requested_output(name: str, given: Mapping[str, Any], *, grpc: bool) -> RequestedOutput:
    """Return a requested output from its name and parameters; unknown parameters are ignored.

    Raises:
      RequestError: a value of the wrong kind, or parameters that exclude each other.
    """
    if not given:
        return RequestedOutput(name)
    count = 0
    if "classification" in given:
        count = _classification(name, given["classification"], grpc=grpc)
    binary: bool | None = None
    if "binary_data" in given and not grpc:
        binary = _boolean("binary_data", given["binary_data"])
    place = region_slice(given, f"output {quoted(name)}")
    if place is not None:
        if "classification" in given:
            raise invalid_argument(
                f"output {quoted(name)} may have 'shared_memory_region' or 'classification', "
                "got both"
            )
        if binary:
            raise invalid_argument(
                f"output {quoted(name)} may have 'shared_memory_region' or 'binary_data' true, "
                "got both"
            )
    return RequestedOutput(name, binary=binary, classification_count=count, place=place)


def _boolean(key: str, value: object) -> bool:
    if type(value) is not bool:
        raise invalid_argument(f"parameter '{key}' must be a boolean, got {shown(value)}")
    return value


def _unsigned(key: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < _UINT64_END:
        raise invalid_argument(f"parameter '{key}' must be an integer >= 0, got {shown(value)}")
    return value


def _sequence_id(value: object) -> int | str:
    if type(value) is str:
        if len(value) > SEQUENCE_ID_CHARACTERS_MAX:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f"parameter 'sequence_id' may have {SEQUENCE_ID_CHARACTERS_MAX} characters, got "
                f"{len(value)}",
            )
        return value
    if type(value) is not int or not 0 <= value < _UINT64_END:
        raise invalid_argument(
            f"parameter 'sequence_id' must be a uint64 or a string, got {shown(value)}"
        )
    return value


def _classification(name: str, value: object, *, grpc: bool) -> int:
    least = 1 if grpc else 0
    if type(value) is not int or not least <= value < _INT64_END:
        raise invalid_argument(
            f"parameter 'classification' of output {quoted(name)} must be an integer >= {least}, "
            f"got {shown(value)}"
        )
    return value
