"""gRPC messages: codings, limits and flow control."""

from __future__ import annotations

import gzip
import zlib
from random import Random
from typing import Any

import pytest
from grpclib.const import Status
from h2.events import (
    ResponseReceived,
    StreamReset as ClientSawReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.settings import SettingCodes
from hypothesis import given, settings, strategies as st

from tritrio.protocol.grpc_compression import (
    DEFLATED_PIECE_BYTES,
    Inflater,
    MessageError,
    deflate_message,
)
from tritrio.protocol.grpc_messages import INLINE_INFLATED_BYTES_MAX
from tritrio.protocol.grpc_session import (
    UNCONSUMED_MESSAGES_MAX,
    CallCancelled,
    DeflatedReceived,
    HalfClosed,
    MessageReceived,
    WindowOpened,
)

from .grpc_support import GZIP, changed, greeted, outcome, plain, session, start
from .http2_support import (
    GRPC_HEADERS,
    Oracle,
    message,
    raw_frame,
    request_frame,
)

# --- codings


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_messages_are_inflated_and_answered_alike(encoding: str, pack: Any) -> None:
    under_test = session()
    headers = changed(grpc_encoding=encoding, grpc_accept_encoding=f"identity,{encoding}")
    data = message(pack(b"squeezed" * 100), 1) + message(b"plain")
    client, stream_id, events = start(under_test, data, headers)
    assert plain(events)[1:] == [("message", 1, b"squeezed" * 100), ("message", 1, b"plain")]
    assert under_test.buffered_bytes == 805
    assert under_test.response_encoding(stream_id, 1) == encoding
    answer = list(deflate_message([b"ans" * 50, b"wer"], encoding, 1))
    under_test.send_message(stream_id, answer, encoding=encoding, compressed=True)
    assert under_test.response_encoding(stream_id, 1) == encoding
    under_test.send_message(stream_id, [b"as it is"], encoding=encoding)
    under_test.end_call(stream_id, Status.OK)
    client.exchange()
    assert client.headers(ResponseReceived, stream_id)["grpc-encoding"] == encoding
    data = client.data(stream_id)
    size = int.from_bytes(data[1:5], "big")
    assert data[0] == 1
    assert zlib.decompress(data[5 : 5 + size], 47) == b"ans" * 50 + b"wer"
    assert data[5 + size :] == message(b"as it is")


def deflated(events: list[Any]) -> list[DeflatedReceived]:
    return [event for event in events if isinstance(event, DeflatedReceived)]


def whole(event: DeflatedReceived) -> bytes:
    inflater = event.message.inflater
    while not inflater.is_whole:
        inflater.step(100_000)
    return bytes(inflater.message)


@pytest.mark.parametrize("ends", [False, True])
def test_message_that_inflates_far_is_left_to_be_inflated_in_steps(*, ends: bool) -> None:
    under_test = session()
    text = bytes(range(250)) * (INLINE_INFLATED_BYTES_MAX // 250 + 1)
    packed = gzip.compress(text)
    data = message(packed, 1)
    _, stream_id, events = start(under_test, data, GZIP, end_stream=ends)
    (event,) = deflated(events)
    assert events[-1] is event
    assert event.ends is ends
    assert under_test.buffered_bytes == len(packed)
    assert whole(event) == text
    received = under_test.inflated(event)
    assert received == MessageReceived(stream_id, bytearray(text), ends)
    assert under_test.buffered_bytes == len(text)
    under_test.consumed(stream_id, len(text))
    assert under_test.buffered_bytes < 100  # a window update


def test_message_that_is_inflated_when_its_call_is_over_counts_nowhere() -> None:
    under_test = session()
    data = message(gzip.compress(bytes(INLINE_INFLATED_BYTES_MAX + 1)), 1)
    _, stream_id, events = start(under_test, data, GZIP)
    (event,) = deflated(events)
    under_test.end_call(stream_id, Status.UNAVAILABLE)
    under_test.take_output()
    whole(event)
    under_test.inflated(event)
    assert under_test.buffered_bytes == 0


def test_messages_of_one_read_that_inflate_far_together_are_left_in_their_order() -> None:
    under_test = session()
    size = INLINE_INFLATED_BYTES_MAX * 2 // 5
    texts = [bytes([number]) * size for number in range(4)]
    packed = [gzip.compress(text) for text in texts]
    data = b"".join(message(each, 1) for each in packed)
    client, stream_id, events = start(under_test, data, GZIP)
    kinds = [type(event) for event in events[1:]]
    assert kinds == [MessageReceived, MessageReceived, DeflatedReceived, DeflatedReceived]
    under_test.consumed(stream_id, 2 * size)
    for event, text in zip(deflated(events), texts[2:], strict=True):
        assert whole(event) == text
        under_test.inflated(event)
        under_test.consumed(stream_id, size)
    client.h2.send_data(stream_id, message(packed[0], 1))  # the next read inflates at once again
    assert plain(client.exchange()) == [("message", stream_id, texts[0])]


@pytest.mark.parametrize("size", [1, 1000, 99_999, 100_000, 100_001, 200_000])
@pytest.mark.parametrize("step", [1000, 100_000])
@pytest.mark.parametrize("random", [False, True])
def test_inflater_gives_the_same_in_any_steps(size: int, step: int, *, random: bool) -> None:
    text = Random(7).randbytes(size) if random else bytes(size)
    inflater = Inflater(gzip.compress(text), "gzip", size)
    count = 0
    while not inflater.is_whole:
        inflater.step(step)
        count += 1
        assert len(inflater.message) <= count * step
    assert bytes(inflater.message) == text


@pytest.mark.parametrize(
    ("data", "size_max", "status"),
    [
        (gzip.compress(bytes(300_000)), 299_999, Status.RESOURCE_EXHAUSTED),
        (gzip.compress(bytes(300_000))[:-1], 300_000, Status.INTERNAL),
        (gzip.compress(Random(7).randbytes(600_000))[:-9], 600_000, Status.INTERNAL),
        (gzip.compress(bytes(300_000)) + b"x", 300_000, Status.INTERNAL),
        (gzip.compress(b"x") + bytes(DEFLATED_PIECE_BYTES), 300_000, Status.INTERNAL),
        (gzip.compress(Random(7).randbytes(600_000))[:-300_000], 600_000, Status.INTERNAL),
    ],
)
def test_inflater_refuses_what_is_not_one_stream_within_the_limit(
    data: bytes, size_max: int, status: Status
) -> None:
    inflater = Inflater(data, "gzip", size_max)

    def inflate() -> None:
        while not inflater.is_whole:
            inflater.step(100_000)

    with pytest.raises(MessageError) as caught:
        inflate()
    assert caught.value.status is status
    assert len(inflater.message) < size_max + 100_001


def test_a_client_that_takes_no_coding_gets_none() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, headers=changed(grpc_accept_encoding="br, identity"))
    assert under_test.response_encoding(stream_id, 9) == "identity"
    under_test.send_message(stream_id, [b"answer"])
    client.exchange()
    assert client.data(stream_id) == message(b"answer")
    assert "grpc-encoding" not in client.headers(ResponseReceived, stream_id)


def test_an_unknown_coding_is_unimplemented_and_lists_the_known() -> None:
    client, stream_id, events = start(session(), headers=changed(grpc_encoding="snappy"))
    assert events == []
    fields = client.headers(ResponseReceived, stream_id)
    assert fields["grpc-status"] == "12"
    assert fields["grpc-accept-encoding"] == "identity, deflate, gzip"


MESSAGE_FAULTS = {
    "over the limit": (GRPC_HEADERS, message(bytes(101)), 8),
    "claims 4 GiB": (GRPC_HEADERS, b"\0\xff\xff\xff\xff", 8),
    "flag 2": (GRPC_HEADERS, message(b"x", 2), 13),
    "compressed without a coding": (GRPC_HEADERS, message(gzip.compress(b"x"), 1), 13),
    "no gzip": (GZIP, message(b"no gzip", 1), 13),
    "empty gzip": (GZIP, message(b"", 1), 13),
    "half a gzip": (GZIP, message(gzip.compress(b"x" * 50)[:-3], 1), 13),
    "gzip and more": (GZIP, message(gzip.compress(b"x") + b"y", 1), 13),
    "bomb": (GZIP, message(gzip.compress(bytes(101)), 1), 8),
}


@pytest.mark.parametrize("fault", MESSAGE_FAULTS)
def test_a_message_that_cannot_be_taken_ends_the_call(fault: str) -> None:
    headers, data, status = MESSAGE_FAULTS[fault]
    under_test = session(message_bytes_max=100)
    client, stream_id, events = start(under_test, message(b"good") + data, headers)
    code, text = outcome(client, stream_id)
    assert code == status
    assert plain(events)[1:] == [
        ("message", 1, b"good"),
        CallCancelled(stream_id, text or "", Status(status)),
    ]
    assert [event.error_code for event in client.of(ClientSawReset)] == [0]
    assert (under_test.active_calls, under_test.buffered_bytes) == (0, 0)
    client.request(message(b"next"), headers, end_stream=False)
    assert len(client.exchange()) == 2


@pytest.mark.parametrize("flag", [0, 1])
def test_messages_at_the_limit_are_taken(flag: int) -> None:
    under_test = session(message_bytes_max=100)
    data = message(gzip.compress(bytes(100)), 1) if flag else message(bytes(100))
    _, _, events = start(under_test, data, GZIP)
    assert plain(events)[1:] == [("message", 1, bytes(100))]


def test_the_real_limit_is_that_of_protobuf() -> None:
    under_test = greeted()
    under_test.receive_data(request_frame(1) + request_frame(3))
    assert under_test.receive_data(raw_frame(0, 0, 1, b"\0\x7f\xff\xff\xff")) == []
    (event,) = under_test.receive_data(raw_frame(0, 0, 3, b"\0\x80\0\0\0"))
    assert isinstance(event, CallCancelled)
    assert under_test.buffered_bytes < 500


@pytest.mark.parametrize("size", [1, 4, 5, 9])
def test_a_truncated_message_is_internal(size: int) -> None:
    under_test = session()
    data = message(b"whole") + message(b"message")[:size]
    client, stream_id, events = start(under_test, data, end_stream=True)
    assert isinstance(plain(events)[-1], CallCancelled)
    assert outcome(client, stream_id)[0] == 13
    assert client.of(ClientSawReset) == []


def test_messages_that_wait_are_limited_in_number() -> None:
    under_test = greeted()
    under_test.receive_data(request_frame(1) + request_frame(3))
    block = raw_frame(0, 0, 1, message(b"") * 20_000)
    for _ in range(UNCONSUMED_MESSAGES_MAX // 20_000):
        assert len(under_test.receive_data(block)) == 20_000
    under_test.consumed(1, 0)  # empty messages need no bytes
    for _ in range(UNCONSUMED_MESSAGES_MAX // 20_000):
        assert len(under_test.receive_data(block)) == 20_000
    (event,) = under_test.receive_data(raw_frame(0, 0, 3, message(b"")))[1:]
    assert isinstance(event, CallCancelled)
    assert event.stream_id == 3


# --- flow control


def updates(client: Oracle, stream_id: int) -> int:
    return sum(event.delta for event in client.of(WindowUpdated, stream_id))


def test_the_window_comes_back_only_for_consumed_messages() -> None:
    under_test = session(stream_window_bytes=1000)
    client, stream_id, events = start(under_test, message(bytes(295)) * 3)
    assert len(events) == 4
    assert updates(client, stream_id) == 0
    under_test.consumed(stream_id, 295)
    client.exchange()
    assert updates(client, stream_id) == 0  # told by halves
    under_test.consumed(stream_id, 294)
    client.exchange()
    assert updates(client, stream_id) == 0
    assert under_test.buffered_bytes == 296
    under_test.consumed(stream_id, 1)
    client.exchange()
    assert updates(client, stream_id) == 600


def test_a_message_larger_than_the_window_arrives() -> None:
    under_test = session(stream_window_bytes=1000)
    client, stream_id, _ = start(under_test)
    data = message(bytes(range(250)) * 40)
    events: list[Any] = []
    while data:
        room = min(client.h2.local_flow_control_window(stream_id), 300)
        assert room > 0
        client.h2.send_data(stream_id, data[:room])
        data = data[room:]
        events += client.exchange()
    assert plain(events) == [("message", 1, bytes(range(250)) * 40)]


def test_a_large_message_behind_an_unconsumed_one_waits() -> None:
    under_test = session(stream_window_bytes=1000)
    client, stream_id, _ = start(under_test, message(b"small") + message(bytes(5000))[:990])
    assert client.h2.local_flow_control_window(stream_id) == 0
    assert updates(client, stream_id) == 0
    under_test.consumed(stream_id, 5)
    client.exchange()
    assert updates(client, stream_id) == 1000


def test_a_call_that_ends_gives_all_of_the_connection_window_back() -> None:
    under_test = session(stream_window_bytes=60_000, connection_window_bytes=65_535)
    client = Oracle(under_test)
    for _ in range(10):
        stream_id = client.request(message(bytes(15_000)), end_stream=False)
        client.h2.send_data(stream_id, message(bytes(500))[:200])
        client.exchange()
        under_test.end_call(stream_id, Status.OK)
        client.exchange()
    assert updates(client, 0) >= 10 * 15_000 - 65_535


def test_back_pressure_is_told_and_lifted() -> None:
    under_test = session()
    client, stream_id, _ = start(
        under_test, message(b"q"), settings={SettingCodes.INITIAL_WINDOW_SIZE: 50}
    )
    under_test.send_message(stream_id, [bytes(100)])
    assert under_test.unsent_bytes(stream_id) == 55
    under_test.send_message(stream_id, [b"second"])
    assert under_test.unsent_bytes(stream_id) == 66
    client.exchange()
    client.h2.increment_flow_control_window(65, stream_id)
    assert client.exchange() == []
    assert under_test.unsent_bytes(stream_id) == 1
    client.h2.increment_flow_control_window(1, stream_id)
    assert client.exchange() == [WindowOpened(stream_id)]
    assert client.data(stream_id) == message(bytes(100)) + message(b"second")


def test_a_call_that_is_ended_still_sends_what_is_held_back() -> None:
    under_test = session()
    client, stream_id, _ = start(
        under_test, message(b"q"), settings={SettingCodes.INITIAL_WINDOW_SIZE: 50}
    )
    under_test.send_message(stream_id, [bytes(100)])
    under_test.end_call(stream_id, Status.ABORTED, "enough")
    client.exchange()
    assert (under_test.active_calls, client.of(TrailersReceived)) == (1, [])
    client.h2.send_data(stream_id, message(b"more"))
    assert client.exchange() == []
    client.h2.increment_flow_control_window(100, stream_id)
    assert client.exchange() == []
    assert client.data(stream_id) == message(bytes(100))
    assert outcome(client, stream_id) == (10, "enough")
    assert [event.error_code for event in client.of(ClientSawReset)] == [0]
    assert (under_test.active_calls, under_test.buffered_bytes) == (0, 0)


def test_wide_memoryviews_are_sent_as_their_bytes() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, message(b"q"))
    under_test.send_message(stream_id, [memoryview(bytes(range(16))).cast("i"), bytearray(b"x")])
    client.exchange()
    assert client.data(stream_id) == message(bytes(range(16)) + b"x")


@settings(max_examples=200, derandomize=True, deadline=None)
@given(payload=st.binary(max_size=200), step=st.integers(1, 60), encoded=st.booleans())
def test_any_payload_ends_in_messages_or_a_status(payload: bytes, step: int, encoded: bool) -> None:
    under_test = greeted(message_bytes_max=50)
    under_test.receive_data(request_frame(1, GZIP if encoded else GRPC_HEADERS))
    events: list[Any] = []
    for begin in range(0, len(payload), step):
        events += under_test.receive_data(raw_frame(0, 0, 1, payload[begin : begin + step]))
    events += under_test.receive_data(raw_frame(0, 1, 1))
    assert isinstance(events[-1], HalfClosed | CallCancelled)
    assert all(isinstance(event, MessageReceived) for event in events[:-1])
    assert under_test.active_calls == isinstance(events[-1], HalfClosed)
