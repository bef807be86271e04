from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol.infer_wire import encode_model_infer_response
from tritrio.protocol.json_codec import encode_infer_response
from tritrio.protocol.model_spec import InputSpec, ModelSpec, OutputSpec
from tritrio.protocol.request_rules import validate
from tritrio.protocol.requested_outputs import CLASSIFIED_ELEMENTS_MAX, top_classes
from tritrio.protocol.requests import InferResponse, RequestedOutput
from tritrio.protocol.tensors import Tensor

from .infer_specs import PROPERTY, Refused, request, zeros


def tensor(values: Any, datatype: str, dtype: str) -> Tensor:
    array = np.array(values, dtype)
    return Tensor("OUT", datatype, array.shape, array=array)


def classes(output: Tensor, count: int, *, batches: bool, labels: tuple[str, ...] = ()) -> Any:
    return top_classes(output, count, batches=batches, labels=labels).array.tolist()


def test_the_highest_come_first_with_value_index_and_label() -> None:
    output = tensor([[0.5, 2, -1], [3, 0.25, 7]], "FP32", "f4")
    assert classes(output, 2, batches=True, labels=("a", "b:c")) == [
        [b"2.000000:1:b:c", b"0.500000:0:a"],
        [b"7.000000:2", b"3.000000:0:a"],
    ]
    assert classes(output, 1, batches=False) == [b"7.000000:5"]


def test_integers_are_plain_and_the_count_is_cut_to_the_elements() -> None:
    output = tensor([[2**64 - 1], [0]], "UINT64", "u8")
    assert classes(output, 2**62, batches=True) == [[b"18446744073709551615:0"], [b"0:0"]]
    assert classes(tensor([5, 6], "INT8", "i1"), 9, batches=True) == [[b"5:0"], [b"6:0"]]
    empty = top_classes(Tensor("OUT", "FP32", (0, 3), raw=b""), 2, batches=True, labels=())
    assert empty.shape == (0, 2)
    assert empty.raw == b""


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "BF16", "BYTES"])
def test_datatypes_without_classes_are_named(datatype: str) -> None:
    with Refused("'OUT'", datatype, "unsupported for classification"):
        top_classes(Tensor("OUT", datatype, (1,), raw=b""), 1, batches=False, labels=())


def test_too_large_an_item_is_refused() -> None:
    size = CLASSIFIED_ELEMENTS_MAX + 1
    output = Tensor("OUT", "INT8", (1, size), raw=bytes(size))
    with Refused("'OUT'", "too large", str(size)):
        top_classes(output, 1, batches=True, labels=())


@PROPERTY
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 14))
def test_the_classes_are_the_highest_values_in_order(values: list[int], count: int) -> None:
    got = [
        tuple(map(int, text.split(b":")))
        for text in classes(tensor(values, "INT8", "i1"), count, batches=False)
    ]
    assert [value for value, _ in got] == sorted(values, reverse=True)[:count]
    assert all(values[index] == value for value, index in got)
    assert got == sorted(got, key=lambda pair: (-pair[0], pair[1]))


def test_both_transports_answer_with_classes_where_they_were_asked_for() -> None:
    model = ModelSpec(
        "m",
        "1",
        inputs=[InputSpec("IN", "INT32", (1,), batches=True)],
        outputs=[
            OutputSpec("OUT", "FP32", (3,), batches=True),
            OutputSpec("RAW", "FP32", (3,), batches=True),
        ],
        max_batch_size=4,
    )
    model.outputs["OUT"].labels = ("x", "y", "z")
    asked = request(zeros((1, 1)))
    asked.outputs = (RequestedOutput("RAW"), RequestedOutput("OUT", classification_count=2))
    validate(asked, model)
    values = np.array([[1, 3, 2]], np.float32)
    outputs = [Tensor(name, "FP32", (1, 3), array=values) for name in ("OUT", "RAW", "MORE")]
    response = InferResponse("m", "1", "", outputs)

    parts, _ = encode_infer_response(response, asked)
    out, raw = json.loads(b"".join(parts))["outputs"]
    assert (out["datatype"], out["shape"]) == ("BYTES", [1, 2])
    assert out["data"] == ["3.000000:1:y", "2.000000:2:z"]
    assert raw["data"] == [1, 3, 2]

    message = b"".join(encode_model_infer_response(response, asked))
    got = pb.ModelInferResponse.FromString(message)
    assert [output.name for output in got.outputs] == ["OUT", "RAW"]
    assert got.outputs[0].datatype == "BYTES"
    assert got.raw_output_contents[0] == b"\x0c\0\0\0003.000000:1:y\x0c\0\0\0002.000000:2:z"
    assert response.outputs == outputs
