from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.json_codec import (
    PRINTED_BYTES_MAX,
    encode_infer_response,
    prints_much,
)
from tritrio.protocol.requests import InferResponse, RequestedOutput
from tritrio.protocol.tensors import Tensor, encode_bytes_elements

from .infer_specs import (
    Refused,
    answer,
    request,
)


def test_a_json_answer_has_its_members_in_order() -> None:
    text, header_length = answer(
        Tensor("OUT", "INT32", (2, 2), array=np.array([[1, 2], [3, 4]], np.int32)),
        Tensor("B", "BOOL", (2,), array=np.array([True, False])),
        request_id='i"d',
    )
    assert header_length is None
    assert text == (
        b'{"id":"i\\"d","model_name":"m","model_version":"1","outputs":['
        b'{"name":"OUT","datatype":"INT32","shape":[2,2],"data":[1,2,3,4]},'
        b'{"name":"B","datatype":"BOOL","shape":[2],"data":[true,false]}]}'
    )


def test_response_parameters_stand_before_the_outputs() -> None:
    response = InferResponse("m", "1")
    response.parameters = {"a": True, "b": 1, "c": 0.5, "d": "x"}
    parts, _ = encode_infer_response(response, request())
    assert b"".join(parts) == (
        b'{"model_name":"m","model_version":"1",'
        b'"parameters":{"a":true,"b":1,"c":0.5,"d":"x"},"outputs":[]}'
    )


@pytest.mark.parametrize("count", [3, 300])
def test_floats_print_as_doubles_and_non_finite_ones_as_literals(count: Any) -> None:
    fp32 = Tensor("OUT", "FP32", (count,), array=np.full(count, 0.1, np.float32))
    text, _ = answer(fp32)
    assert b'"data":[0.10000000149011612,0.10000000149011612,' in text
    values = np.full(count, np.nan)
    values[1:3] = [np.inf, -np.inf]
    text, _ = answer(Tensor("OUT", "FP64", (count,), array=values))
    assert b'"data":[NaN,Infinity,-Infinity' in text


def test_non_contiguous_arrays_are_row_major() -> None:
    array = np.arange(200, dtype=np.int64).reshape(10, 20).T
    text, _ = answer(Tensor("OUT", "INT64", (20, 10), array=array))
    assert json.loads(text)["outputs"][0]["data"] == array.ravel().tolist()


def test_binary_answers_follow_the_json_part_in_output_order() -> None:
    asked = request(outputs=(RequestedOutput("A", binary=True), RequestedOutput("B")))
    a = Tensor("A", "INT32", (1,), raw=b"\1\0\0\0")
    b = Tensor("B", "INT32", (1,), raw=b"\2\0\0\0")
    c = Tensor("C", "INT32", (1,), raw=b"\3\0\0\0")
    for _ in range(2):
        text, header_length = answer(b, c, a, asked=asked)
        assert header_length is not None
        assert text[:header_length] == (
            b'{"model_name":"m","model_version":"1","outputs":['
            b'{"name":"B","datatype":"INT32","shape":[1],"data":[2]},'
            b'{"name":"A","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}]}'
        )
        assert text[header_length:] == b"\1\0\0\0"
    asked.binary_default = True
    text, header_length = answer(b, c, a, asked=asked)
    assert text[header_length:] == b"\2\0\0\0\1\0\0\0"
    asked.outputs = (RequestedOutput("A", binary=False),)
    assert answer(a, asked=asked)[1] is None


def test_an_empty_binary_output_adds_nothing_and_leaves_a_json_answer() -> None:
    text, header_length = answer(
        Tensor("OUT", "FP32", (0, 2), raw=b""), asked=request(binary_default=True)
    )
    assert header_length is None
    assert json.loads(text)["outputs"] == [
        {
            "name": "OUT",
            "datatype": "FP32",
            "shape": [0, 2],
            "parameters": {"binary_data_size": 0},
        }
    ]


def test_raw_bytes_elements_of_a_model_must_be_well_formed() -> None:
    good = encode_bytes_elements([b"a"])
    with Refused("'OUT'", "BYTES", code=ErrorCode.INTERNAL):
        answer(Tensor("OUT", "BYTES", (1,), raw=good + b"\0"))


MANY = 2 * PRINTED_BYTES_MAX // 4 + 3
LARGE = {
    "FP32": np.linspace(0, 1, MANY, dtype=np.float32),
    "INT8": np.arange(4 * MANY).astype(np.int8),
    "INT64": np.arange(2 * MANY, dtype=np.int64).reshape(2, -1).T,
    "BOOL": np.arange(4 * MANY) % 3 == 0,
}


@pytest.mark.parametrize("datatype", LARGE)
def test_large_outputs_print_as_small_ones_do(datatype: str) -> None:
    array = LARGE[datatype]
    text, _ = answer(Tensor("OUT", datatype, array.shape, array=array))
    assert json.loads(text)["outputs"][0]["data"] == array.ravel().tolist()
    assert b", " not in text


def test_large_outputs_of_bytes_print_as_small_ones_do() -> None:
    elements = [f"element {number}".encode() for number in range(MANY)]
    raw = encode_bytes_elements(elements)
    text, _ = answer(Tensor("OUT", "BYTES", (MANY,), raw=raw))
    assert json.loads(text)["outputs"][0]["data"] == [element.decode() for element in elements]


def test_non_finite_elements_of_large_outputs_print_as_literals() -> None:
    array = np.zeros(MANY)
    array[[0, -1]] = np.nan
    text, _ = answer(Tensor("OUT", "FP64", (MANY,), array=array))
    assert b'"data":[NaN,0.0' in text
    assert text.endswith(b",NaN]}]}")


@pytest.mark.parametrize(
    ("count", "outputs", "much"),
    [
        (PRINTED_BYTES_MAX // 4, [], False),
        (PRINTED_BYTES_MAX // 4 + 1, [], True),
        (PRINTED_BYTES_MAX // 4 + 1, [RequestedOutput("OUT", binary=True)], False),
        (PRINTED_BYTES_MAX // 4 + 1, [RequestedOutput("OUT", binary=False)], True),
    ],
)
def test_only_large_outputs_to_be_printed_are_work_for_a_thread(
    count: int, outputs: list[RequestedOutput], *, much: bool
) -> None:
    tensor = Tensor("OUT", "FP32", (count,), array=np.zeros(count, np.float32))
    asked = request()
    asked.outputs = tuple(outputs)
    assert prints_much(InferResponse("m", "1", "", [tensor]), asked) is much
    raw = Tensor("OUT", "FP32", (count,), raw=bytes(4 * count))
    assert prints_much(InferResponse("m", "1", "", [raw]), asked) is much
