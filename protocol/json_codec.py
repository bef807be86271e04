"""Inference requests and responses over HTTP: a JSON part, and tensors as binary blobs behind it.

A client that sends the same kind of request again sends the same JSON part but for the id, so
parsed ones are kept by their bytes. Responses are put together from encoded pieces kept the same
way.
Source: KServe v2 with the binary tensor data extension; Triton's raw-binary requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import orjson

from .binary_codec import HEADER_NAME, decode_single_input, parse_header_length
from .dtypes import BYTES
from .errors import invalid_argument
from .json_header import RequestHeader, parse_header
from .json_tensors import json_from_tensor
from .json_text import dump_json
from .model_spec import ModelSpec
from .requested_outputs import requested_outputs
from .requests import InferRequest, InferResponse
from .tensors import Buffer, Shape, Tensor
from .wording import quoted

__all__ = [
    "INPUT_BYTES_MAX",
    "decode_infer",
    "encode_infer_response",
    "parse_header_length",
    "prints_much",
]

INPUT_BYTES_MAX: Final = 67108864
"""Default of --http-max-input-size, as Triton's."""
CACHED_HEADER_BYTES_MAX: Final = 4096
"""Longer JSON parts are parsed each time: parsing is then little beside the rest."""
CACHED_HEADERS_MAX: Final = 256
"""Kept JSON parts; with the one above this bounds the cache to a few MiB."""
CACHED_PIECES_MAX: Final = 1024
"""Kept pieces of responses; variable shapes could make any number of them."""

PRINTED_BYTES_MAX: Final = 128 * 1024
"""Tensors up to this size are printed as JSON at once: 32,768 of FP32 take 2.5 ms. Larger ones are
printed in pieces of this size, between which a thread lets the event loop have its turn."""

_ID_START = b'{"id":"'
_headers: dict[bytes, RequestHeader] = {}
_models: dict[tuple[str, str], bytes] = {}
_binary_outputs: dict[tuple[str, str, Shape, int], bytes] = {}


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
        return decode_single_input(body, spec, model_name, model_version, limit_bytes)
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
    key, request_id = _header_key(text)
    header = _headers.get(key)
    if header is None:
        header = parse_header(text, limit_bytes)
        if header.reusable and header_length <= CACHED_HEADER_BYTES_MAX:
            if len(_headers) >= CACHED_HEADERS_MAX:
                _headers.clear()
            _headers[key] = header
    request = header.request.without_inputs(model_name, model_version)
    if request_id is not None:
        request.id = request_id
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


def _header_key(text: bytes) -> tuple[bytes, str | None]:
    """Return what a JSON part is kept by, and the id where that leaves it out.

    Clients count their requests in the id, which they write first.
    """
    if not text.startswith(_ID_START):
        return text, None
    stop = text.find(b'"', len(_ID_START))
    request_id = str(text[len(_ID_START) : stop], "latin-1")
    if not request_id.isascii() or not request_id.isprintable() or "\\" in request_id or stop < 0:
        return text, None
    return _ID_START + text[stop:], request_id


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
      RequestError: an output has no JSON form and was not asked for as binary data, or it has no
        classes.
    """
    binary_default = request.binary_default
    shared = request.shared_memory
    wanted = {output.name: output.binary for output in request.outputs}
    texts: list[bytes] = []
    parts: list[Buffer] = [b""]
    for tensor in requested_outputs(response, request):
        name = tensor.name
        if shared is not None and name in shared.outputs:
            texts.append(_output_start(name, tensor.datatype, tensor.shape) + b"}")
            continue
        binary = wanted.get(name)
        if binary or (binary is None and binary_default):
            raw = tensor.raw
            key = (name, tensor.datatype, tensor.shape, len(raw))
            texts.append(_binary_outputs.get(key) or _binary_output(key))
            if key[3]:
                parts.append(raw)
        else:
            start = _output_start(name, tensor.datatype, tensor.shape)
            if _printed_bytes(tensor) > PRINTED_BYTES_MAX:
                texts.append(b"".join([start, b',"data":[', *_json_pieces(tensor), b"]}"]))
            else:
                texts.append(b'%b,"data":%b}' % (start, json_from_tensor(tensor)))
    # Beyond a mebibyte a join lets other threads run, a sum does not.
    header = b"".join((_start(response), b",".join(texts), b"]}"))
    parts[0] = header
    return parts, len(header) if len(parts) > 1 else None


def prints_much(response: InferResponse, request: InferRequest) -> bool:
    """Whether an answer has so much to print as JSON that encoding it is work for a thread."""
    size = 0
    for tensor in response.outputs:
        raw = tensor.given_raw
        size += len(raw) if raw is not None else _printed_bytes(tensor)
    if size <= PRINTED_BYTES_MAX:
        return False
    wanted = {output.name: output.place or output.binary for output in request.outputs}
    for tensor in response.outputs:
        binary = wanted.get(tensor.name)
        if binary or (binary is None and request.binary_default):
            size -= _printed_bytes(tensor)
    return size > PRINTED_BYTES_MAX


def _printed_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; of BYTES without a raw form those of the lengths alone."""
    raw = tensor.given_raw
    if raw is not None:
        return len(raw)
    if tensor.datatype == BYTES:
        return 4 * prod(tensor.shape)
    return tensor.byte_size


def _json_pieces(tensor: Tensor) -> Iterator[bytes]:
    """Yield the elements as JSON, the commas between the pieces too, without the brackets."""
    flat = tensor.array.reshape(-1)
    step = max(1, flat.size * PRINTED_BYTES_MAX // _printed_bytes(tensor))
    for start in range(0, flat.size, step):
        elements = flat[start : start + step]
        piece = Tensor(tensor.name, tensor.datatype, elements.shape, array=elements)
        if start:
            yield b","
        yield json_from_tensor(piece)[1:-1]


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
