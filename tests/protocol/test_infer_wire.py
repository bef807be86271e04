from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, strategies as st
from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol import infer_wire_request
from tritrio.protocol.dtypes import NUMPY_DTYPES
from tritrio.protocol.errors import ErrorCode, RequestError, invalid_argument
from tritrio.protocol.infer_wire import (
    decode_model_infer,
    encode_model_infer_response,
    encode_stream_response,
    peek_request_id,
)
from tritrio.protocol.infer_wire_response import JOINED_BYTES_MAX
from tritrio.protocol.model_spec import InputSpec
from tritrio.protocol.pb.inference import ModelInferResponse
from tritrio.protocol.request_rules import validate
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.tensors import Tensor, encode_bytes_elements

from .infer_specs import PROPERTY, Refused, spec


def message(
    *inputs: tuple[str, str, list[int]], raws: tuple[bytes, ...] = (), **fields: Any
) -> Any:
    made = pb.ModelInferRequest(model_name="m", **fields)
    for name, datatype, shape in inputs:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.extend(raws)
    return made


def typed(datatype: str, shape: list[int], **contents: Any) -> Any:
    made = message(("IN", datatype, shape))
    for field, values in contents.items():
        getattr(made.inputs[0].contents, field).extend(values)
    return made


def decode(made: Any, model: Any = None) -> InferRequest:
    request = decode_model_infer(made.SerializeToString())
    if model is not None:
        validate(request, model)
    return request


def test_a_repeated_message_gives_equal_requests_that_share_nothing_mutable():
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


def test_requests_that_differ_in_the_id_alone_share_a_kept_prefix():
    infer_wire_request._prefixes.clear()
    for number in range(300):
        made = message(("IN", "INT32", [1]), raws=(bytes(4),), id=f"{number}" * 50)
        assert decode(made).id == f"{number}" * 50
    assert len(infer_wire_request._prefixes) == 1


def test_raw_tensors_are_views_on_the_message():
    data = message(("IN", "UINT8", [5000]), raws=(bytes(5000),)).SerializeToString()
    for _ in range(2):
        raw = decode_model_infer(data).inputs["IN"].raw
        assert isinstance(raw, memoryview)
        assert raw.obj is data


def test_kept_prefixes_are_bounded():
    for size in range(infer_wire_request.CACHED_PREFIXES_MAX + 10):
        decode(message(("IN", "INT8", [size]), raws=(bytes(size),)))
        assert len(infer_wire_request._prefixes) <= infer_wire_request.CACHED_PREFIXES_MAX


# Raw contents (G01).


def test_raw_and_typed_contents_together_are_refused():
    made = typed("INT32", [1], int_contents=[1])
    made.raw_input_contents.append(bytes(4))
    with Refused("'IN'", "'m'", "raw_input_contents"):
        decode(made)


def test_an_input_without_data_is_named():
    made = message(("A", "INT32", [1]), ("B", "INT32", [1]), raws=(bytes(4),))
    for _ in range(2):
        with Refused("'B'", "'m'", "no data"):
            decode(made)


def test_surplus_raw_entries_are_ignored():
    made = message(("A", "INT32", [1]), raws=(b"\1\0\0\0", b"x", b""))
    for _ in range(2):
        assert decode(made).inputs["A"].array.tolist() == [1]


def test_an_input_without_elements_needs_no_data():
    assert decode(message(("A", "INT32", [0, 3]))).inputs["A"].array.shape == (0, 3)


def test_shared_memory_faults():
    made = message(("A", "INT32", [1]))
    parameters = made.inputs[0].parameters
    parameters["shared_memory_byte_size"].int64_param = 4
    with Refused("'shared_memory_byte_size'", "'A'", "'shared_memory_region'"):
        decode(made)
    parameters["shared_memory_region"].string_param = "r"
    with Refused("'r'", code=ErrorCode.NOT_FOUND):
        decode(made)
    made.inputs[0].contents.int_contents.append(1)
    with Refused("'A'", "'m'", "both"):
        decode(made)
    parameters["shared_memory_offset"].bool_param = True
    with Refused("'shared_memory_offset'", "'A'", "int64"):
        decode(made)
    parameters["shared_memory_region"].int64_param = 1
    with Refused("'shared_memory_region'", "'A'", "string"):
        decode(made)


def test_an_input_twice_is_refused():
    with Refused("'A'", "more than once"):
        decode(message(("A", "INT32", [1]), ("A", "INT32", [1]), raws=(b"", b"")))
    made = message()
    made.outputs.add(name="O")
    made.outputs.add(name="O")
    with Refused("'O'", "more than once"):
        decode(made)


def test_a_negative_dimension_reaches_the_rules():
    made = message(("IN", "INT32", [-1]), raws=(b"",))
    with Refused("negative"):
        decode(made, spec())


def test_a_rank_over_64_is_refused():
    with Refused("64 dimensions"):
        decode(message(("IN", "INT32", [1] * 65), raws=(b"",)))


# Typed contents (G02).


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
def test_each_datatype_has_its_field(datatype, field, values):
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
def test_narrow_integers_out_of_range_are_refused(datatype, field, value):
    with Refused("'IN'", "'m'", datatype, f"got {value}"):
        decode(typed(datatype, [2], **{field: [0, value]}))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_is_raw_only(datatype):
    with Refused("'IN'", "'m'", datatype, "raw_input_contents"):
        decode(typed(datatype, [1], fp32_contents=[1.0]))


def test_two_filled_fields_are_two_sources():
    with Refused("'IN'", "'m'", "int_contents and int64_contents"):
        decode(typed("INT64", [1], int_contents=[1], int64_contents=[1]))


def test_contents_of_another_length_than_the_shape_are_refused():
    with Refused("needs 8 bytes", "got 4 bytes"):
        decode(typed("INT32", [2], int_contents=[1]), spec())
    with Refused("expected 2 BYTES elements, got 1"):
        model = spec(InputSpec("IN", "BYTES", (2,)))
        decode(typed("BYTES", [2], bytes_contents=[b"a"]), model)


def test_unpacked_and_split_contents_are_merged():
    packed = typed("INT32", [5], int_contents=[1, 300]).inputs[0].SerializeToString()
    # contents = 5: unpacked int_contents (field 2, varint) 7, -1, then packed 9
    more = b"\x2a\x12\x10\x07\x10" + b"\xff" * 9 + b"\x01" + b"\x12\x01\x09\x12\x00"
    assert len(more) == 2 + 0x12
    data = b"\x0a\x01m" + b"\x2a" + bytes([len(packed + more)]) + packed + more
    assert decode_model_infer(data).inputs["IN"].array.tolist() == [1, 300, 7, -1, 9]
    google = pb.ModelInferRequest.FromString(data)
    assert list(google.inputs[0].contents.int_contents) == [1, 300, 7, -1, 9]


def test_a_large_list_of_varints_is_unpacked_in_chunks(monkeypatch):
    values = np.random.default_rng(1).integers(-(2**63), 2**63, 5000).tolist()
    monkeypatch.setattr("tritrio.protocol.protobuf_wire.UNPACK_CHUNK_BYTES", 64)
    made = typed("INT64", [5000], int64_contents=values)
    assert decode(made).inputs["IN"].array.tolist() == values


# Parameters.


def test_parameters_become_attributes_or_reach_the_model():
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
def test_parameters_of_a_wrong_kind_are_refused_by_name(key, kind, value):
    made = message()
    parameter = made.parameters[key]
    if kind is not None:
        setattr(parameter, kind, value)
    with Refused(f"'{key}'"):
        decode(made)


def test_the_reserved_prefix_names_the_one_allowed_key():
    made = message()
    made.parameters["triton_x"].bool_param = True
    with Refused("'triton_'", "'triton_enable_empty_final_response'"):
        decode(made)


def test_classification_is_a_positive_int64():
    made = message(("IN", "INT32", [1]), raws=(bytes(4),))
    output = made.outputs.add(name="O")
    output.parameters["classification"].int64_param = 3
    assert decode(made).outputs[0].classification_count == 3
    for kind, value in (("int64_param", 0), ("string_param", "3")):
        setattr(output.parameters["classification"], kind, value)
        with Refused("'classification'", "'O'", "integer >= 1"):
            decode(made)
    output.parameters["classification"].int64_param = 1
    output.parameters["shared_memory_region"].string_param = "r"
    with Refused("'classification'", "'shared_memory_region'"):
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
        b"\x2a\x06\x2a\x04\x32\x02\x00\x00",
        b"\x22\x06\x0a\x01k\x12\x01\x09",
    ],
)
def test_what_is_no_message_is_internal(data):
    with Refused("not valid protobuf", code=ErrorCode.INTERNAL):
        decode_model_infer(data)
    with pytest.raises(DecodeError):
        pb.ModelInferRequest.FromString(data)


def test_unknown_fields_and_groups_are_skipped():
    extra = b"\xf8\x01\x05" + b"\xfa\x01\x02hi" + b"\x0b\x08\x01\x13\x14\x0c" + b"\xfd\x01abcd"
    assert decode_model_infer(extra + b"\x0a\x01m" + extra).model_name == "m"


def test_the_id_of_a_refused_message_can_be_told():
    made = message(("A", "INT32", [1]), id="x")
    with Refused("no data"):
        decode(made)
    assert peek_request_id(made.SerializeToString()) == "x"
    assert peek_request_id(b"\x1a\x05x") == ""


# The same as google's parser says.


NAMES = st.text(alphabet="ab", max_size=2)
PARAMETER = st.one_of(
    st.builds(lambda v: pb.InferParameter(bool_param=v), st.booleans()),
    st.builds(lambda v: pb.InferParameter(int64_param=v), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda v: pb.InferParameter(string_param=v), st.text(max_size=4)),
    st.builds(lambda v: pb.InferParameter(double_param=v), st.floats(allow_nan=False)),
    st.builds(lambda v: pb.InferParameter(uint64_param=v), st.integers(0, 2**64 - 1)),
    st.builds(pb.InferParameter),
)
CONTENTS = st.one_of(
    st.builds(pb.InferTensorContents),
    st.builds(
        lambda v: pb.InferTensorContents(int_contents=v),
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    ),
    st.builds(
        lambda v: pb.InferTensorContents(fp32_contents=v),
        st.lists(st.floats(width=32, allow_nan=False), max_size=4),
    ),
    st.builds(lambda v: pb.InferTensorContents(bytes_contents=v), st.lists(st.binary(max_size=4))),
)
PIECE = st.one_of(
    st.builds(lambda v: pb.ModelInferRequest(model_name=v), NAMES),
    st.builds(lambda v: pb.ModelInferRequest(id=v), st.text(max_size=3)),
    st.builds(lambda v: pb.ModelInferRequest(raw_input_contents=v), st.lists(st.binary())),
    st.builds(lambda k, v: pb.ModelInferRequest(parameters={k: v}), st.text(max_size=2), PARAMETER),
    st.builds(
        lambda n, t, s, c, p: pb.ModelInferRequest(
            inputs=[
                pb.ModelInferRequest.InferInputTensor(
                    name=n, datatype=t, shape=s, contents=c, parameters=p
                )
            ]
        ),
        st.text(max_size=2),
        st.sampled_from(["INT32", "INT8", "FP32", "BYTES", "FP16", "?"]),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        CONTENTS | st.none(),
        st.dictionaries(NAMES, PARAMETER, max_size=2),
    ),
    st.builds(
        lambda n, p: pb.ModelInferRequest(
            outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=n, parameters=p)]
        ),
        st.text(max_size=2),
        st.dictionaries(NAMES, PARAMETER, max_size=2),
    ),
)
WIRE = st.lists(PIECE, max_size=6).map(
    lambda pieces: b"".join(piece.SerializeToString() for piece in pieces)
)


def agrees_with_google(data: bytes) -> None:
    """Decode twice, so that kept prefixes are used too, and compare with google's parser."""
    try:
        expected = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        with pytest.raises(RequestError):
            decode_model_infer(data)
        return
    for _ in range(2):
        try:
            request = decode_model_infer(data)
        except RequestError as error:
            assert error.code is not ErrorCode.INTERNAL, error.message  # noqa: PT017
            return
        assert request.model_name == expected.model_name
        assert request.model_version == expected.model_version
        assert request.id == expected.id
        assert [o.name for o in request.outputs] == [o.name for o in expected.outputs]
        for key, value in request.parameters.items():
            parameter = expected.parameters[key]
            assert value == getattr(parameter, parameter.WhichOneof("parameter_choice"))
        raws = iter(expected.raw_input_contents)
        for tensor, wanted in zip(request.inputs.values(), expected.inputs, strict=True):
            assert (tensor.name, tensor.datatype) == (wanted.name, wanted.datatype)
            assert tensor.shape == tuple(wanted.shape)
            contents = wanted.contents
            values = next((list(v) for _, v in contents.ListFields()), None)
            if values is None:
                assert bytes(tensor.raw) == next(raws, b"")
            elif tensor.datatype == "BYTES":
                assert bytes(tensor.raw) == encode_bytes_elements(values)
            else:
                dtype = NUMPY_DTYPES[tensor.datatype]
                assert bytes(tensor.raw) == np.array(values, dtype).tobytes()


@PROPERTY
@given(WIRE)
def test_merged_messages_mean_what_google_says(data):
    agrees_with_google(data)


@PROPERTY
@given(WIRE, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.data())
def test_mutated_and_truncated_messages_are_refused_exactly_when_google_refuses(data, edits, draw):
    mutated = bytearray(data)
    for position, byte in edits:
        if position < len(mutated):
            mutated[position] = byte
    agrees_with_google(bytes(mutated[: draw.draw(st.integers(0, len(mutated)))]))


@PROPERTY
@given(st.binary(max_size=40))
def test_random_bytes_never_raise_anything_but_request_errors(data):
    agrees_with_google(data)
    with suppress(RequestError):
        decode_model_infer(memoryview(data))


# Responses.


def respond(*outputs: Tensor, request_id: str = "") -> InferResponse:
    return InferResponse("m", "2", request_id, list(outputs))


def test_a_response_has_one_raw_entry_an_output():
    response = respond(
        Tensor("A", "FP32", (1, 2), array=np.array([[1, 2]], np.float32)),
        Tensor("B", "BYTES", (0,), raw=b""),
        Tensor("C", "INT8", (), raw=b"\5"),
        request_id="x",
    )
    response.parameters = {"b": False, "i": -1, "d": 0.5, "s": "", "u": 2**64 - 1}
    for _ in range(2):
        (data,) = encode_model_infer_response(response)
        got = pb.ModelInferResponse.FromString(data)
        assert (got.model_name, got.model_version, got.id) == ("m", "2", "x")
        assert [(o.name, o.datatype, list(o.shape)) for o in got.outputs] == [
            ("A", "FP32", [1, 2]),
            ("B", "BYTES", [0]),
            ("C", "INT8", []),
        ]
        assert list(got.raw_output_contents) == [struct.pack("<2f", 1, 2), b"", b"\5"]
        parameters = {
            key: (value.WhichOneof("parameter_choice"), value)
            for key, value in got.parameters.items()
        }
        assert parameters["b"][0] == "bool_param"
        assert not parameters["b"][1].bool_param
        assert parameters["i"][1].int64_param == -1
        assert parameters["d"][1].double_param == 0.5
        assert parameters["s"][0] == "string_param"
        assert parameters["u"][1].uint64_param == 2**64 - 1
        assert ModelInferResponse.parse(bytes(data)).id == "x"


def test_large_outputs_are_parts_of_their_own_and_not_copied():
    large = bytes(JOINED_BYTES_MAX + 1)
    small = bytes(JOINED_BYTES_MAX)
    parts = encode_model_infer_response(
        respond(
            Tensor("A", "UINT8", (len(small),), raw=small),
            Tensor("B", "UINT8", (len(large),), raw=large),
            Tensor("C", "UINT8", (1,), raw=b"c"),
        )
    )
    assert len(parts) == 3
    assert parts[1] is large
    got = pb.ModelInferResponse.FromString(b"".join(parts))
    assert list(got.raw_output_contents) == [small, large, b"c"]


def test_only_the_outputs_asked_for_are_sent():
    request = InferRequest("m")
    request.outputs = (RequestedOutput("B"), RequestedOutput("A"))
    response = respond(*(Tensor(name, "INT8", (1,), raw=name.encode()) for name in "ABC"))
    got = pb.ModelInferResponse.FromString(b"".join(encode_model_infer_response(response, request)))
    assert [output.name for output in got.outputs] == ["A", "B"]
    assert list(got.raw_output_contents) == [b"A", b"B"]


def stream(response: InferResponse, **options: Any) -> Any:
    return pb.ModelStreamInferResponse.FromString(
        b"".join(encode_stream_response(response, **options))
    )


@pytest.mark.parametrize("size", [1, JOINED_BYTES_MAX + 1])
@pytest.mark.parametrize("final", [True, False])
def test_every_stream_response_says_whether_it_is_final(size, final):
    response = respond(Tensor("A", "UINT8", (size,), raw=bytes(size)), request_id="x")
    response.final = final
    got = stream(response)
    assert got.error_message == ""
    assert got.infer_response.id == "x"
    assert got.infer_response.parameters["triton_final_response"].bool_param is final
    assert got.infer_response.raw_output_contents[0] == bytes(size)


def test_an_empty_final_response_has_no_outputs():
    response = respond(request_id="x")
    response.empty = True
    got = stream(response).infer_response
    assert (got.id, got.model_name, got.model_version) == ("x", "m", "2")
    assert not got.outputs
    assert got.parameters["triton_final_response"].bool_param


def test_an_error_of_a_model_names_request_and_model_and_one_before_it_only_the_request():
    response = respond(request_id="x")
    response.error = invalid_argument("no good")
    got = stream(response)
    assert got.error_message == "no good"
    assert (got.infer_response.id, got.infer_response.model_name) == ("x", "m")
    assert got.infer_response.parameters["triton_final_response"].bool_param
    got = stream(response, enqueued=False)
    assert got.error_message == "no good"
    assert got.infer_response == pb.ModelInferResponse(id="x")


def test_a_response_parameter_beyond_64_bits_is_unsupported():
    response = respond()
    response.parameters = {"k": 2**64}
    with Refused("'k'", code=ErrorCode.UNSUPPORTED):
        encode_model_infer_response(response)


RAW_DATATYPES = sorted(NUMPY_DTYPES)


@PROPERTY
@given(
    st.sampled_from(RAW_DATATYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.binary(min_size=216, max_size=216),
)
def test_any_raw_tensor_goes_in_and_out_unchanged(datatype, shape, noise):
    count = int(np.prod(shape))
    if datatype == "BYTES":
        raw = encode_bytes_elements([noise[index : index * 2] for index in range(count)])
    elif datatype == "BOOL":
        raw = bytes(byte & 1 for byte in noise[:count])
    else:
        raw = noise[: count * NUMPY_DTYPES[datatype].itemsize]
    made = message(("IN", datatype, shape), raws=(raw,))
    model = spec(InputSpec("IN", datatype, tuple(-1 for _ in shape)))
    tensor = decode(made, model).inputs["IN"]
    assert bytes(tensor.raw) == raw
    copy = Tensor("OUT", datatype, tensor.shape, array=tensor.array)
    got = pb.ModelInferResponse.FromString(b"".join(encode_model_infer_response(respond(copy))))
    assert got.raw_output_contents[0] == raw
    assert list(got.outputs[0].shape) == shape
