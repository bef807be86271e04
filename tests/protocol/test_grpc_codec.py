"""Messages of the calls that are not inference are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.grpc_codec import parse_message
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.pb.grpc.reflection import v1 as reflection


def test_a_good_message_is_read_and_unknown_fields_are_skipped() -> None:
    data = bytes(pb.ModelReadyRequest(name="m", version="2"))
    for more in (b"", b"\xf2\x01\x01x"):
        message = parse_message(pb.ModelReadyRequest, memoryview(data + more))
        assert (message.name, message.version) == ("m", "2")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff\xff\xff", id="a tag cut off"),
        pytest.param(b"\n\x05ab", id="a string cut off"),
        pytest.param(b"\n", id="a length cut off"),
        pytest.param(b"\x08\x80", id="a varint cut off"),
        pytest.param(b"\x0f\x01", id="a wire type nobody has"),
        pytest.param(b"\x00\x01", id="field number 0"),
        pytest.param(b"\n\x01\xff", id="a name that is not UTF-8"),
        pytest.param(b"\x08\x05", id="a name that is a number"),
        pytest.param(b"\x0d\x01\x02\x03\x04", id="a name that is a fixed32"),
    ],
)
def test_malformed_messages_are_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(RequestError) as failed:
        parse_message(pb.ModelReadyRequest, data)
    assert failed.value.code is ErrorCode.INTERNAL
    assert failed.value.message.startswith("the message is not valid protobuf: ")


@pytest.mark.parametrize(
    ("message_type", "data"),
    [
        pytest.param(pb.LogSettingsRequest, b"\n\x02\x08\x05", id="a key of a map is a number"),
        pytest.param(
            pb.LogSettingsRequest, b"\n\x07\n\x01a\x12\x02\x18\x05", id="a text in it is a number"
        ),
        pytest.param(
            reflection.ServerReflectionRequest, b"\x2a\x02\x08\x05", id="a name in a message is one"
        ),
        pytest.param(reflection.ServerReflectionRequest, b"\x20\x0f", id="a symbol is one"),
    ],
)
def test_numbers_are_not_taken_for_names(message_type: type[Any], data: bytes) -> None:
    with pytest.raises(RequestError, match="got a field of wire type 0") as failed:
        parse_message(message_type, data)
    assert failed.value.code is ErrorCode.INTERNAL
