from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tritonclient.http as client
from hypothesis import given, strategies as st

from tritrio.protocol.binary_codec import parse_header_length
from tritrio.protocol.dtypes import NUMPY_DTYPES
from tritrio.protocol.json_codec import encode_infer_response
from tritrio.protocol.model_spec import InputSpec
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Tensor

from .infer_specs import PROPERTY, Refused, blob_input, body, decode, spec

TWO = spec(InputSpec("A", "INT32", (-1,)), InputSpec("B", "INT32", (-1,)))

# The header (H01).


@pytest.mark.parametrize(
    ("value", "length"), [(None, None), (b"0", 0), (b"10", 10), (b" 7\t", 7), (b"0010", 10)]
)
def test_the_header_length_is_a_decimal_integer_up_to_the_content_length(
    value: Any, length: Any
) -> None:
    assert parse_header_length(value, 10) == length


@pytest.mark.parametrize("value", [b"abc", b"", b"1.0", b"1e2", b"0x10", b"1_0", b"+1", b"\xb2"])
def test_a_header_length_that_is_no_integer_is_refused(value: Any) -> None:
    with Refused("Inference-Header-Content-Length", "integer", f"'{value.decode('latin-1')}'"):
        parse_header_length(value, 10)


@pytest.mark.parametrize("value", [b"-1", b"11", b"1099511627776", b"9" * 1000, b"-0"])
def test_a_header_length_out_of_range_names_the_range(value: Any) -> None:
    with Refused("Inference-Header-Content-Length", "range 0 to 10", value.decode()[:100]):
        parse_header_length(value, 10)


def test_bodies_beyond_32_bits_have_header_lengths_to_match() -> None:
    assert parse_header_length(b"2362232012", 2362232013) == 2362232012
    assert parse_header_length(b"2362232012", None) == 2362232012


def test_a_body_shorter_than_its_json_part_says_how_many_bytes_are_missing() -> None:
    with Refused("15 bytes of JSON", "but 13 of them"):
        decode(b"{}", header_length=15)


# Blobs (J07).


def test_blobs_are_views_on_the_body_in_input_order() -> None:
    head = body(blob_input(8, [2], "B"), blob_input(4, [1], "A"))
    text = head + b"\1\0\0\0\2\0\0\0\3\0\0\0"
    for given_body in (text, bytearray(text), memoryview(text)):
        made = decode(given_body, header_length=len(head), model=TWO)
        assert list(made.inputs) == ["B", "A"]
        assert made.inputs["B"].array.tolist() == [1, 2]
        assert made.inputs["A"].array.tolist() == [3]
    raw = decode(text, header_length=len(head), model=TWO).inputs["B"].raw
    assert isinstance(raw, memoryview)
    assert raw.obj is text


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_body_that_ends_too_early_names_the_input_and_the_missing_bytes(repeats: Any) -> None:
    head = body(blob_input(4, [1], "A"), blob_input(8, [2], "B"))
    for _ in range(repeats):
        with Refused("'B'", "'m'", "3 bytes of it are missing"):
            decode(head + bytes(9), header_length=len(head), model=TWO)
        with Refused("'A'", "'m'", "1 bytes of it are missing"):
            decode(head + bytes(3), header_length=len(head), model=TWO)


@pytest.mark.parametrize("repeats", [1, 2])
def test_bytes_behind_the_last_blob_are_refused(repeats: Any) -> None:
    head = body(blob_input(4, [1]))
    for _ in range(repeats):
        with Refused("'m'", "2 extra bytes"):
            decode(head + bytes(6), header_length=len(head))


@pytest.mark.parametrize("size", [-1, "4", 1.0, None, True, 2**63])
def test_a_blob_size_is_a_non_negative_integer(size: Any) -> None:
    head = body(blob_input(size, [1]))
    with Refused("'binary_data_size'", "'IN'", "integer >= 0"):
        decode(head + bytes(4), header_length=len(head))


@pytest.mark.parametrize("size", [0, 4, 12])
def test_a_blob_size_must_be_that_of_the_shape(size: Any) -> None:
    head = body(blob_input(size, [2]))
    with Refused("'IN'", "needs 8 bytes", f"got {size} bytes"):
        decode(head + bytes(size), header_length=len(head))


def test_a_blob_of_no_bytes_fits_a_shape_of_no_elements() -> None:
    head = body(blob_input(0, [0]))
    assert decode(head, header_length=len(head)).inputs["IN"].array.shape == (0,)


def test_binary_data_without_the_header_is_missing() -> None:
    with Refused("'IN'", "4 bytes of it are missing"):
        decode(body(blob_input(4, [1])))


# Bodies that are the data of the single input (J08, H05).


def test_a_raw_body_becomes_the_single_input_with_batch_1_and_a_binary_answer() -> None:
    model = spec(InputSpec("IN", "INT32", (2, -1), batches=True), max_batch_size=4)
    made = decode(bytes(24), header_length=0, model=model)
    assert made.inputs["IN"].shape == (1, 2, 3)
    assert made.batch_size == 1
    assert made.binary_default


def test_a_raw_bytes_body_gets_its_length_prefix() -> None:
    made = decode(b"abc", header_length=0, model=spec(InputSpec("IN", "BYTES", (1,))))
    assert made.inputs["IN"].array.tolist() == [b"abc"]


@pytest.mark.parametrize(
    ("model", "text", "facts"),
    [
        (TWO, bytes(4), ["exactly one input", "'m'", "has 2"]),
        (spec(InputSpec("IN", "INT8", (-1, -1))), bytes(4), ["'IN'", "cannot be deduced"]),
        (spec(InputSpec("IN", "BYTES", (2,))), b"abc", ["'IN'", "[1]", "[2]"]),
        (spec(InputSpec("IN", "BYTES", (-1,))), b"abc", ["'IN'", "[1]", "[-1]"]),
        (spec(InputSpec("IN", "INT32", (-1, 3))), bytes(13), ["multiple of 12", "got 13"]),
        (spec(InputSpec("IN", "INT32", (3,))), bytes(13), ["needs 12 bytes", "got 13"]),
        (spec(InputSpec("IN", "INT32", (-1,))), b"", ["'m'", "got no bytes"]),
    ],
)
def test_raw_bodies_that_fit_no_shape_are_refused(model: Any, text: Any, facts: Any) -> None:
    with Refused(*facts):
        decode(text, header_length=0, model=model)


def test_a_raw_body_may_have_exactly_the_limit() -> None:
    model = spec(InputSpec("IN", "UINT8", (-1,)))
    decode(bytes(100), header_length=0, model=model, limit_bytes=100)
    with Refused("101 bytes", "limit of 100", "--http-max-input-size"):
        decode(bytes(101), header_length=0, model=model, limit_bytes=100)


def test_an_empty_body_without_the_header_is_no_raw_body() -> None:
    with Refused("no bytes"):
        decode(b"")


# What tritonclient sends and reads.


ELEMENTS = {
    "BYTES": st.binary(max_size=6),
    "BOOL": st.booleans(),
    "BF16": st.sampled_from([0.0, 1.0, -2.5, 3.140625]),
    "FP16": st.floats(width=16, allow_nan=False),
    "FP32": st.floats(width=32, allow_nan=False),
    "FP64": st.floats(allow_nan=False),
    **{
        name: st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        for name, dtype in NUMPY_DTYPES.items()
        if "INT" in name
    },
}


@PROPERTY
@given(
    st.sampled_from(sorted(ELEMENTS)).flatmap(
        lambda name: st.tuples(st.just(name), st.lists(ELEMENTS[name], max_size=12))
    ),
    st.sampled_from(["", "x", "é"]),
)
def test_binary_requests_of_tritonclient_come_back_as_they_were(case: Any, request_id: Any) -> None:
    datatype, values = case
    shape = [len(values)]
    sent = np.array(values, NUMPY_DTYPES[datatype])
    tensor = client.InferInput("IN", shape, datatype)
    tensor.set_data_from_numpy(sent)
    text, header_length = client.InferenceServerClient.generate_request_body(
        [tensor], request_id=request_id, outputs=[client.InferRequestedOutput("OUT")]
    )
    model = spec(InputSpec("IN", datatype, (-1,)))
    for _ in range(2):
        made = decode(text, header_length=header_length, model=model)
        assert made.id == request_id
        assert made.outputs[0].binary is True
        array = made.inputs["IN"].array
        assert array.tolist() == sent.tolist()
        output = Tensor("OUT", datatype, (len(values),), array=array)
        parts, length = encode_infer_response(InferResponse("m", "1", made.id, [output]), made)
        result = client.InferenceServerClient.parse_response_body(
            b"".join(parts), header_length=length
        )
        if values:
            assert result.as_numpy("OUT").tolist() == sent.tolist()
        assert result.get_response().get("id", "") == request_id


def test_json_answers_are_read_by_tritonclient() -> None:
    output = Tensor("OUT", "FP32", (2,), array=np.array([0.5, -1], np.float32))
    parts, length = encode_infer_response(InferResponse("m", "1", "", [output]), InferRequest("m"))
    assert length is None
    result = client.InferenceServerClient.parse_response_body(b"".join(parts))
    assert result.as_numpy("OUT").tolist() == [0.5, -1]
