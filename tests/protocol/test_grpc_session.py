"""gRPC calls: how they start, split, end, and what their headers say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from grpclib.const import Status
from h2.events import (
    ResponseReceived,
    StreamEnded,
    StreamReset as ClientSawReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hypothesis import given, settings, strategies as st

from tritrio.protocol.grpc_headers import STATUS_MESSAGE_BYTES_MAX
from tritrio.protocol.grpc_session import (
    CallCancelled,
    ConnectionClosed,
    HalfClosed,
    MessageReceived,
)

from .grpc_support import GZIP, PATH, changed, greeted, outcome, plain, session, start
from .http2_support import (
    greeting,
    message,
    output,
    parse_frames,
    raw_frame,
    request_frame,
)

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


@pytest.mark.parametrize("window", [65_535, 40])
def test_an_answer_in_one_go_is_written_as_message_and_status_are(window: int) -> None:
    """A window of 40 bytes holds the answer back, so it goes the long way round."""
    written: list[bytes] = []
    for at_once in (True, False):
        under_test = session()
        client, _, _ = start(
            under_test,
            b"\0\0\0\0\x01q",
            end_stream=True,
            settings={SettingCodes.INITIAL_WINDOW_SIZE: window},
        )
        # The first response says the size of the dynamic table besides, so there is a second.
        second_id = client.request(b"\0\0\0\0\x01q")
        client.exchange()
        for stream_id in (1, second_id):
            parts: list[bytes | memoryview] = [b"answer", memoryview(bytes(100))]
            if at_once:
                under_test.answer(stream_id, parts)
            else:
                under_test.send_message(stream_id, parts)
                under_test.end_call(stream_id, Status.OK)
            written.append(b"".join(under_test.take_output()))
    assert written[:2] == written[2:]
    assert all(written)
