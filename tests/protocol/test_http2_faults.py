"""Broken rules and limits of an HTTP/2 connection, each at its boundary."""

from __future__ import annotations

from typing import Any

import pytest
from h2.events import (
    ResponseReceived,
)

from tritrio.protocol.http2_events import (
    ConnectionFailed,
    PingReceived,
    RequestReceived,
    StreamReset,
)
from tritrio.protocol.http2_frames import Http2ErrorCode
from tritrio.protocol.http2_headers import HEADER_LIST_BYTES_CEILING
from tritrio.protocol.http2_reader import (
    CONTINUATIONS_MAX,
    HEADER_BLOCK_BYTES_MAX,
    RECEIVED_FRAME_BYTES_MAX,
    SETTINGS_MAX,
)

from .http2_support import (
    GRPC_HEADERS,
    OK_HEADERS,
    Oracle,
    feed,
    goaways,
    greeted,
    greeting,
    numbers,
    output,
    raw_frame,
    request_block,
    request_frame,
    resets,
    session,
)

PROTOCOL_ERROR = Http2ErrorCode.PROTOCOL_ERROR
FRAME_SIZE_ERROR = Http2ErrorCode.FRAME_SIZE_ERROR
FLOW_CONTROL_ERROR = Http2ErrorCode.FLOW_CONTROL_ERROR
STREAM_CLOSED = Http2ErrorCode.STREAM_CLOSED
CALM = Http2ErrorCode.ENHANCE_YOUR_CALM


# --- faults


def setting(key: int, value: int) -> bytes:
    return raw_frame(4, 0, 0, key.to_bytes(2, "big") + numbers(value))


OPEN = request_frame(1)
CONNECTION_FAULTS = {
    "DATA on stream 0": (raw_frame(0, 0, 0, b"x"), PROTOCOL_ERROR),
    "DATA on an idle stream": (raw_frame(0, 0, 1, b"x"), PROTOCOL_ERROR),
    "DATA on a server stream": (raw_frame(0, 0, 2, b"x"), PROTOCOL_ERROR),
    "DATA padding as long as the frame": (OPEN + raw_frame(0, 8, 1, b"\x04xyz"), PROTOCOL_ERROR),
    "padded DATA of no bytes": (OPEN + raw_frame(0, 8, 1), FRAME_SIZE_ERROR),
    "HEADERS on stream 0": (raw_frame(1, 5, 0, request_block()), PROTOCOL_ERROR),
    "HEADERS on an even stream": (request_frame(2), PROTOCOL_ERROR),
    "HEADERS on a lower stream": (request_frame(3) + request_frame(1), PROTOCOL_ERROR),
    "HEADERS all padding": (raw_frame(1, 0xD, 1, b"\x09" + request_block()[:5]), PROTOCOL_ERROR),
    "HEADERS short priority": (raw_frame(1, 0x25, 1, b"abcd"), PROTOCOL_ERROR),
    "padded HEADERS of no bytes": (raw_frame(1, 0xD, 1), FRAME_SIZE_ERROR),
    "HEADERS no HPACK": (raw_frame(1, 5, 1, b"\xff"), Http2ErrorCode.COMPRESSION_ERROR),
    "HEADERS index 0": (raw_frame(1, 5, 1, b"\x80"), Http2ErrorCode.COMPRESSION_ERROR),
    "HEADERS unknown index": (raw_frame(1, 5, 1, b"\xfe"), Http2ErrorCode.COMPRESSION_ERROR),
    "table over what we allow": (
        raw_frame(1, 5, 1, b"\x3f\xe2\x1f" + request_block()),
        Http2ErrorCode.COMPRESSION_ERROR,
    ),
    "PRIORITY of 4": (raw_frame(2, 0, 1, bytes(4)), FRAME_SIZE_ERROR),
    "PRIORITY on stream 0": (raw_frame(2, 0, 0, bytes(5)), PROTOCOL_ERROR),
    "RST_STREAM of 3": (OPEN + raw_frame(3, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    "RST_STREAM on stream 0": (raw_frame(3, 0, 0, bytes(4)), PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (raw_frame(3, 0, 1, bytes(4)), PROTOCOL_ERROR),
    "SETTINGS on a stream": (raw_frame(4, 0, 1), PROTOCOL_ERROR),
    "SETTINGS of 5": (raw_frame(4, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "SETTINGS ack with values": (raw_frame(4, 1, 0, bytes(6)), FRAME_SIZE_ERROR),
    "SETTINGS too many": (raw_frame(4, 0, 0, bytes(6 * (SETTINGS_MAX + 1))), CALM),
    "SETTINGS push 2": (setting(2, 2), PROTOCOL_ERROR),
    "SETTINGS window 2**31": (setting(4, 2**31), FLOW_CONTROL_ERROR),
    "SETTINGS frame size small": (setting(5, 16_383), PROTOCOL_ERROR),
    "SETTINGS frame size large": (setting(5, 2**24), PROTOCOL_ERROR),
    "SETTINGS overflows a window": (
        OPEN + raw_frame(8, 0, 1, numbers(2**31 - 1 - 65_535)) + setting(4, 65_536),
        FLOW_CONTROL_ERROR,
    ),
    "PUSH_PROMISE": (raw_frame(5, 4, 1, bytes(4)), PROTOCOL_ERROR),
    "PING of 7": (raw_frame(6, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "PING on a stream": (raw_frame(6, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "GOAWAY of 7": (raw_frame(7, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (raw_frame(7, 0, 1, bytes(8)), PROTOCOL_ERROR),
    "WINDOW_UPDATE of 3": (raw_frame(8, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by 0": (raw_frame(8, 0, 0, numbers(0)), PROTOCOL_ERROR),
    "WINDOW_UPDATE overflow": (raw_frame(8, 0, 0, numbers(2**31 - 65_535)), FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (raw_frame(8, 0, 1, numbers(1)), PROTOCOL_ERROR),
    "CONTINUATION first": (raw_frame(9, 4, 1), PROTOCOL_ERROR),
    "CONTINUATION after the end": (OPEN + raw_frame(9, 4, 1), PROTOCOL_ERROR),
    "CONTINUATION elsewhere": (raw_frame(1, 0, 1) + raw_frame(9, 4, 3), PROTOCOL_ERROR),
    "PING inside a block": (raw_frame(1, 0, 1) + raw_frame(6, 0, 0, bytes(8)), PROTOCOL_ERROR),
    "unknown kind inside a block": (raw_frame(1, 0, 1) + raw_frame(99, 0, 1), PROTOCOL_ERROR),
    "frame over our size": (
        (RECEIVED_FRAME_BYTES_MAX + 1).to_bytes(3, "big") + bytes((99, 0)) + numbers(0),
        FRAME_SIZE_ERROR,
    ),
    "header block over its size": (
        (HEADER_BLOCK_BYTES_MAX + 1).to_bytes(3, "big") + bytes((1, 4)) + numbers(1),
        CALM,
    ),
}


@pytest.mark.parametrize("fault", CONNECTION_FAULTS)
def test_a_broken_connection_rule_ends_with_goaway(fault: str) -> None:
    octets, code = CONNECTION_FAULTS[fault]
    under_test = greeted()
    events = feed(under_test, octets)
    assert isinstance(events[-1], ConnectionFailed)
    assert events[-1].code == code
    ((_, sent_code),) = goaways(output(under_test))
    assert sent_code == code
    assert under_test.should_close
    assert (under_test.open_streams, under_test.buffered_bytes) == (0, 0)
    assert feed(under_test, request_frame(9)) == []
    assert not under_test.has_output


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\t",
        b"Q",
        greeting()[:24] + raw_frame(6, 0, 0, bytes(8)),
        greeting()[:24] + raw_frame(4, 1, 0),
    ],
)
def test_a_wrong_beginning_ends_with_goaway(octets: bytes) -> None:
    under_test = session()
    (event,) = feed(under_test, octets)
    assert event.code == PROTOCOL_ERROR
    assert goaways(output(under_test)) == [(0, PROTOCOL_ERROR)]


HALF_CLOSED = request_frame(1, end_stream=True)
STREAM_FAULTS = {
    "window update by 0": (OPEN + raw_frame(8, 0, 1, numbers(0)), PROTOCOL_ERROR),
    "window overflow": (OPEN + raw_frame(8, 0, 1, numbers(2**31 - 65_535)), FLOW_CONTROL_ERROR),
    "DATA after the end": (HALF_CLOSED + raw_frame(0, 0, 1, b"x"), STREAM_CLOSED),
    "HEADERS after the end": (HALF_CLOSED + request_frame(1, end_stream=True), STREAM_CLOSED),
    "trailers without end": (OPEN + request_frame(1, [("x", "y")]), PROTOCOL_ERROR),
    "a request as trailers": (OPEN + request_frame(1, end_stream=True), PROTOCOL_ERROR),
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_a_broken_stream_rule_resets_the_stream_alone(fault: str) -> None:
    octets, code = STREAM_FAULTS[fault]
    under_test = greeted()
    events = feed(under_test, octets + request_frame(3))
    assert [type(event) for event in events] == [RequestReceived, StreamReset, RequestReceived]
    assert events[1].code == code
    assert resets(output(under_test)) == [(1, code)]
    assert under_test.open_streams == 1


BASE = GRPC_HEADERS[:4]
MALFORMED = {
    "no method": BASE[1:],
    "no path": [BASE[0], BASE[1], BASE[3]],
    "empty path": [*BASE[:2], (":path", "")],
    "two paths": [*BASE, (":path", "/")],
    "unknown pseudo-header": [*BASE, (":status", "200")],
    "pseudo-header last": [*BASE[:3], ("a", "b"), BASE[3]],
    "upper case": [*BASE, ("Accept", "x")],
    "empty name": [*BASE, ("", "x")],
    "space in a name": [*BASE, ("a b", "x")],
    "connection": [*BASE, ("connection", "close")],
    "transfer-encoding": [*BASE, ("transfer-encoding", "chunked")],
    "newline in a value": [*BASE, ("a", "x\r\ny: z")],
    "zero byte in a value": [*BASE, ("a", "\0")],
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_request_is_reset(fault: str) -> None:
    under_test = greeted()
    assert feed(under_test, request_frame(1, MALFORMED[fault], end_stream=True)) == []
    assert resets(output(under_test)) == [(1, PROTOCOL_ERROR)]
    assert len(feed(under_test, request_frame(3, end_stream=True))) == 1


def test_the_connection_window_binds_streams_together() -> None:
    under_test = greeted(connection_window_bytes=65_535)
    feed(under_test, request_frame(1) + request_frame(3))
    for stream_id, size in ((1, 40_000), (3, 25_535)):
        (event,) = feed(under_test, raw_frame(0, 0, stream_id, bytes(size)))
        assert len(event.data) == size
    (event,) = feed(under_test, raw_frame(0, 0, 3, b"x"))
    assert event.code == FLOW_CONTROL_ERROR


def test_windows_may_be_opened_to_the_largest() -> None:
    under_test = greeted()
    most = numbers(2**31 - 1 - 65_535)
    assert len(feed(under_test, request_frame(1) + raw_frame(8, 0, 0, most))) == 1
    assert feed(under_test, raw_frame(8, 0, 1, most)) == []
    assert not under_test.has_output


def test_frames_on_closed_streams_are_passed_over() -> None:
    under_test = greeted()
    feed(under_test, request_frame(1))
    under_test.send_headers(1, OK_HEADERS, end_stream=True)
    under_test.take_output()
    late = (
        raw_frame(0, 0, 1, b"late"),
        raw_frame(0, 1, 1),
        raw_frame(8, 0, 1, numbers(5)),
        raw_frame(3, 0, 1, numbers(8)),
        raw_frame(1, 5, 1, request_block([("x", "y")])),
        raw_frame(2, 0, 1, bytes(5)),
    )
    assert feed(under_test, b"".join(late)) == []
    assert not under_test.has_output


# --- limits, each at its boundary


def test_streams_over_the_limit_are_refused() -> None:
    under_test = greeted(streams_max=2)
    events = feed(under_test, b"".join(request_frame(n, end_stream=True) for n in (1, 3, 5)))
    assert [event.stream_id for event in events] == [1, 3]
    assert resets(output(under_test)) == [(5, Http2ErrorCode.REFUSED_STREAM)]
    under_test.send_headers(1, OK_HEADERS, end_stream=True)
    assert len(feed(under_test, request_frame(7, end_stream=True))) == 1


def list_bytes(headers: list[tuple[str, str]]) -> int:
    return sum(32 + len(name) + len(value) for name, value in headers)


@pytest.mark.parametrize(("surplus", "served"), [(0, True), (1, False)])
def test_headers_over_the_limit_are_answered_with_431(surplus: int, served: bool) -> None:
    limit = 2000
    room = limit - list_bytes(GRPC_HEADERS) - 33
    under_test = session(header_list_bytes_max=limit)
    client = Oracle(under_test)
    client.exchange()
    headers = [*GRPC_HEADERS, ("x", "y" * (room + surplus))]
    feed(under_test, client.h2.data_to_send())
    stream_id = client.request(headers=headers)
    assert len(client.exchange()) == served
    if not served:
        assert client.headers(ResponseReceived, stream_id)[":status"] == "431"
        assert under_test.open_streams == 0


def test_a_short_block_that_decodes_to_much_ends_the_connection() -> None:
    under_test = greeted()
    entry = raw_frame(1, 5, 1, request_block() + b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000)
    assert len(feed(under_test, entry)) == 1
    few = HEADER_LIST_BYTES_CEILING // (4000 + 33) + 1
    calm = raw_frame(1, 5, 3, request_block() + b"\xbe" * (few - 1))
    assert feed(under_test, calm) == []  # 431
    bomb = raw_frame(1, 5, 5, request_block() + b"\xbe" * few)
    (event,) = feed(under_test, bomb)
    assert event.code == CALM


@pytest.mark.parametrize(("frames", "fails"), [(CONTINUATIONS_MAX, 0), (CONTINUATIONS_MAX + 1, 1)])
def test_continuations_are_limited_in_number(frames: int, fails: int) -> None:
    under_test = greeted()
    start = raw_frame(1, 1, 1, request_block())
    middle = raw_frame(9, 0, 1) * (frames - 1)
    (event,) = feed(under_test, start + middle + raw_frame(9, 4, 1))
    assert isinstance(event, ConnectionFailed if fails else RequestReceived)


def test_continuations_are_limited_in_bytes() -> None:
    under_test = greeted()
    piece = bytes(HEADER_BLOCK_BYTES_MAX // 4)
    frames = raw_frame(1, 0, 1, piece) + raw_frame(9, 0, 1, piece) * 3
    assert feed(under_test, frames) == []
    assert under_test.buffered_bytes == HEADER_BLOCK_BYTES_MAX
    (event,) = feed(under_test, raw_frame(9, 4, 1, b"x"))
    assert event.code == CALM


def test_resets_are_limited_against_completed_streams() -> None:
    under_test = greeted(resets_max=3)
    stream_id = 1
    for _ in range(2):
        for _ in range(3):
            octets = request_frame(stream_id) + raw_frame(3, 0, stream_id, numbers(8))
            assert len(feed(under_test, octets)) == 2
            stream_id += 2
        for _ in range(4):  # one more than can be earned back
            feed(under_test, request_frame(stream_id, end_stream=True))
            under_test.send_headers(stream_id, OK_HEADERS, end_stream=True)
            stream_id += 2
    for _ in range(3):
        feed(under_test, request_frame(stream_id) + raw_frame(3, 0, stream_id, numbers(8)))
        stream_id += 2
    events = feed(under_test, request_frame(stream_id) + raw_frame(8, 0, stream_id, numbers(0)))
    assert events[-1].code == CALM  # making us reset counts as well


USELESS = {
    "ping": raw_frame(6, 0, 0, bytes(8)),
    "ping ack": raw_frame(6, 1, 0, bytes(8)),
    "settings": raw_frame(4, 0, 0),
    "settings ack": raw_frame(4, 1, 0),
    "priority": raw_frame(2, 0, 1, bytes(5)),
    "unknown": raw_frame(200, 0, 1, b"abc"),
    "empty data": raw_frame(0, 0, 1),
    "padded empty data": raw_frame(0, 8, 1, b"\x01\x00"),
    "window update": raw_frame(8, 0, 1, numbers(1)),
    "goaway": raw_frame(7, 0, 0, bytes(8)),
    "reset of a closed stream": raw_frame(3, 0, 3, numbers(8)),
}


@pytest.mark.parametrize("kind", USELESS)
def test_idle_talk_is_limited_and_forgiven(kind: str) -> None:
    under_test = greeted(strikes_max=10)
    octets = request_frame(1) + request_frame(3) + raw_frame(3, 0, 3, numbers(8))
    feed(under_test, octets + raw_frame(0, 0, 1, b"useful"))
    for _ in range(10):
        assert not failed(feed(under_test, USELESS[kind]))
        under_test.take_output()
    feed(under_test, raw_frame(0, 0, 1, b"useful"))
    for _ in range(10):
        assert not failed(feed(under_test, USELESS[kind]))
        under_test.take_output()
    (event,) = feed(under_test, USELESS[kind])
    assert event.code == CALM


def failed(events: list[Any]) -> bool:
    return any(isinstance(event, ConnectionFailed) for event in events)


def test_ping_is_repeated_if_nothing_but_idle_talk_came_between() -> None:
    under_test = greeted()
    ping, useful = USELESS["ping"], raw_frame(0, 0, 1, b"useful")
    octets = [request_frame(1), ping, ping, USELESS["unknown"], ping, useful, ping, useful, ping]
    assert [
        event.repeated
        for event in feed(under_test, b"".join(octets))
        if isinstance(event, PingReceived)
    ] == [False, True, True, False, False]
    under_test.send_headers(1, OK_HEADERS, end_stream=False)  # what we send counts, too
    assert feed(under_test, ping) == [PingReceived(repeated=False)]


def test_window_updates_that_let_data_through_are_no_idle_talk() -> None:
    under_test = greeted(strikes_max=3)
    feed(under_test, setting(4, 1) + request_frame(1))
    under_test.send_headers(1, OK_HEADERS, end_stream=False)
    under_test.send_data(1, [bytes(100)])
    for _ in range(50):
        assert feed(under_test, raw_frame(8, 0, 1, numbers(1))) == []
    assert under_test.unsent_bytes(1) == 49


def test_answers_that_nobody_reads_are_limited() -> None:
    under_test = greeted(answers_max=100)
    ping = raw_frame(6, 0, 0, bytes(8))
    assert not failed(feed(under_test, ping * 100))
    under_test.take_output()
    assert not failed(feed(under_test, ping * 100))
    (event,) = feed(under_test, ping)
    assert event.code == CALM
    assert under_test.output_bytes < 101 * 17 + 100
