"""Tensors in shared memory: what requests say of them, and how responses leave them out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol.infer_wire import decode_model_infer, encode_model_infer_response
from tritrio.protocol.json_codec import PRINTED_BYTES_MAX, decode_infer, prints_much
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.shared_tensors import SharedTensors
from tritrio.protocol.tensors import Tensor

from .infer_messages import message
from .infer_specs import Refused, answer, body, json_input, spec

REGION = "shared_memory_region"
OFFSET = "shared_memory_offset"
SIZE = "shared_memory_byte_size"
PLACE: dict[str, Any] = {REGION: "r", OFFSET: 8, SIZE: 4}


def decode_http(text: bytes, header_length: int | None = None) -> InferRequest:
    return decode_infer(
        text, header_length=header_length, spec=spec(), model_name="m", model_version=""
    )


def http_input(name: str = "IN", **parameters: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": "INT32", "parameters": parameters}


def grpc_message(*, raws: tuple[bytes, ...] = (), output: bool = False, **parameters: Any) -> Any:
    """A message whose input IN, or output OUT, has these parameters."""
    made = message(("IN", "INT32", [1]), raws=raws)
    place = made.outputs.add(name="OUT") if output else made.inputs[0]
    for key, value in parameters.items():
        if isinstance(value, pb.InferParameter):
            place.parameters[key].CopyFrom(value)
        else:
            kind = {int: "int64_param", str: "string_param", bool: "bool_param"}[type(value)]
            setattr(place.parameters[key], kind, value)
    return made


def decode_grpc(made: Any) -> InferRequest:
    return decode_model_infer(made.SerializeToString())


def shared(request: InferRequest) -> SharedTensors:
    assert request.shared_memory is not None
    return request.shared_memory


def test_an_http_request_says_where_its_tensors_are() -> None:
    place = {REGION: "s", SIZE: 16}
    outputs: list[dict[str, Any]] = [{"name": "OUT", "parameters": place}, {"name": "OTHER"}]
    for _ in range(2):  # read, and kept
        made = decode_http(body(http_input(**PLACE), outputs=outputs))
        assert shared(made).inputs == {"IN": ("r", 8, 4)}
        assert shared(made).outputs == {"OUT": ("s", 0, 16)}
        assert made.inputs["IN"].shape == (1,)


def test_binary_tensors_beside_those_in_regions_keep_their_place() -> None:
    blob = {"name": "B", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}}
    text = body(http_input("A", **PLACE), blob, http_input("C", **PLACE))
    made = decode_http(text + b"\7\0\0\0", len(text))
    assert bytes(made.inputs["B"].raw) == b"\7\0\0\0"
    assert list(made.inputs) == ["A", "B", "C"]
    assert list(shared(made).inputs) == ["A", "C"]


def test_requests_that_were_kept_share_nothing_that_changes() -> None:
    text = body(http_input(**PLACE))
    first, second = decode_http(text), decode_http(text)
    assert shared(first) is not shared(second)
    assert first.inputs["IN"] is not second.inputs["IN"]


def test_a_request_without_regions_has_no_places() -> None:
    assert decode_http(body(json_input([1]))).shared_memory is None
    assert decode_grpc(message(("IN", "INT32", [1]), raws=(bytes(4),))).shared_memory is None


@pytest.mark.parametrize(
    ("parameters", "facts"),
    [
        ({SIZE: 4}, (SIZE, REGION)),
        ({OFFSET: 4}, (OFFSET, REGION)),
        ({REGION: "r"}, (SIZE, "'r'")),
        ({REGION: 1, SIZE: 4}, (REGION, "a string", "got 1")),
        ({REGION: "r", SIZE: -1}, (SIZE, "0 to 2**64 - 1", "-1")),
        ({REGION: "r", SIZE: True}, (SIZE, "integer", "true")),
        ({REGION: "r", SIZE: 4, OFFSET: "0"}, (OFFSET, "integer", "'0'")),
    ],
)
def test_parameters_that_say_no_place_are_refused(
    parameters: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with Refused(*facts, "input 'IN'"):
        decode_http(body(http_input(**parameters)))
    with Refused(*facts, "output 'OUT'"):
        outputs = [{"name": "OUT", "parameters": parameters}]
        decode_http(body(json_input([1]), outputs=outputs))
    with Refused(*facts, "input 'IN'"):
        decode_grpc(grpc_message(**parameters))
    with Refused(*facts, "output 'OUT'"):
        decode_grpc(grpc_message(raws=(bytes(4),), output=True, **parameters))


def test_an_input_has_one_source_of_data() -> None:
    with Refused("'data'", "got data and shared_memory_region"):
        decode_http(body({**http_input(**PLACE), "data": [1]}))
    with Refused("got binary_data_size and shared_memory_region"):
        decode_http(body(http_input(**PLACE, binary_data_size=4)))
    made = grpc_message(**PLACE)
    made.inputs[0].contents.int_contents.append(1)
    with Refused("'IN'", "'m'", "both"):
        decode_grpc(made)


def test_an_output_goes_to_one_place() -> None:
    def outputs(**parameters: Any) -> bytes:
        return body(json_input([1]), outputs=[{"name": "OUT", "parameters": parameters}])

    for classes in (0, 1):
        with Refused("'shared_memory_region'", "'classification'"):
            decode_http(outputs(**PLACE, classification=classes))
    with Refused("'shared_memory_region'", "'binary_data'"):
        decode_http(outputs(**PLACE, binary_data=True))
    assert shared(decode_http(outputs(**PLACE, binary_data=False))).outputs
    with Refused("'shared_memory_region'", "'classification'"):
        decode_grpc(grpc_message(raws=(bytes(4),), output=True, **PLACE, classification=1))


def test_a_grpc_request_says_where_its_tensors_are() -> None:
    assert shared(decode_grpc(grpc_message(**PLACE))).inputs == {"IN": ("r", 8, 4)}
    for _ in range(2):  # read, and kept
        made = decode_grpc(grpc_message(raws=(b"\7\0\0\0",), output=True, **PLACE))
        assert shared(made).outputs == {"OUT": ("r", 8, 4)}
        assert shared(made).inputs == {}
        assert bytes(made.inputs["IN"].raw) == b"\7\0\0\0"


def test_raw_contents_go_to_the_inputs_that_are_in_no_region() -> None:
    made = message(*((name, "INT32", [1]) for name in "ABC"), raws=(b"\1\0\0\0", b"\2\0\0\0"))
    for key, value in (grpc_message(**PLACE).inputs[0].parameters).items():
        made.inputs[1].parameters[key].CopyFrom(value)
    request = decode_grpc(made)
    assert list(request.inputs) == ["A", "B", "C"]
    assert [bytes(request.inputs[name].raw)[:1] for name in "AC"] == [b"\1", b"\2"]
    assert list(shared(request).inputs) == ["B"]


def test_an_unsigned_parameter_is_of_the_wrong_kind_over_grpc() -> None:
    for key in (OFFSET, SIZE):
        with Refused(key, "int64_param", "uint64_param"):
            decode_grpc(grpc_message(**{**PLACE, key: pb.InferParameter(uint64_param=4)}))


def in_region(*names: str) -> InferRequest:
    """A request whose outputs of these names go into a region."""
    outputs = [{"name": name, "parameters": {REGION: "r", SIZE: 64}} for name in names]
    return decode_http(body(json_input([1]), outputs=[*outputs, {"name": "REST"}]))


def tensors() -> tuple[Tensor, Tensor]:
    values = np.array([1, 2], np.int32)
    return Tensor("OUT", "INT32", (2,), array=values), Tensor("REST", "INT32", (2,), array=values)


def test_an_http_answer_has_no_data_of_what_is_in_a_region() -> None:
    text, header_length = answer(*tensors(), asked=in_region("OUT"))
    assert header_length is None
    assert json.loads(text)["outputs"] == [
        {"name": "OUT", "datatype": "INT32", "shape": [2]},
        {"name": "REST", "datatype": "INT32", "shape": [2], "data": [1, 2]},
    ]


def test_a_grpc_answer_has_empty_contents_for_what_is_in_a_region() -> None:
    response = InferResponse("m", "1", "", list(tensors()))
    parts = encode_model_infer_response(response, in_region("OUT"))
    reply = pb.ModelInferResponse.FromString(b"".join(parts))
    assert [(one.name, one.datatype, list(one.shape)) for one in reply.outputs] == [
        ("OUT", "INT32", [2]),
        ("REST", "INT32", [2]),
    ]
    assert list(reply.raw_output_contents) == [b"", np.array([1, 2], np.int32).tobytes()]
    assert bytes(response.outputs[0].raw) != b""  # which others may share


def test_what_goes_into_a_region_is_not_printed() -> None:
    large = Tensor("OUT", "UINT8", (PRINTED_BYTES_MAX + 1,), raw=bytes(PRINTED_BYTES_MAX + 1))
    response = InferResponse("m", "1", "", [large])
    assert not prints_much(response, in_region("OUT"))
    asked = decode_http(body(json_input([1]), outputs=[{"name": "OUT"}]))
    assert prints_much(response, asked)
