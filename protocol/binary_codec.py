"""Inference requests and responses over HTTP: a JSON part, then the tensors as binary blobs.

A client that sends the same kind of request again sends the same JSON part, so parsed ones are
kept by their bytes. Responses are put together from encoded pieces kept the same way.
Source: KServe v2 with the binary tensor data extension; Triton's raw-binary requests.
"""

from __future__ import annotations

from typing import Final

import orjson

from .dtypes import BYTES, ITEM_SIZE_BYTES
from .errors import invalid_argument
from .json_codec import RequestHeader, parse_header
from .json_tensors import json_from_tensor
from .json_text import dump_json
from .model_spec import ModelSpec
from .request_rules import element_count
from .requests import InferRequest, InferResponse
from .tensors import Buffer, Shape, Tensor
from .wording import quoted

HEADER_NAME: Final = "Inference-Header-Content-Length"
INPUT_BYTES_MAX: Final = 67108864
"""Default of --http-max-input-size, as Triton's."""
CACHED_HEADER_BYTES_MAX: Final = 4096
"""Longer JSON parts are parsed each time: parsing is then little beside the rest."""
CACHED_HEADERS_MAX: Final = 256
"""Kept JSON parts; with the one above this bounds the cache to a few MiB."""
CACHED_PIECES_MAX: Final = 1024
"""Kept pieces of responses; variable shapes could make any number of them."""
DIGITS_MAX: Final = 19
"""Digits of the largest int64; anything longer is out of range."""

_headers: dict[bytes, RequestHeader] = {}
_models: dict[tuple[str, str], bytes] = {}
_binary_outputs: dict[tuple[str, str, Shape, int], bytes] = {}


def parse_header_length(value: bytes | None, content_length: int | None) -> int | None:
    """Return the length of the JSON part, or None if the whole body is JSON.

    Args:
      value: The header's value, or None without the header.
      content_length: Bytes of the body (decompressed), or None while it is unknown.

    Raises:
      RequestError: INVALID_ARG; not a decimal integer from 0 to the content length.
    """
    if value is None:
        return None
    text = value.strip(b" \t")
    digits = text.removeprefix(b"-")
    shown_value = quoted(text.decode("latin-1"))
    if not digits.isdigit():
        raise invalid_argument(f"{HEADER_NAME} must be an integer, got {shown_value}")
    in_range = digits is text and len(text) <= DIGITS_MAX
    length = int(text) if in_range else -1
    if length < 0 or (content_length is not None and length > content_length):
        most = "the content length" if content_length is None else str(content_length)
        raise invalid_argument(f"{HEADER_NAME} must be in the range 0 to {most}, got {shown_value}")
    return length


def decode_infer(
    body: Buffer,
    *,
    header_length: int | None,
    spec: ModelSpec,
    model_name: str,
    model_version: str,
    limit_bytes: int = INPUT_BYTES_MAX,
) -> InferRequest:
    """Return the request in the body of an infer call, not yet checked against the model.

    Args:
      body: The decompressed body. Binary tensors are views on it, so it must not change.
      header_length: Bytes of the JSON part; 0 for a body that is the data of the single input;
        None if all is JSON.
      spec: The model, for bodies without JSON.
      model_name: As asked for.
      model_version: As asked for; "" for the latest.
      limit_bytes: Most bytes of the JSON part, of an input in it, and of a body without JSON.

    Raises:
      RequestError: INVALID_ARG; states what was expected and what came.
    """
    size = len(body)
    if header_length is None:
        header_length = size
    elif header_length == 0:
        return _decode_single_input(body, spec, model_name, model_version, limit_bytes)
    elif header_length > size:
        raise invalid_argument(
            f"{HEADER_NAME} promises {header_length} bytes of JSON, but {header_length - size} of "
            "them are missing"
        )
    if header_length > limit_bytes:
        raise invalid_argument(
            f"the JSON part of the request has {header_length} bytes, over the limit of "
            f"{limit_bytes} bytes set by --http-max-input-size"
        )
    text = bytes(body if header_length == size else body[:header_length])
    header = _headers.get(text)
    if header is None:
        header = parse_header(text, limit_bytes)
        if header.reusable and header_length <= CACHED_HEADER_BYTES_MAX:
            if len(_headers) >= CACHED_HEADERS_MAX:
                _headers.clear()
            _headers[text] = header
    request = header.request.without_inputs(model_name, model_version)
    inputs = request.inputs
    view = memoryview(body)
    start = header_length
    for name, datatype, shape, byte_size, tensor in header.inputs:
        if tensor is None:
            end = start + byte_size
            tensor = Tensor(name, datatype, shape, raw=view[start:end])  # noqa: PLW2901 - its blob
            start = end
        inputs[name] = tensor
    if start != size:
        _check_blob_sizes(header, size - header_length, model_name)
    return request


def _check_blob_sizes(header: RequestHeader, size: int, model_name: str) -> None:
    """Say which input the blobs are too short for, or that bytes are left over."""
    start = 0
    for name, _, _, byte_size, _ in header.inputs:
        start += byte_size
        if start > size:
            raise invalid_argument(
                f"input {quoted(name)} of model {quoted(model_name)} has a 'binary_data_size' of "
                f"{byte_size}, but {start - size} bytes of it are missing from the request"
            )
    raise invalid_argument(
        f"expected {start} bytes of binary input data for model {quoted(model_name)}, got "
        f"{size - start} extra bytes"
    )


def _decode_single_input(
    body: Buffer, spec: ModelSpec, model_name: str, model_version: str, limit_bytes: int
) -> InferRequest:
    """Return the request whose body is the data of the model's only input."""
    size = len(body)
    if size > limit_bytes:
        raise invalid_argument(
            f"the request has {size} bytes of raw input, over the limit of {limit_bytes} bytes set "
            "by --http-max-input-size"
        )
    if len(spec.inputs) != 1:
        raise invalid_argument(
            f"a raw binary request needs a model with exactly one input, '{spec.name}' has "
            f"{len(spec.inputs)}"
        )
    if not size:
        raise invalid_argument(
            f"a raw binary request for model '{spec.name}' needs input data, got no bytes"
        )
    (expected,) = spec.inputs.values()
    dims = expected.dims
    raw: Buffer = memoryview(body)
    if expected.datatype == BYTES:
        if dims != (1,):
            raise invalid_argument(
                f"a raw binary request needs shape [1] for BYTES, but input '{expected.name}' of "
                f"model '{spec.name}' has shape {list(dims)}"
            )
        raw = size.to_bytes(4, "little") + bytes(body)
    elif dims.count(-1) > 1:
        raise invalid_argument(
            f"the shape {list(dims)} of input '{expected.name}' of model '{spec.name}' cannot be "
            "deduced from a raw binary request: more than one dimension is variable"
        )
    elif -1 in dims:
        fixed = tuple(dim for dim in dims if dim != -1)
        stride = element_count(expected.name, expected.datatype, fixed)
        stride *= ITEM_SIZE_BYTES[expected.datatype]
        if size % stride:
            raise invalid_argument(
                f"input '{expected.name}' of model '{spec.name}' needs a multiple of {stride} "
                f"bytes, got {size} bytes"
            )
        dims = tuple(size // stride if dim == -1 else dim for dim in dims)
    shape = (1, *dims) if spec.max_batch_size > 0 else dims
    request = InferRequest(model_name, model_version)
    request.binary_default = True
    request.inputs[expected.name] = Tensor(expected.name, expected.datatype, shape, raw=raw)
    return request


def encode_infer_response(
    response: InferResponse, request: InferRequest
) -> tuple[list[Buffer], int | None]:
    """Return the body of a successful answer.

    Args:
      response: Without an error; outputs that were not asked for are left out.
      request: Says which outputs, and which of them as binary data.

    Returns:
      The parts of the body, and the bytes of its JSON part if binary data follows it. Parts are
      borrowed from the response's tensors.

    Raises:
      RequestError: an output has no JSON form and was not asked for as binary data.
    """
    binary_default = request.binary_default
    wanted = {output.name: output.binary for output in request.outputs}
    texts: list[bytes] = []
    parts: list[Buffer] = [b""]
    for tensor in response.outputs:
        name = tensor.name
        binary: bool | None = binary_default
        if wanted:
            if name not in wanted:
                continue
            binary = wanted[name]
            if binary is None:
                binary = binary_default
        if binary:
            raw = tensor.raw
            key = (name, tensor.datatype, tensor.shape, len(raw))
            texts.append(_binary_outputs.get(key) or _binary_output(key))
            if key[3]:
                parts.append(raw)
        else:
            start = _output_start(name, tensor.datatype, tensor.shape)
            texts.append(b'%b,"data":%b}' % (start, json_from_tensor(tensor)))
    header = _start(response) + b",".join(texts) + b"]}"
    parts[0] = header
    return parts, len(header) if len(parts) > 1 else None


def _start(response: InferResponse) -> bytes:
    """Return the members before the outputs."""
    key = (response.model_name, response.model_version)
    model = _models.get(key)
    if model is None:
        name, version = map(orjson.dumps, key)
        model = b'"model_name":%b,"model_version":%b,"outputs":[' % (name, version)
        if len(_models) >= CACHED_PIECES_MAX:
            _models.clear()
        _models[key] = model
    if response.parameters:
        parameters = b'"parameters":' + dump_json(response.parameters) + b',"outputs":['
        model = model.removesuffix(b'"outputs":[') + parameters
    if response.id:
        return b'{"id":%b,%b' % (orjson.dumps(response.id), model)
    return b"{" + model


def _output_start(name: str, datatype: str, shape: Shape) -> bytes:
    dims = ",".join(map(str, shape))
    return b'{"name":%b,"datatype":"%b","shape":[%b]' % (
        orjson.dumps(name),
        datatype.encode(),
        dims.encode(),
    )


def _binary_output(key: tuple[str, str, Shape, int]) -> bytes:
    name, datatype, shape, size = key
    start = _output_start(name, datatype, shape)
    text = b'%b,"parameters":{"binary_data_size":%d}}' % (start, size)
    if len(_binary_outputs) >= CACHED_PIECES_MAX:
        _binary_outputs.clear()
    _binary_outputs[key] = text
    return text
