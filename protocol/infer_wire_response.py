"""ModelInfer and ModelStreamInfer responses on the protobuf wire.

Source: `grpc_service.proto`, ModelInferResponse and ModelStreamInferResponse.
"""

from __future__ import annotations

import struct
from typing import Final

from .errors import ErrorCode, RequestError, invalid_argument
from .protobuf_wire import length_delimited, text_field, varint
from .requested_outputs import requested_outputs
from .requests import InferRequest, InferResponse, Parameters, ParameterValue
from .tensors import Buffer, Shape, Tensor

MESSAGE_BYTES_MAX: Final = 2**31 - 1
"""The largest message gRPC clients take."""
JOINED_BYTES_MAX: Final = 4096
"""Raw contents up to here are copied into the message: cheaper than another part to write."""
CACHED_PIECES_MAX: Final = 1024
"""Kept pieces of responses; variable shapes could make any number of them."""
FINAL_RESPONSE: Final = "triton_final_response"

_DOUBLE = struct.Struct("<d")
_RAW_TAG = b"\x32"
_models: dict[tuple[str, str], bytes] = {}
_outputs: dict[tuple[str, str, Shape], bytes] = {}


def encode_model_infer_response(
    response: InferResponse, request: InferRequest | None = None
) -> list[Buffer]:
    """Return a ModelInferResponse message in parts.

    Args:
      response: Without an error.
      request: Says which outputs were asked for; None means all.

    Returns:
      Parts to be written in order. Large ones are borrowed from the response's tensors.

    Raises:
      RequestError: the message is larger than a client may receive, or an output has no classes.
    """
    parts = _message(response, requested_outputs(response, request), b"")
    _check_size(parts)
    return parts


def encode_stream_response(
    response: InferResponse, request: InferRequest | None = None, *, enqueued: bool = True
) -> list[Buffer]:
    """Return a ModelStreamInferResponse message in parts.

    Args:
      response: May hold an error, or be an empty final response.
      request: Says which outputs were asked for; None means all.
      enqueued: False for the error of a request that never reached its model; it carries no more
        than the request's id.

    Raises:
      RequestError: the message is larger than a client may receive, or an output has no classes.
    """
    error = b"" if response.error is None else text_field(1, response.error.message)
    if not enqueued:
        return [error + length_delimited(2, text_field(3, response.id))]
    final = _parameter(FINAL_RESPONSE, response.final)
    outputs: list[Tensor] = []
    if response.error is None and not response.empty:
        outputs = requested_outputs(response, request)
    parts = _message(response, outputs, final)
    size = sum(map(len, parts))
    parts[0] = b"".join((error, b"\x12", varint(size), parts[0]))
    _check_size(parts)
    return parts


def _message(response: InferResponse, outputs: list[Tensor], extra: bytes) -> list[Buffer]:
    """Return a ModelInferResponse; `extra` are parameters beside the response's own."""
    key = (response.model_name, response.model_version)
    pieces: list[Buffer] = [_models.get(key) or _model(key)]
    if response.id:
        pieces.append(text_field(3, response.id))
    if response.parameters:
        pieces.append(_parameters(response.parameters))
    if extra:
        pieces.append(extra)
    for tensor in outputs:
        output = (tensor.name, tensor.datatype, tensor.shape)
        pieces.append(_outputs.get(output) or _output(output))
    parts: list[Buffer] = []
    for tensor in outputs:
        raw = tensor.raw
        size = len(raw)
        pieces.append(_RAW_TAG + varint(size))
        if size <= JOINED_BYTES_MAX:
            pieces.append(raw)
        else:
            parts.append(b"".join(pieces))
            parts.append(raw)
            pieces = []
    if pieces or not parts:
        parts.append(b"".join(pieces))
    return parts


def _model(key: tuple[str, str]) -> bytes:
    piece = text_field(1, key[0]) + text_field(2, key[1])
    if len(_models) >= CACHED_PIECES_MAX:
        _models.clear()
    _models[key] = piece
    return piece


def _output(key: tuple[str, str, Shape]) -> bytes:
    name, datatype, shape = key
    dims = b"".join(map(varint, shape))
    tensor = text_field(1, name) + text_field(2, datatype)
    piece = length_delimited(5, tensor + (length_delimited(3, dims) if dims else b""))
    if len(_outputs) >= CACHED_PIECES_MAX:
        _outputs.clear()
    _outputs[key] = piece
    return piece


def _parameters(parameters: Parameters) -> bytes:
    return b"".join(_parameter(name, value) for name, value in parameters.items())


def _parameter(name: str, value: ParameterValue) -> bytes:
    """Return one entry of the map `parameters` (field 4)."""
    if isinstance(value, bool):
        choice = b"\x08\x01" if value else b"\x08\x00"
    elif isinstance(value, int):
        if -(2**63) <= value < 2**63:
            choice = b"\x10" + varint(value)
        elif value < 2**64 and value > 0:
            choice = b"\x28" + varint(value)
        else:
            raise RequestError(
                ErrorCode.UNSUPPORTED, f"response parameter '{name}' is beyond 64 bits: {value}"
            )
    elif isinstance(value, float):
        choice = b"\x21" + _DOUBLE.pack(value)
    elif isinstance(value, str):
        choice = length_delimited(3, value.encode(errors="replace"))
    else:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"response parameter '{name}' must be a bool, int, float or str, got "
            f"{type(value).__name__}",
        )
    return length_delimited(4, text_field(1, name) + length_delimited(2, choice))


def _check_size(parts: list[Buffer]) -> None:
    if len(parts) > 1 and (size := sum(map(len, parts))) > MESSAGE_BYTES_MAX:
        raise invalid_argument(
            f"the response has {size} bytes, over the limit of {MESSAGE_BYTES_MAX} bytes of a gRPC "
            "message"
        )
