from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol import infer_wire_request
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.infer_wire import (
    decode_model_infer,
    peek_request_id,
)
from tritrio.protocol.protobuf_wire import length_delimited

from .infer_messages import decode, message, typed
from .infer_specs import Refused, spec


def test_a_repeated_message_gives_equal_requests_that_share_nothing_mutable() -> None:
    made = message(("IN", "INT32", [1]), raws=(b"\1\0\0\0",), id="a", model_version="2")
    made.parameters["k"].int64_param = 1
    made.parameters["priority"].uint64_param = 2
    made.outputs.add(name="OUT")
    first = decode(made)
    first.parameters["k"] = 5
    first.inputs["IN"].reshape((1, 1))
    made.id = "b"
    made.raw_input_contents[0] = b"\2\0\0\0"
    again = decode(made)
    assert (again.model_name, again.model_version, again.id) == ("m", "2", "b")
    assert again.parameters == {"k": 1}
    assert again.priority == 2
    assert again.inputs["IN"].shape == (1,)
    assert again.inputs["IN"].array.tolist() == [2]
    assert [output.name for output in again.outputs] == ["OUT"]
    made.ClearField("id")
    assert decode(made).id == ""


def test_requests_that_differ_in_the_id_alone_share_a_kept_prefix() -> None:
    infer_wire_request._prefixes.clear()
    for number in range(300):
        made = message(("IN", "INT32", [1]), raws=(bytes(4),), id=f"{number}" * 50)
        assert decode(made).id == f"{number}" * 50
    assert len(infer_wire_request._prefixes) == 1


def test_what_stands_behind_the_raw_entries_belongs_to_its_own_message_only() -> None:
    plain = message(("IN", "INT32", [1]), raws=(bytes(4),)).SerializeToString()
    late = message(id="x")
    late.parameters["k"].int64_param = 1
    for _ in range(2):
        request = decode_model_infer(plain + late.SerializeToString())
        assert (request.id, request.parameters) == ("x", {"k": 1})
        request = decode_model_infer(plain)
        assert (request.id, request.parameters) == ("", {})


def test_the_last_of_several_ids_wins_every_time() -> None:
    raw = message(("IN", "INT32", [1]), raws=(bytes(4),)).SerializeToString()
    ids = [message(id=text).SerializeToString() for text in "abc"]
    for first, second in ((0, 1), (1, 0), (2, 1), (2, 2)):
        request = decode_model_infer(ids[first] + ids[second] + raw)
        assert request.id == "abc"[second]


def test_raw_tensors_are_views_on_the_message() -> None:
    data = message(("IN", "UINT8", [5000]), raws=(bytes(5000),)).SerializeToString()
    for _ in range(2):
        raw = decode_model_infer(data).inputs["IN"].raw
        assert isinstance(raw, memoryview)
        assert raw.obj is data


def test_kept_prefixes_are_bounded() -> None:
    for size in range(infer_wire_request.CACHED_PREFIXES_MAX + 10):
        decode(message(("IN", "INT8", [size]), raws=(bytes(size),)))
        assert len(infer_wire_request._prefixes) <= infer_wire_request.CACHED_PREFIXES_MAX


# Raw contents (G01).


def test_raw_and_typed_contents_together_are_refused() -> None:
    made = typed("INT32", [1], int_contents=[1])
    made.raw_input_contents.append(bytes(4))
    with Refused("'IN'", "'m'", "raw_input_contents"):
        decode(made)


def test_an_input_without_data_is_named() -> None:
    made = message(("A", "INT32", [1]), ("B", "INT32", [1]), raws=(bytes(4),))
    for _ in range(2):
        with Refused("'B'", "'m'", "no data"):
            decode(made)


def test_surplus_raw_entries_are_ignored() -> None:
    made = message(("A", "INT32", [1]), raws=(b"\1\0\0\0", b"x", b""))
    for _ in range(2):
        assert decode(made).inputs["A"].array.tolist() == [1]


def test_an_input_without_elements_needs_no_data() -> None:
    assert decode(message(("A", "INT32", [0, 3]))).inputs["A"].array.shape == (0, 3)


def test_an_input_twice_is_refused() -> None:
    with Refused("'A'", "more than once"):
        decode(message(("A", "INT32", [1]), ("A", "INT32", [1]), raws=(b"", b"")))
    made = message()
    made.outputs.add(name="O")
    made.outputs.add(name="O")
    with Refused("'O'", "more than once"):
        decode(made)


def test_a_negative_dimension_reaches_the_rules() -> None:
    made = message(("IN", "INT32", [-1]), raws=(b"",))
    with Refused("negative"):
        decode(made, spec())


def test_a_rank_over_64_is_refused() -> None:
    with Refused("64 dimensions"):
        decode(message(("IN", "INT32", [1] * 65), raws=(b"",)))


# Parameters.


def test_parameters_become_attributes_or_reach_the_model() -> None:
    made = message()
    given_ = made.parameters
    given_["sequence_id"].int64_param = -1
    given_["sequence_start"].bool_param = True
    given_["timeout"].int64_param = 5
    given_["priority"].int64_param = 1
    given_["triton_enable_empty_final_response"].bool_param = True
    given_["binary_data_output"].bool_param = True
    given_["i"].int64_param = -5
    given_["d"].double_param = 0.5
    given_["s"].string_param = "é"
    request = decode(made)
    assert request.sequence_id == 2**64 - 1
    assert request.sequence_start
    assert request.timeout_us == 5
    assert request.priority == 1
    assert request.empty_final_response
    assert not request.binary_default
    assert request.parameters == {"binary_data_output": True, "i": -5, "d": 0.5, "s": "é"}


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("k", "uint64_param", 1),
        ("k", None, None),
        ("sequence_id", "bool_param", True),
        ("sequence_id", "uint64_param", 1),
        ("sequence_start", "int64_param", 1),
        ("sequence_end", "string_param", "true"),
        ("priority", "int64_param", -1),
        ("priority", "string_param", "1"),
        ("timeout", "double_param", 1.0),
        ("timeout", "uint64_param", 1),
        ("triton_enable_empty_final_response", "int64_param", 1),
        ("triton_x", "bool_param", True),
    ],
)
def test_parameters_of_a_wrong_kind_are_refused_by_name(key: Any, kind: Any, value: Any) -> None:
    made = message()
    parameter = made.parameters[key]
    if kind is not None:
        setattr(parameter, kind, value)
    with Refused(f"'{key}'"):
        decode(made)


def test_the_reserved_prefix_names_the_one_allowed_key() -> None:
    made = message()
    made.parameters["triton_x"].bool_param = True
    with Refused("'triton_'", "'triton_enable_empty_final_response'"):
        decode(made)


def test_classification_is_a_positive_int64() -> None:
    made = message(("IN", "INT32", [1]), raws=(bytes(4),))
    output = made.outputs.add(name="O")
    output.parameters["classification"].int64_param = 3
    assert decode(made).outputs[0].classification_count == 3
    for kind, value in (("int64_param", 0), ("string_param", "3")):
        setattr(output.parameters["classification"], kind, value)
        with Refused("'classification'", "'O'", "integer >= 1"):
            decode(made)


# Malformed messages.


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",
        b"\x0a\x05abc",
        b"\x0c",
        b"\x0b\x14",
        b"\x0f",
        b"\x0a",
        b"\x1a\x02\xff\xfe",
        b"\x8a\x80\x80\x80\x80\x00\x01a",
        b"\xff" * 20,
        b"\x0b" * 200 + b"\x0c" * 200,
        b"\x2a\x03\x2a\x01\x08",
        b"\x2a\x05\x2a\x03\x12\x01\x80",
        b"\x2a\x06\x2a\x04\x32\x02\x00\x00",
        b"\x22\x06\x0a\x01k\x12\x01\x09",
    ],
)
def test_what_is_no_message_is_internal(data: Any) -> None:
    with Refused("not valid protobuf", code=ErrorCode.INTERNAL):
        decode_model_infer(data)
    with pytest.raises(DecodeError):
        pb.ModelInferRequest.FromString(data)


def test_unknown_fields_and_groups_are_skipped() -> None:
    extra = b"\xf8\x01\x05" + b"\xfa\x01\x02hi" + b"\x0b\x08\x01\x13\x14\x0c" + b"\xfd\x01abcd"
    assert decode_model_infer(extra + b"\x0a\x01m" + extra).model_name == "m"


def test_the_id_of_a_refused_message_can_be_told() -> None:
    made = message(("A", "INT32", [1]), id="x")
    with Refused("no data"):
        decode(made)
    assert peek_request_id(made.SerializeToString()) == "x"
    assert peek_request_id(b"\x1a\x05x") == ""


@pytest.mark.parametrize(
    "data",
    [
        b"\x48\x01" * 101,
        b"\x3a\x00" * 101,
        b"\x0b" + b"\x08\x01" * 100 + b"\x0c",
        length_delimited(5, length_delimited(5, b"\x42\x00" * 99)),
    ],
)
def test_a_message_of_too_many_fields_is_refused(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_model_infer(b"\x3a\x00" * 100)
    monkeypatch.setattr("tritrio.protocol.protobuf_wire.FIELDS_MAX", 100)
    with Refused("100 fields"):
        decode_model_infer(data)
    decode_model_infer(b"\x3a\x00" * 100)


def test_many_surplus_raw_entries_are_ignored_too() -> None:
    made = message(("A", "INT32", [1]), raws=(b"\1\0\0\0",) + (b"x",) * 100)
    for _ in range(2):
        assert decode(made).inputs["A"].array.tolist() == [1]
