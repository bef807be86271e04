"""Inference requests over HTTP that are, or hold, binary data.

`Inference-Header-Content-Length` says where the JSON part of a body ends; 0 says that there is
none and that the body is the data of the model's only input.
Source: KServe v2 binary tensor data extension; Triton's raw-binary requests.
"""

from __future__ import annotations

from typing import Final

from .dtypes import BYTES, ITEM_SIZE_BYTES
from .errors import invalid_argument
from .model_spec import ModelSpec
from .request_rules import element_count
from .requests import InferRequest
from .tensors import Buffer, Tensor
from .wording import quoted

HEADER_NAME: Final = "Inference-Header-Content-Length"
DIGITS_MAX: Final = 19
"""Digits of the largest int64; anything longer is out of range."""


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


def decode_single_input(
    body: Buffer, spec: ModelSpec, model_name: str, model_version: str, limit_bytes: int
) -> InferRequest:
    """Return the request whose body is the data of the model's only input.

    The batch size is 1, and one variable dimension is computed from the size.

    Raises:
      RequestError: INVALID_ARG; the shape cannot be told, or the body does not fit it.
    """
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
