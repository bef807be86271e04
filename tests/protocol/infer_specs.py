"""Small builders of model specs and request bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.json_codec import INPUT_BYTES_MAX, decode_infer, encode_infer_response
from tritrio.protocol.model_spec import InputSpec, ModelSpec, OutputSpec
from tritrio.protocol.request_rules import validate
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Buffer, Shape, Tensor

PROPERTY = settings(max_examples=150, derandomize=True, deadline=None)
"""How property tests of codecs run."""


def spec(
    *inputs: InputSpec,
    outputs: Sequence[str] = ("OUT",),
    max_batch_size: int = 0,
    correlation_id: tuple[str, str] | None = None,
    sequences: bool = False,
    iterative: bool = False,
) -> ModelSpec:
    """A model 'm' version 1 with the given inputs, or one INT32[-1] input 'IN'."""
    return ModelSpec(
        "m",
        "1",
        inputs=list(inputs) or [InputSpec("IN", "INT32", (-1,), batches=max_batch_size > 0)],
        outputs=[OutputSpec(name, "INT32", (-1,)) for name in outputs],
        max_batch_size=max_batch_size,
        correlation_id=correlation_id,
        sequences=sequences,
        iterative=iterative,
    )


def request(*tensors: Tensor, **attributes: Any) -> InferRequest:
    """A request for 'm' with the given inputs."""
    made = InferRequest("m")
    made.inputs = {tensor.name: tensor for tensor in tensors}
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def zeros(shape: Shape, name: str = "IN", datatype: str = "INT32", *, size: int = 4) -> Tensor:
    """A raw tensor of zeros whose elements have `size` bytes."""
    count = 1
    for dim in shape:
        count *= dim
    return Tensor(name, datatype, shape, raw=bytes(max(0, count) * size))


def body(
    *inputs: dict[str, Any], outputs: list[dict[str, Any]] | None = None, **members: Any
) -> bytes:
    """A JSON request body."""
    document: dict[str, Any] = {**members, "inputs": list(inputs)}
    if outputs is not None:
        document["outputs"] = outputs
    return json.dumps(document, separators=(",", ":")).encode()


def json_input(data: Any, datatype: str = "INT32", shape: list[Any] | None = None) -> Any:
    """An input 'IN' with inline data, by default of shape [elements]."""
    return {
        "name": "IN",
        "shape": [len(data)] if shape is None else shape,
        "datatype": datatype,
        "data": data,
    }


def blob_input(size: Any, shape: list[int], name: str = "IN", datatype: str = "INT32") -> Any:
    """An input whose data is a binary blob."""
    return {
        "name": name,
        "shape": shape,
        "datatype": datatype,
        "parameters": {"binary_data_size": size},
    }


def decode(
    text: Buffer,
    *,
    header_length: int | None = None,
    model: ModelSpec | None = None,
    limit_bytes: int = INPUT_BYTES_MAX,
) -> InferRequest:
    """Decode and validate an HTTP body."""
    model = spec() if model is None else model
    made = decode_infer(
        text,
        header_length=header_length,
        spec=model,
        model_name="m",
        model_version="",
        limit_bytes=limit_bytes,
    )
    validate(made, model)
    return made


def answer(
    *outputs: Tensor, asked: InferRequest | None = None, request_id: str = ""
) -> tuple[bytes, int | None]:
    """The HTTP body of a response of 'm' version 1, and the length of its JSON part."""
    response = InferResponse("m", "1", request_id, list(outputs))
    parts, header_length = encode_infer_response(response, asked or request())
    return b"".join(parts), header_length


class Refused:
    """Context manager: expects a RequestError with a code and facts in its message."""

    def __init__(self, *facts: str, code: ErrorCode = ErrorCode.INVALID_ARG) -> None:
        self.facts = facts
        self.code = code

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            pytest.fail("nothing was refused")
        if not isinstance(error, RequestError):
            return False
        assert error.code is self.code, error.message
        for fact in self.facts:
            assert fact in error.message
        assert len(error.message) < 1500
        return True
