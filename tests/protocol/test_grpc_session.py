"""The gRPC session: messages, metadata, codings, limits and how calls end."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from grpclib.const import Status
from h2.events import (
    ResponseReceived,
    StreamEnded,
    StreamReset as ClientSawReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.settings import SettingCodes
from hypothesis import given, settings, strategies as st

from tritrio.protocol.grpc_headers import STATUS_MESSAGE_BYTES_MAX
from tritrio.protocol.grpc_session import (
    UNCONSUMED_MESSAGES_MAX,
    CallCancelled,
    CallStarted,
    ConnectionClosed,
    GrpcLimits,
    GrpcSession,
    HalfClosed,
    MessageReceived,
    WindowOpened,
)
from tritrio.protocol.http2_events import Http2Limits

from .http2_support import (
    GRPC_HEADERS,
    Oracle,
    greeting,
    message,
    output,
    parse_frames,
    raw_frame,
    request_frame,
)

PATH = "/inference.GRPCInferenceService/ModelInfer"
GZIP = [*GRPC_HEADERS, ("grpc-encoding", "gzip"), ("grpc-accept-encoding", "identity, gzip")]


def session(**limits: int) -> GrpcSession:
    message_bytes_max = limits.pop("message_bytes_max", 2**31 - 1)
    return GrpcSession(GrpcLimits(message_bytes_max, Http2Limits(**limits)))


def greeted(**limits: int) -> GrpcSession:
    made = session(**limits)
    assert made.receive_data(greeting((4, 1 << 30))) == []
    made.take_output()
    return made


def changed(**fields: str | None) -> list[tuple[str, str]]:
    """The usual headers with some replaced, added or (None) left out."""
    new = {name.replace("_", "-"): value for name, value in fields.items()}
    headers = [(name, new.pop(name.lstrip(":"), value)) for name, value in GRPC_HEADERS]
    return [(n, v) for n, v in [*headers, *new.items()] if v is not None]


def plain(events: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for event in events:
        if isinstance(event, CallStarted):
            found.append(("call", event.stream_id, event.path))
        elif isinstance(event, MessageReceived):
            found.append(("message", event.stream_id, bytes(event.data)))
        else:
            found.append(event)
    return found


def start(
    under_test: GrpcSession,
    data: bytes | None = None,
    headers: Sequence[tuple[str, str]] = GRPC_HEADERS,
    *,
    end_stream: bool = False,
    settings: dict[SettingCodes, int] | None = None,
) -> tuple[Oracle, int, list[Any]]:
    client = Oracle(under_test, settings)
    stream_id = client.request(data, headers, end_stream=end_stream)
    return client, stream_id, client.exchange()


def outcome(client: Oracle, stream_id: int) -> tuple[int, str | None]:
    """The status and message the client sees, from trailers or from trailers alone."""
    events = client.of(TrailersReceived, stream_id) or client.of(ResponseReceived, stream_id)
    fields = dict(events[-1].headers)
    return int(fields["grpc-status"]), fields.get("grpc-message")


# --- calls


def test_a_unary_call_is_answered() -> None:
    under_test = session()
    client, stream_id, events = start(under_test, message(b"question"), end_stream=True)
    assert plain(events) == [("call", 1, PATH), ("message", 1, b"question"), HalfClosed(1)]
    assert under_test.active_calls == 1
    under_test.send_message(stream_id, [b"ans", memoryview(b"wer")])
    under_test.end_call(stream_id, Status.OK)
    client.exchange()
    assert client.headers(ResponseReceived, 1) == {
        ":status": "200",
        "content-type": "application/grpc",
    }
    assert client.data(1) == message(b"answer")
    assert client.headers(TrailersReceived, 1) == {"grpc-status": "0"}
    assert client.of(ClientSawReset) == []
    assert (under_test.active_calls, under_test.buffered_bytes) == (0, 0)


def test_a_stream_carries_messages_both_ways_at_once() -> None:
    under_test = session()
    client, stream_id, events = start(under_test, message(b"1") + message(b"") + message(b"3"))
    assert plain(events)[1:] == [("message", 1, b"1"), ("message", 1, b""), ("message", 1, b"3")]
    under_test.send_message(stream_id, [b"a"])
    client.exchange()
    client.h2.send_data(stream_id, message(b"4"), end_stream=True)
    assert plain(client.exchange()) == [("message", 1, b"4"), HalfClosed(1)]
    under_test.send_message(stream_id, [])
    under_test.end_call(stream_id, Status.OK)
    client.exchange()
    assert client.data(stream_id) == message(b"a") + message(b"")
    assert outcome(client, stream_id) == (0, None)


def test_an_error_without_messages_is_one_header_block() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, message(b""), end_stream=True)
    under_test.end_call(
        stream_id, Status.NOT_FOUND, "no model 'é%'", [("a", "b"), ("c-bin", b"\0")]
    )
    client.exchange()
    assert client.headers(ResponseReceived, stream_id) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": "no model '%C3%A9%25'",
        "a": "b",
        "c-bin": "AA",
    }
    assert client.of(TrailersReceived) == []
    assert len(client.of(StreamEnded)) == 1


def test_ending_before_the_client_does_resets_without_error() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, message(b"x"))
    under_test.end_call(stream_id, Status.OK)
    client.exchange()
    assert outcome(client, stream_id) == (0, None)
    assert [event.error_code for event in client.of(ClientSawReset)] == [0]
    assert (under_test.active_calls, under_test.buffered_bytes) == (0, 0)


def test_bad_trailing_metadata_raises_and_leaves_the_call_alive() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, message(b"x"))
    with pytest.raises(ValueError, match="Invalid metadata"):
        under_test.end_call(stream_id, Status.OK, metadata=[("a", "new\nline")])
    under_test.end_call(stream_id, Status.OK)
    client.exchange()
    assert outcome(client, stream_id) == (0, None)


def test_a_long_status_message_is_cut_between_escapes() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test)
    under_test.end_call(stream_id, Status.INTERNAL, "ab" + "é" * 5000)
    client.exchange()
    text = outcome(client, stream_id)[1]
    assert text is not None
    assert STATUS_MESSAGE_BYTES_MAX - 3 <= len(text) <= STATUS_MESSAGE_BYTES_MAX
    assert text[:8] == "ab%C3%A9"
    assert text[-3] == "%"


def test_the_client_may_cancel() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, message(b"x"))
    client.h2.reset_stream(stream_id, 8)
    assert client.exchange() == [CallCancelled(stream_id, "The client reset the stream.")]
    under_test.send_message(stream_id, [b"late"])
    under_test.end_call(stream_id, Status.OK)
    under_test.consumed(stream_id, 1)
    assert (under_test.has_output, under_test.active_calls) == (False, 0)
    assert (under_test.buffered_bytes, under_test.unsent_bytes(stream_id)) == (0, 0)


def test_a_cancel_amid_a_message_frees_its_bytes() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, message(bytes(10_000))[:5000])
    assert under_test.buffered_bytes == 4995
    client.h2.reset_stream(stream_id, 8)
    client.exchange()
    assert under_test.buffered_bytes == 0


def test_end_of_connection_cancels_every_call() -> None:
    under_test = session()
    client, first, _ = start(under_test, message(b"x"))
    second = client.request(message(b"y"))
    client.exchange()
    reason = "The client closed the connection."
    assert under_test.received_eof() == [
        CallCancelled(first, reason),
        CallCancelled(second, reason),
        ConnectionClosed(reason),
    ]
    assert (under_test.active_calls, under_test.buffered_bytes) == (0, 0)
    assert under_test.should_close
    assert under_test.receive_data(request_frame(99)) == []


def test_a_broken_connection_cancels_every_call() -> None:
    under_test = greeted()
    under_test.receive_data(request_frame(1))
    events = under_test.receive_data(raw_frame(6, 0, 0, b"short"))
    reason = "The frame must have 8 bytes, got 5."
    assert events == [CallCancelled(1, reason), ConnectionClosed(reason)]
    assert parse_frames(output(under_test))[-1].additional_data == reason.encode()


def test_shutdown_lets_calls_finish() -> None:
    under_test = greeted()
    under_test.receive_data(request_frame(1))
    under_test.start_shutdown()
    assert plain(under_test.receive_data(request_frame(3))) == [("call", 3, PATH)]
    under_test.finish_shutdown()
    assert under_test.receive_data(request_frame(5)) == []
    assert [under_test.active_calls, under_test.should_close] == [2, False]
    under_test.end_call(1, Status.OK)
    under_test.end_call(3, Status.OK)
    assert [under_test.active_calls, under_test.should_close] == [0, True]


# --- splits


def test_every_split_of_a_unary_call_means_the_same() -> None:
    octets = greeting() + request_frame(1) + raw_frame(0, 1, 1, message(b"0123456789"))
    expected = [("call", 1, PATH), ("message", 1, b"0123456789"), HalfClosed(1)]
    for cut in range(len(octets) + 1):
        under_test = session()
        events = [*under_test.receive_data(octets[:cut]), *under_test.receive_data(octets[cut:])]
        assert plain(events) == expected
    bytewise = session()
    assert plain([e for n in octets for e in bytewise.receive_data(bytes((n,)))]) == expected
    assert bytewise.buffered_bytes == 10 + len(output(bytewise))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=30), max_size=6),
    frame_cuts=st.lists(st.integers(0, 200), max_size=8),
    step=st.integers(1, 300),
    consumes=st.booleans(),
)
def test_messages_survive_any_framing(
    payloads: list[bytes], frame_cuts: list[int], step: int, consumes: bool
) -> None:
    octets = b"".join(message(payload) for payload in payloads)
    cuts = sorted({0, len(octets), *(cut for cut in frame_cuts if cut < len(octets))})
    frames = [raw_frame(0, 0, 1, octets[a:b]) for a, b in pairwise(cuts)]
    wire = request_frame(1) + b"".join(frames) + raw_frame(0, 1, 1)
    under_test = greeted()
    events: list[Any] = []
    for begin in range(0, len(wire), step):
        for event in under_test.receive_data(wire[begin : begin + step]):
            events.append(event)
            if consumes and isinstance(event, MessageReceived):
                under_test.consumed(1, len(event.data))
    assert plain(events)[1:] == [*(("message", 1, p) for p in payloads), HalfClosed(1)]
    assert under_test.buffered_bytes == (0 if consumes else sum(map(len, payloads)))


# --- headers


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("40m", 0.04),
        ("50u", 50e-6),
        ("60n", 60e-9),
        ("0S", 0.0),
        ("99999999S", 99_999_999.0),
        ("100000000S", None),
        ("5", None),
        ("S", None),
        ("-1S", None),
        ("1.5S", None),
        ("5s", None),
        ("٣S", None),
        ("5 S", None),
    ],
)
def test_the_timeout_is_read_or_means_none(text: str, timeout_s: float | None) -> None:
    _, _, (call,) = start(session(), headers=changed(grpc_timeout=text))
    assert call.timeout_s == timeout_s


def test_metadata_is_what_is_not_protocol() -> None:
    headers = [
        *GZIP,
        ("grpc-timeout", "1S"),
        ("x-a", "1"),
        ("x-a", "2"),
        ("x-b", "ü"),
        ("x-bin", "AQI=,Aw"),
        ("x-bin", ""),
    ]
    _, _, (call,) = start(session(), headers=headers)
    assert call.metadata == {
        "user-agent": ["grpc-test"],
        "x-a": ["1", "2"],
        "x-b": ["ü"],
        "x-bin": [b"\1\2", b"\3", b""],
    }
    assert (call.encoding, call.accept_encoding) == ("gzip", "identity, gzip")


def test_binary_metadata_that_is_no_base64_ends_the_call() -> None:
    client, stream_id, events = start(session(), headers=changed(x_bin="A"))
    assert events == []
    assert outcome(client, stream_id) == (13, "The metadata x-bin must be base64.")


@pytest.mark.parametrize(
    "content_type",
    ["application/grpc", "application/grpc+proto", "application/grpc; v=1", "Application/gRPC"],
)
def test_grpc_content_types_are_taken(content_type: str) -> None:
    assert len(start(session(), headers=changed(content_type=content_type))[2]) == 1


def test_te_may_be_missing() -> None:
    assert len(start(session(), headers=changed(te=None))[2]) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (changed(content_type="application/json"), "415"),
        (changed(content_type="application/grpc+json"), "415"),
        (changed(content_type="application/grpcweb"), "415"),
        (changed(content_type=None), "415"),
        (changed(method="GET"), "405"),
    ],
)
def test_what_is_no_grpc_gets_a_plain_status(headers: list[tuple[str, str]], status: str) -> None:
    under_test = session()
    client, stream_id, events = start(under_test, headers=headers)
    assert events == []
    assert client.headers(ResponseReceived, stream_id)[":status"] == status
    assert len(client.of(StreamEnded, stream_id)) == 1
    assert under_test.active_calls == 0


def test_refusals_that_nobody_reads_are_limited() -> None:
    under_test = greeted(answers_max=10)
    wrong = changed(method="GET")
    for stream_id in range(1, 23, 2):
        assert under_test.receive_data(request_frame(stream_id, wrong, end_stream=True)) == []
    (event,) = under_test.receive_data(request_frame(23, end_stream=True))
    assert isinstance(event, ConnectionClosed)


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
    under_test.send_message(stream_id, [b"ans" * 50, b"wer"], compress=True)
    under_test.send_message(stream_id, [b"as it is"])
    under_test.end_call(stream_id, Status.OK)
    client.exchange()
    assert client.headers(ResponseReceived, stream_id)["grpc-encoding"] == encoding
    answer = client.data(stream_id)
    size = int.from_bytes(answer[1:5], "big")
    assert answer[0] == 1
    assert zlib.decompress(answer[5 : 5 + size], 47) == b"ans" * 50 + b"wer"
    assert answer[5 + size :] == message(b"as it is")


def test_a_client_that_takes_no_coding_gets_none() -> None:
    under_test = session()
    client, stream_id, _ = start(under_test, headers=changed(grpc_accept_encoding="br, identity"))
    under_test.send_message(stream_id, [b"answer"], compress=True)
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
    assert plain(events)[1:] == [("message", 1, b"good"), CallCancelled(stream_id, text or "")]
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
        under_test.receive_data(block)
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
