from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol.dtypes import NUMPY_DTYPES
from tritrio.protocol.errors import ErrorCode, invalid_argument
from tritrio.protocol.infer_wire import (
    encode_model_infer_response,
    encode_stream_response,
)
from tritrio.protocol.infer_wire_response import JOINED_BYTES_MAX
from tritrio.protocol.model_spec import InputSpec
from tritrio.protocol.pb.inference import ModelInferResponse
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.tensors import Tensor, encode_bytes_elements

from .infer_messages import decode, message
from .infer_specs import PROPERTY, Refused, spec


def respond(*outputs: Tensor, request_id: str = "") -> InferResponse:
    return InferResponse("m", "2", request_id, list(outputs))


def test_a_response_has_one_raw_entry_an_output() -> None:
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


def test_large_outputs_are_parts_of_their_own_and_not_copied() -> None:
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


def test_only_the_outputs_asked_for_are_sent() -> None:
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
def test_every_stream_response_says_whether_it_is_final(size: Any, final: Any) -> None:
    response = respond(Tensor("A", "UINT8", (size,), raw=bytes(size)), request_id="x")
    response.final = final
    got = stream(response)
    assert got.error_message == ""
    assert got.infer_response.id == "x"
    assert got.infer_response.parameters["triton_final_response"].bool_param is final
    assert got.infer_response.raw_output_contents[0] == bytes(size)


def test_an_empty_final_response_has_no_outputs() -> None:
    response = respond(request_id="x")
    response.empty = True
    got = stream(response).infer_response
    assert (got.id, got.model_name, got.model_version) == ("x", "m", "2")
    assert not got.outputs
    assert got.parameters["triton_final_response"].bool_param


def test_an_error_of_a_model_names_request_and_model_and_one_before_it_only_the_request() -> None:
    response = respond(request_id="x")
    response.error = invalid_argument("no good")
    got = stream(response)
    assert got.error_message == "no good"
    assert (got.infer_response.id, got.infer_response.model_name) == ("x", "m")
    assert got.infer_response.parameters["triton_final_response"].bool_param
    got = stream(response, enqueued=False)
    assert got.error_message == "no good"
    assert got.infer_response == pb.ModelInferResponse(id="x")


def test_a_response_parameter_beyond_64_bits_is_unsupported() -> None:
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
def test_any_raw_tensor_goes_in_and_out_unchanged(datatype: Any, shape: Any, noise: Any) -> None:
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
