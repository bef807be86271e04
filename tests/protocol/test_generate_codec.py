"""The generate calls: how a flat JSON object becomes a request, and responses become one."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.generate_codec import (
    check_coding,
    decode_generate,
    encode_generate,
    server_sent_event,
)
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb.inference import DataType, ModelConfig, ModelInput
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Tensor


def spec(*, max_batch_size: int = 8, **dims: list[int]) -> ModelSpec:
    """A model with these inputs: TEXT is a STRING, HALF an FP16, all others are INT32."""
    kinds = {"TEXT": DataType.TYPE_STRING, "HALF": DataType.TYPE_FP16}
    inputs = [
        ModelInput(name=name, data_type=kinds.get(name, DataType.TYPE_INT32), dims=each)
        for name, each in dims.items()
    ]
    return ModelSpec.from_config(
        ModelConfig(name="m", input=inputs, max_batch_size=max_batch_size), 1
    )


def decode(body: Any, model: ModelSpec, *, limit_bytes: int = 1000) -> InferRequest:
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    return decode_generate(
        text, spec=model, model_name="m", model_version="", limit_bytes=limit_bytes
    )


def fault(body: Any, model: ModelSpec, **more: int) -> str:
    with pytest.raises(RequestError) as caught:
        decode(body, model, **more)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_members_are_inputs_or_parameters() -> None:
    request = decode(
        {"TEXT": "hi", "A": [1, 2], "stream": True, "top": 0.5, "id": "r", "parameters": {"n": 3}},
        spec(TEXT=[1], A=[2]),
    )
    assert request.inputs["TEXT"].shape == (1, 1)
    assert request.inputs["TEXT"].array.tolist() == [[b"hi"]]
    assert request.inputs["A"].array.tolist() == [[1, 2]]
    assert request.id == "r"
    assert request.parameters == {"stream": True, "top": 0.5, "id": "r", "n": 3}


def test_reserved_parameters_are_not_the_models() -> None:
    request = decode(
        {"A": 1, "sequence_id": 7, "sequence_start": True, "priority": 2, "timeout": 5},
        spec(A=[1]),
    )
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (7, True, False)
    assert (request.priority, request.timeout_us, request.parameters) == (2, 5, {})


@pytest.mark.parametrize(
    ("batch", "dims", "count", "shape"),
    [
        (0, [1], 1, (1,)),
        (0, [-1], 5, (5,)),
        (0, [-1], 0, (0,)),
        (0, [2, 3], 6, (2, 3)),
        (0, [-1, 2], 6, (3, 2)),
        (0, [-1, 2, -1], 6, (1, 2, 3)),
        (8, [1], 1, (1, 1)),
        (8, [1], 3, (3, 1)),
        (8, [-1], 3, (1, 3)),
        (8, [2, -1, 3], 12, (1, 2, 2, 3)),
        (8, [-1, 2], 0, (1, 0, 2)),
        (0, [0], 0, (0,)),
    ],
)
def test_the_innermost_variable_dimension_takes_the_elements(
    batch: int, dims: list[int], count: int, shape: tuple[int, ...]
) -> None:
    request = decode({"A": list(range(count))}, spec(max_batch_size=batch, A=dims))
    assert request.inputs["A"].shape == shape
    assert request.inputs["A"].array.ravel().tolist() == list(range(count))


@pytest.mark.parametrize(
    ("batch", "dims", "count"),
    [(0, [2], 1), (0, [2], 4), (0, [-1, 2], 3), (8, [2, -1, 3], 8), (0, [0], 1), (0, [1], 0)],
)
def test_elements_that_fit_no_shape_are_refused(batch: int, dims: list[int], count: int) -> None:
    text = fault({"A": list(range(count))}, spec(max_batch_size=batch, A=dims))
    assert "input 'A' has shape" in text
    assert text.endswith(f"the number of its elements, {count}")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"A": [[1, 2]]}, "input 'A' must be one element or a flat array"),
        ({"A": "x"}, "input 'A' must hold integers"),
        ({"A": 2.5}, "input 'A' must hold integers"),
        ({"A": None}, "input 'A' must hold integers"),
        ({"A": 2**31}, "input 'A' must hold integers"),
        ({"TEXT": 5}, "input 'TEXT' must hold strings"),
        ({"HALF": 1.5}, "input 'HALF' of datatype FP16 has no JSON form"),
        (
            {"TXET": ["a"]},
            "'TXET' must be one of the inputs ['A', 'TEXT', 'HALF'] to have elements",
        ),
        ({"x": {"y": 1}}, "parameter 'x' must be"),
        ({"x": None}, "parameter 'x' must be"),
        ({"x": 2**63}, "parameter 'x' must be"),
        ({"triton_x": 1}, "parameter 'triton_x' starts with the reserved prefix"),
        ({"sequence_start": 1}, "parameter 'sequence_start' must be a boolean"),
        ({"parameters": 5}, "member 'parameters' of the request must be an object, got 5"),
        ({"parameters": {"A": 1}}, "'A' is an input of the model"),
        ({"x": 1, "parameters": {"x": 1}}, "'x' is given twice"),
        ({"id": 5}, "member 'id' of the request must be a string, got 5"),
        ([1], "expected a JSON object at byte 0"),
        (b"", "got no bytes"),
        (b"{", "is not valid JSON"),
        (b'{"A":1,"A":2}', "has the member 'A' more than once"),
    ],
)
def test_what_is_wrong_is_named(body: Any, told: str) -> None:
    assert told in fault(body, spec(A=[1], TEXT=[1], HALF=[1]))


def test_an_input_may_be_called_parameters() -> None:
    request = decode({"parameters": 5}, spec(parameters=[1]))
    assert request.inputs["parameters"].array.tolist() == [[5]]


def test_body_and_inputs_together_have_a_limit() -> None:
    model = spec(A=[-1], B=[-1])
    body = {"A": [1] * 10, "B": [1] * 10}
    assert len(decode(body, model, limit_bytes=80).inputs) == 2
    assert fault(body, model, limit_bytes=79) == (
        "with input 'B' of 40 bytes the inputs have 80 bytes, over the limit of 79 bytes set by "
        "--http-max-input-size"
    )
    assert "the request has 53 bytes, over the limit of 52" in fault(body, model, limit_bytes=52)


def test_a_response_is_one_sorted_object() -> None:
    outputs = [
        Tensor("two", "INT32", (1, 2), array=np.array([[1, 2]], np.int32)),
        Tensor("one", "BYTES", (1,), array=np.array([b'a"b'], np.object_)),
        Tensor("none", "FP32", (0,), array=np.zeros(0, np.float32)),
    ]
    response = InferResponse("m", "3", "r", outputs)
    response.parameters = {"late": True}
    assert encode_generate(response) == (
        b'{"id":"r","late":true,"model_name":"m","model_version":"3","none":[],'
        b'"one":"a\\"b","two":[1,2]}'
    )


def test_an_event_is_one_line_of_data() -> None:
    assert server_sent_event(b'{"a":1}') == b'data: {"a":1}\n\n'


@pytest.mark.parametrize("coding", [b"", b"identity", b" Identity "])
def test_bodies_may_say_that_they_are_not_compressed(coding: bytes) -> None:
    check_coding(coding)


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"identity, gzip"])
def test_compressed_bodies_are_refused(coding: bytes) -> None:
    with pytest.raises(
        RequestError,
        match=f"a request without compression, got Content-Encoding '{coding.decode()}'",
    ) as caught:
        check_coding(coding)
    assert caught.value.code is ErrorCode.INVALID_ARG
