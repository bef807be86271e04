from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol.dtypes import NUMPY_DTYPES
from tritrio.protocol.infer_wire import (
    decode_model_infer,
)
from tritrio.protocol.model_spec import InputSpec

from .infer_messages import decode, typed
from .infer_specs import Refused, spec


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, float("inf")]),
        ("FP64", "fp64_contents", [0.1, -1e300]),
        ("BYTES", "bytes_contents", [b"", b"a\0\xff"]),
    ],
)
def test_each_datatype_has_its_field(datatype: Any, field: Any, values: Any) -> None:
    made = typed(datatype, [2], **{field: values})
    tensor = decode(made, spec(InputSpec("IN", datatype, (2,)))).inputs["IN"]
    assert tensor.array.tolist() == values
    assert tensor.array.dtype == NUMPY_DTYPES[datatype]
    other = "fp64_contents" if field != "fp64_contents" else "fp32_contents"
    with Refused("'IN'", "'m'", datatype, field, other):
        decode(typed(datatype, [2], **{other: [1.0, 2.0]}))


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [
        ("INT8", "int_contents", 128),
        ("INT8", "int_contents", -129),
        ("INT16", "int_contents", 2**15),
        ("UINT8", "uint_contents", 256),
        ("UINT16", "uint_contents", 65536),
    ],
)
def test_narrow_integers_out_of_range_are_refused(datatype: Any, field: Any, value: Any) -> None:
    with Refused("'IN'", "'m'", datatype, f"got {value}"):
        decode(typed(datatype, [2], **{field: [0, value]}))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_is_raw_only(datatype: Any) -> None:
    with Refused("'IN'", "'m'", datatype, "raw_input_contents"):
        decode(typed(datatype, [1], fp32_contents=[1.0]))


def test_two_filled_fields_are_two_sources() -> None:
    with Refused("'IN'", "'m'", "int_contents and int64_contents"):
        decode(typed("INT64", [1], int_contents=[1], int64_contents=[1]))


def test_contents_of_another_length_than_the_shape_are_refused() -> None:
    with Refused("needs 8 bytes", "got 4 bytes"):
        decode(typed("INT32", [2], int_contents=[1]), spec())
    with Refused("expected 2 BYTES elements, got 1"):
        model = spec(InputSpec("IN", "BYTES", (2,)))
        decode(typed("BYTES", [2], bytes_contents=[b"a"]), model)


def test_unpacked_and_split_contents_are_merged() -> None:
    packed = typed("INT32", [5], int_contents=[1, 300]).inputs[0].SerializeToString()
    # contents = 5: unpacked int_contents (field 2, varint) 7, -1, then packed 9
    more = b"\x2a\x12\x10\x07\x10" + b"\xff" * 9 + b"\x01" + b"\x12\x01\x09\x12\x00"
    assert len(more) == 2 + 0x12
    data = b"\x0a\x01m" + b"\x2a" + bytes([len(packed + more)]) + packed + more
    assert decode_model_infer(data).inputs["IN"].array.tolist() == [1, 300, 7, -1, 9]
    google = pb.ModelInferRequest.FromString(data)
    assert list(google.inputs[0].contents.int_contents) == [1, 300, 7, -1, 9]


def test_a_large_list_of_varints_is_unpacked_in_chunks(monkeypatch: Any) -> None:
    values = np.random.default_rng(1).integers(-(2**63), 2**63, 5000).tolist()
    monkeypatch.setattr("tritrio.protocol.protobuf_wire.UNPACK_CHUNK_BYTES", 64)
    made = typed("INT64", [5000], int64_contents=values)
    assert decode(made).inputs["IN"].array.tolist() == values
