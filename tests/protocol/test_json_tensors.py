from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritrio.protocol.json_tensors import tensor_from_json
from tritrio.protocol.model_spec import InputSpec
from tritrio.protocol.tensors import Tensor

from .infer_specs import (
    PROPERTY,
    Refused,
    answer,
    blob_input,
    body,
    decode,
    json_input,
    spec,
)

FP32_IN = spec(InputSpec("IN", "FP32", (-1,)))
BYTES_IN = spec(InputSpec("IN", "BYTES", (-1,)))


@pytest.mark.parametrize(
    ("shape", "got"),
    [
        ([2, -5], "got -5"),
        ([-1], "got -1"),
        ([1.5], "got 1.5"),
        (["2"], "got '2'"),
        ([True], "got true"),
        ([2**63], f"got {2**63}"),
        (2, "got 2"),
    ],
)
def test_shapes_hold_non_negative_integers(shape: Any, got: Any) -> None:
    with Refused("'shape'", "'IN'", "integers >= 0", got):
        decode(body({"name": "IN", "datatype": "INT32", "shape": shape, "data": [1, 2]}))


def test_a_shape_of_null_or_of_10000_dimensions_is_refused() -> None:
    with Refused("'shape'", "got null"):
        decode(body({"name": "IN", "datatype": "INT32", "shape": None, "data": [1, 2]}))
    with Refused("'shape'", "got 10000"):
        decode(body(json_input([1], shape=[1] * 10_000)))


@pytest.mark.parametrize("data", [[1, 2, 3], [1], [[1, 2], [3]], []])
def test_data_must_fit_the_shape(data: Any) -> None:
    count = len(np.hstack(data)) if data else 0
    with Refused("'data'", "'IN'", "[2]", "expected 2 elements", f"got {count}"):
        decode(body(json_input(data, shape=[2])))


@pytest.mark.parametrize(
    "data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[1], [2, 3, 4]], [[[1]], 2, [[3, [4]]], []]]
)
def test_any_nesting_with_the_right_count_is_row_major(data: Any) -> None:
    model = spec(InputSpec("IN", "INT32", (2, 2)))
    tensor = decode(body(json_input(data, shape=[2, 2])), model=model).inputs["IN"]
    assert tensor.array.tolist() == [[1, 2], [3, 4]]


def nest(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


def test_data_may_be_nested_100_deep_and_no_deeper() -> None:
    for item in (nest(5, 100), [nest(5, 99)]):
        assert decode(body(json_input(item, shape=[1]))).inputs["IN"].array.tolist() == [5]
    with Refused("'IN'", "limit of 100"):
        decode(body(json_input(nest(5, 101), shape=[1])))
    mixed = [1, nest(5, 99)]
    assert decode(body(json_input(mixed))).inputs["IN"].array.tolist() == [1, 5]
    with Refused("'IN'", "limit of 100"):
        decode(body(json_input([1, nest(5, 100)])))


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("INT8", 300),
        ("INT8", -129),
        ("UINT8", -1),
        ("UINT32", 2**32),
        ("INT64", 2**63),
        ("INT64", 2**64),
        ("UINT64", 2**64),
        ("INT32", 1e3),
        ("INT32", 1.0),
        ("INT32", "1"),
        ("INT32", True),
        ("INT32", None),
        ("BOOL", 0),
        ("BOOL", 1),
        ("BOOL", "true"),
        ("BOOL", 2),
        ("FP32", "1"),
        ("FP64", True),
        ("BYTES", 1),
        ("BYTES", {}),
    ],
)
def test_elements_that_do_not_fit_the_datatype_are_refused_with_their_index(
    datatype: Any, value: Any
) -> None:
    good = {"BOOL": True, "BYTES": "a"}.get(datatype, 1)
    model = spec(InputSpec("IN", datatype, (2,)))
    with Refused("'data'", "'IN'", datatype, "at element 1"):
        decode(body(json_input([good, value], datatype)), model=model)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT64", [2**64 - 1, 0]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("INT8", [-128, 127]),
        ("UINT16", [65535, 0]),
        ("BOOL", [True, False]),
        ("FP32", [0.5, -3]),
        ("FP64", [1e300, 2**70]),
    ],
)
def test_extreme_values_arrive_exactly(datatype: Any, values: Any) -> None:
    model = spec(InputSpec("IN", datatype, (2,)))
    tensor = decode(body(json_input(values, datatype)), model=model).inputs["IN"]
    assert tensor.array.tolist() == values


def test_minus_zero_is_an_integer() -> None:
    text = body(json_input([1])).replace(b"[1]}", b"[-0]}")
    assert decode(text).inputs["IN"].array.tolist() == [0]


def test_a_number_beyond_double_is_refused_for_fp64_and_an_overflow_of_fp32_is_infinite() -> None:
    with Refused("'IN'", "numbers", "at element 0"):
        text = body(json_input([10**400], "FP32"))
        decode(text, model=FP32_IN)
    tensor = decode(body(json_input([1e39], "FP32")), model=FP32_IN).inputs["IN"]
    assert tensor.array.tolist() == [np.inf]


def test_nan_and_infinities_are_taken() -> None:
    text = body(json_input([float("nan"), float("inf"), -float("inf")], "FP32"))
    assert b"NaN,Infinity,-Infinity" in text
    array = decode(text, model=FP32_IN).inputs["IN"].array
    assert np.isnan(array[0])
    assert array[1:].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_needs_binary_data(datatype: Any) -> None:
    with Refused("'IN'", datatype, "binary"):
        decode(body(json_input([1.0], datatype)), model=spec(InputSpec("IN", datatype, (1,))))
    with Refused("'OUT'", datatype, "binary"):
        answer(Tensor("OUT", datatype, (1,), raw=b"\0\0"))


def test_bf16_is_rounded_and_travels_as_binary() -> None:
    raw = np.array([1.0, 3.14159], np.float32).astype(ml_dtypes.bfloat16).tobytes()
    head = body(blob_input(4, [2], datatype="BF16"))
    made = decode(head + raw, header_length=len(head), model=spec(InputSpec("IN", "BF16", (2,))))
    array = made.inputs["IN"].array
    assert array.astype(np.float32).tolist() == [1.0, 3.140625]
    made.binary_default = True
    text, header_length = answer(Tensor("OUT", "BF16", (2,), array=array), asked=made)
    assert text[header_length:] == raw


def test_bytes_keep_nul_empty_and_emoji_both_ways() -> None:
    texts = ["a\0b", "", "🎉 é", "a:b"]
    escaped = body(json_input(texts, "BYTES"))
    for text in (escaped, json.dumps(json.loads(escaped), ensure_ascii=False).encode()):
        tensor = decode(text, model=BYTES_IN).inputs["IN"]
        assert tensor.array.tolist() == [t.encode() for t in texts]
        reply, _ = answer(Tensor("OUT", "BYTES", (4,), raw=tensor.raw))
        assert json.loads(reply)["outputs"][0]["data"] == texts


def test_a_lone_surrogate_is_refused() -> None:
    with Refused("lone surrogate"):
        decode(body(json_input(["\ud83c"], "BYTES")), model=BYTES_IN)


@pytest.mark.parametrize("element", [b"\xff", b"\xed\xa0\x80", "\ud800"])
def test_bytes_that_are_no_utf8_ask_for_binary_output(element: Any) -> None:
    array = np.array([element], np.object_)
    with Refused("'OUT'", "UTF-8", "binary"):
        answer(Tensor("OUT", "BYTES", (1,), array=array))


def test_one_source_of_data_is_needed() -> None:
    both = json_input([1]) | {"parameters": {"binary_data_size": 4}}
    with Refused("'IN'", "'data'", "'binary_data_size'", "'shared_memory_region'", "got data and"):
        decode(body(both))
    with Refused("'IN'", "got none"):
        decode(body({"name": "IN", "shape": [1], "datatype": "INT32"}))


@pytest.mark.parametrize(
    ("datatype", "hint"), [("int32", "'INT32'"), ("TYPE_FP32", "'FP32'"), ("STRING", "'BYTES'")]
)
def test_a_misspelt_datatype_is_refused_with_the_right_spelling(datatype: Any, hint: Any) -> None:
    with Refused("'IN'", f"'{datatype}'", f"write {hint}"):
        decode(body(json_input([1], datatype)))


def test_base64_text_as_data_is_pointed_to_binary_data() -> None:
    with Refused("'data'", "'IN'", "array", "'AAEC'", "binary"):
        decode(body(json_input("AAEC", "UINT8", [3])), model=spec(InputSpec("IN", "UINT8", (3,))))


def test_data_of_a_zero_element_shape_is_ignored() -> None:
    tensor = decode(body(json_input([1, 2], shape=[0]))).inputs["IN"]
    assert tensor.array.shape == (0,)


def test_inputs_and_outputs_are_listed_once() -> None:
    with Refused("input 'IN'", "more than once"):
        decode(body(json_input([1]), json_input([1])))
    with Refused("output 'OUT'", "more than once"):
        decode(body(json_input([1]), outputs=[{"name": "OUT"}, {"name": "OUT"}]))


def test_no_outputs_mean_all() -> None:
    assert decode(body(json_input([1]), outputs=[])).outputs == ()
    assert decode(body(json_input([1]))).outputs == ()


NUMBERS = {
    "BOOL": st.booleans(),
    "FP32": st.floats(width=32, allow_nan=False),
    "FP64": st.floats(allow_nan=False),
    **{
        f"{sign}INT{bits}": st.integers(
            0 if sign else -(2 ** (bits - 1)), 2**bits - 1 if sign else 2 ** (bits - 1) - 1
        )
        for sign in ("U", "")
        for bits in (8, 16, 32, 64)
    },
    "BYTES": st.text(),
}


@PROPERTY
@given(
    st.sampled_from(sorted(NUMBERS)).flatmap(
        lambda name: st.tuples(st.just(name), st.lists(NUMBERS[name], max_size=80))
    )
)
def test_json_data_comes_back_as_it_was_sent(case: Any) -> None:
    datatype, values = case
    model = spec(InputSpec("IN", datatype, (-1,)))
    tensor = decode(body(json_input(values, datatype)), model=model).inputs["IN"]
    for copy in (tensor, Tensor("IN", datatype, tensor.shape, raw=tensor.raw)):
        text, _ = answer(copy)
        assert json.loads(text)["outputs"][0]["data"] == values


def test_element_counts_beyond_int64_are_refused() -> None:
    for shape in ((2**62, 2), (2**62, 2, 3)):
        with Refused("'IN'", "9223372036854775807 elements"):
            tensor_from_json("IN", "INT8", shape, [], 100)
    with Refused("'IN'", "elements of 4 bytes", "9223372036854775807 bytes"):
        tensor_from_json("IN", "INT32", (2**62,), [], 100)


@pytest.mark.parametrize("shape", [(0,), (2**63, 0), (3, 0, 2)])
def test_a_shape_with_a_zero_has_no_elements(shape: Any) -> None:
    tensor = tensor_from_json("IN", "INT32", shape, "ignored", 0)
    assert tensor.raw == b""
    assert tensor.shape == shape
