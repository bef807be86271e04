"""The HTTP/2 session against the h2 library and frames made by hand."""

from __future__ import annotations

import pytest
from h2.events import (
    ConnectionTerminated,
    PingAckReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset as ClientSawReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from tritrio.protocol.http2_events import (
    QueueEmptied,
    StreamReset,
)
from tritrio.protocol.http2_frames import Http2ErrorCode, encode_fields

from .http2_support import (
    GRPC_HEADERS,
    OK_HEADERS,
    Oracle,
    feed,
    goaways,
    greeted,
    greeting,
    output,
    parse_frames,
    plain,
    raw_frame,
    request_block,
    request_frame,
    resets,
    session,
)

END = encode_fields([("x-outcome", "fine")])


def test_a_request_is_answered_with_headers_data_and_trailers() -> None:
    under_test = session()
    client = Oracle(under_test)
    stream_id = client.request(b"question")
    events = client.exchange()
    assert plain(events) == [
        ("request", 1, [(n.encode(), v.encode()) for n, v in GRPC_HEADERS], False),
        ("data", 1, b"question", True),
    ]
    under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
    under_test.send_data(stream_id, [b"ans", memoryview(b"wer")])
    under_test.send_headers(stream_id, END, end_stream=True)
    client.exchange()
    assert client.headers(ResponseReceived, 1) == {":status": "200", "content-type": "text/plain"}
    assert client.data(1) == b"answer"
    assert client.headers(TrailersReceived, 1) == {"x-outcome": "fine"}
    assert len(client.of(StreamEnded, 1)) == 1
    assert client.of(ClientSawReset) == []
    assert len(client.of(SettingsAcknowledged)) == 1
    assert (under_test.open_streams, under_test.buffered_bytes) == (0, 0)


def test_our_settings_and_windows_are_announced_first() -> None:
    first, second = parse_frames(output(session()))
    assert first.settings == {3: 1000, 4: 16 << 20, 5: 1 << 20, 6: 32 << 10}
    assert (second.stream_id, second.window_increment) == (0, (64 << 20) - 65_535)


def test_data_may_end_the_stream_itself() -> None:
    under_test = session()
    client = Oracle(under_test, {SettingCodes.INITIAL_WINDOW_SIZE: 3})
    first, second = client.request(), client.request()
    client.exchange()
    for stream_id, parts in ((first, [b"abcdef"]), (second, [])):
        under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
        under_test.send_data(stream_id, parts, end_stream=True)
    client.exchange()
    assert (client.data(first), len(client.of(StreamEnded, first))) == (b"abc", 0)
    assert (client.data(second), len(client.of(StreamEnded, second))) == (b"", 1)
    client.h2.increment_flow_control_window(3, first)
    client.exchange()
    assert (client.data(first), len(client.of(StreamEnded, first))) == (b"abcdef", 1)


def test_a_starved_sender_sends_exactly_what_the_window_opens() -> None:
    under_test = session()
    client = Oracle(under_test, {SettingCodes.INITIAL_WINDOW_SIZE: 10})
    stream_id = client.request()
    client.exchange()
    under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
    under_test.send_data(stream_id, [bytes(range(8)), bytes(range(8, 24))])
    under_test.send_headers(stream_id, END, end_stream=True)
    client.exchange()
    assert client.data(stream_id) == bytes(range(10))
    assert under_test.unsent_bytes(stream_id) == 14
    client.h2.increment_flow_control_window(13, stream_id)
    client.exchange()
    assert under_test.unsent_bytes(stream_id) == 1
    assert client.of(StreamEnded) == []
    client.h2.increment_flow_control_window(1, stream_id)
    client.exchange()
    assert client.data(stream_id) == bytes(range(24))
    assert len(client.of(StreamEnded)) == 1
    assert under_test.buffered_bytes == 0


def test_queue_emptied_is_told_once_when_all_is_written() -> None:
    under_test = session()
    client = Oracle(under_test, {SettingCodes.INITIAL_WINDOW_SIZE: 1})
    stream_id = client.request()
    client.exchange()
    under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
    under_test.send_data(stream_id, [b"abc"])
    client.h2.increment_flow_control_window(1, stream_id)
    assert client.exchange() == []
    client.h2.increment_flow_control_window(100, stream_id)
    assert client.exchange() == [QueueEmptied(stream_id)]
    client.h2.increment_flow_control_window(100, stream_id)
    assert client.exchange() == []


def test_a_shrunk_initial_window_goes_below_zero_and_is_made_up_for() -> None:
    under_test = session()
    client = Oracle(under_test, {SettingCodes.INITIAL_WINDOW_SIZE: 100})
    stream_id = client.request()
    client.exchange()
    under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
    under_test.send_data(stream_id, [bytes(150)])
    client.exchange()
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 20})  # window now -80
    client.exchange()
    client.h2.increment_flow_control_window(80, stream_id)
    client.exchange()
    assert len(client.data(stream_id)) == 100
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 30})
    client.exchange()
    assert len(client.data(stream_id)) == 110
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 70})
    client.exchange()
    assert len(client.data(stream_id)) == 150


def test_streams_take_turns_on_the_connection_window() -> None:
    under_test = session()
    client = Oracle(under_test, {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    first, second = client.request(), client.request()
    client.exchange()
    for stream_id in (first, second):
        under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
        under_test.send_data(stream_id, [bytes(100_000)])
    client.exchange()
    assert (len(client.data(first)), len(client.data(second))) == (65_535, 0)
    for _ in range(2):
        client.h2.increment_flow_control_window(1000)
        client.exchange()
    assert (len(client.data(first)), len(client.data(second))) == (66_535, 1000)


@pytest.mark.parametrize("frame_max", [16_384, 16_385, 100_000])
def test_frames_are_never_larger_than_the_peer_allows(frame_max: int) -> None:
    under_test = session()
    made = greeting((4, 1 << 20), (5, frame_max)) + raw_frame(8, 0, 0, (1 << 20).to_bytes(4, "big"))
    feed(under_test, made + request_frame(1, end_stream=True))
    under_test.take_output()
    payload = bytes(range(256)) * 1024
    under_test.send_headers(1, OK_HEADERS, end_stream=False)
    under_test.send_data(1, [payload[:7], payload[7:]])
    under_test.send_headers(1, encode_fields([("x", "y" * 250_000)]), end_stream=True)
    size = under_test.output_bytes
    octets = output(under_test)
    assert len(octets) == size
    frames = parse_frames(octets)
    data = [frame.data for frame in frames if frame.type == 0]
    assert b"".join(data) == payload
    assert max(len(piece) for piece in data) == frame_max
    block = [frame for frame in frames if frame.type in {1, 9}][1:]
    assert max(len(frame.data) for frame in block) == frame_max
    assert [("END_HEADERS" in frame.flags) for frame in block] == [False] * (len(block) - 1) + [
        True
    ]
    assert "END_STREAM" in block[0].flags


def test_large_parts_are_written_as_views_and_not_copied() -> None:
    under_test = session()
    wide = greeting((4, 2**31 - 1), (5, 2**24 - 1)) + raw_frame(
        8, 0, 0, (1 << 30).to_bytes(4, "big")
    )
    feed(under_test, wide + request_frame(1, end_stream=True))
    under_test.take_output()
    payload = bytearray(20 << 20)
    under_test.send_headers(1, OK_HEADERS, end_stream=False)
    under_test.send_data(1, [b"prefix", memoryview(payload)])
    pieces = under_test.take_output()
    views = [piece for piece in pieces if len(piece) > 1000]
    assert sum(len(view) for view in views) == len(payload)
    assert all(isinstance(view, memoryview) and view.obj is payload for view in views)
    assert len(pieces) == 4


def test_the_receive_window_is_given_back_in_halves() -> None:
    under_test = greeted(stream_window_bytes=1000, connection_window_bytes=100_000)
    feed(under_test, request_frame(1) + raw_frame(0, 0, 1, bytes(600)))
    under_test.acknowledge(1, 499)
    assert not under_test.has_output
    under_test.acknowledge(1, 1)
    (update,) = parse_frames(output(under_test))
    assert (update.stream_id, update.window_increment) == (1, 500)
    feed(under_test, raw_frame(0, 0, 1, bytes(900)))
    under_test.acknowledge(1, 1000)
    assert [frame.stream_id for frame in parse_frames(output(under_test))] == [1]
    events = feed(under_test, raw_frame(0, 0, 1, bytes(1001)))
    assert plain(events)[0][1].code == Http2ErrorCode.FLOW_CONTROL_ERROR


def test_the_connection_window_is_given_back_in_quarters_even_for_closed_streams() -> None:
    under_test = greeted(connection_window_bytes=65_535, stream_window_bytes=10_000)
    feed(under_test, request_frame(1))
    under_test.send_headers(1, OK_HEADERS, end_stream=True)
    assert resets(output(under_test)) == [(1, 0)]
    assert feed(under_test, raw_frame(0, 0, 1, bytes(16_383))) == []
    assert not under_test.has_output
    assert feed(under_test, raw_frame(0, 0, 1, bytes(1))) == []
    (update,) = parse_frames(output(under_test))
    assert (update.stream_id, update.window_increment) == (0, 16_384)


def test_headers_may_carry_a_priority_without_padding() -> None:
    frame = raw_frame(1, 5 | 0x20, 1, bytes(5) + request_block())
    (event,) = feed(greeted(), frame)
    assert event.block.fields[0] == (b":method", b"POST")


def test_padding_is_dropped_and_counts_for_the_window() -> None:
    under_test = greeted(stream_window_bytes=20, connection_window_bytes=65_535)
    padded = raw_frame(0, 8, 1, bytes((4,)) + b"data" + bytes(4))
    block = request_block()
    head = raw_frame(1, 4 | 8 | 0x20, 1, bytes((3,)) + bytes(5) + block + bytes(3))
    events = feed(under_test, head + padded)
    assert plain(events)[1:] == [("data", 1, b"data", False)]
    under_test.acknowledge(1, 4)  # 5 of padding, 4 of payload
    assert not under_test.has_output
    feed(under_test, raw_frame(0, 8, 1, bytes((0,))))  # the length byte alone
    (update,) = parse_frames(output(under_test))
    assert (update.stream_id, update.window_increment) == (1, 10)


def test_an_early_answer_is_followed_by_reset_without_error() -> None:
    under_test = session()
    client = Oracle(under_test)
    stream_id = client.request(b"part", end_stream=False)
    client.exchange()
    under_test.send_headers(stream_id, OK_HEADERS, end_stream=True)
    client.exchange()
    assert len(client.of(StreamEnded, stream_id)) == 1
    assert [event.error_code for event in client.of(ClientSawReset)] == [0]
    assert under_test.open_streams == 0


def test_a_reset_drops_what_is_queued() -> None:
    under_test = session()
    client = Oracle(under_test)
    stream_id = client.request()
    client.exchange()
    under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
    under_test.send_data(stream_id, [bytes(100_000)])
    client.exchange()
    assert under_test.buffered_bytes == 100_000 - 65_535
    client.h2.reset_stream(stream_id, 8)
    assert client.exchange() == [StreamReset(stream_id, 8, "The client reset the stream.")]
    assert (under_test.open_streams, under_test.buffered_bytes) == (0, 0)
    under_test.send_data(stream_id, [b"late"])
    under_test.send_headers(stream_id, END, end_stream=True)
    assert not under_test.has_output


def test_pings_are_answered_with_their_payload() -> None:
    client = Oracle(session())
    client.h2.ping(b"12345678")
    client.exchange()
    assert [event.ping_data for event in client.of(PingAckReceived)] == [b"12345678"]


def test_a_client_goaway_lets_streams_finish() -> None:
    under_test = session()
    client = Oracle(under_test)
    stream_id = client.request()
    client.exchange()
    feed(under_test, raw_frame(7, 0, 0, bytes(8) + b"debug data"))
    assert not under_test.should_close
    under_test.send_headers(stream_id, OK_HEADERS, end_stream=True)
    client.exchange()
    assert len(client.of(StreamEnded, stream_id)) == 1
    assert under_test.should_close


def test_shutdown_takes_two_steps() -> None:
    under_test = greeted()
    feed(under_test, request_frame(1, end_stream=True))
    under_test.start_shutdown()
    under_test.start_shutdown()
    assert goaways(output(under_test)) == [(2**31 - 1, 0)]
    assert len(feed(under_test, request_frame(3, end_stream=True))) == 1
    under_test.finish_shutdown()
    assert goaways(output(under_test)) == [(3, 0)]
    assert feed(under_test, request_frame(5, end_stream=True)) == []
    assert resets(output(under_test)) == [(5, Http2ErrorCode.REFUSED_STREAM)]
    for stream_id in (1, 3):
        assert not under_test.should_close
        under_test.send_headers(stream_id, OK_HEADERS, end_stream=True)
    assert under_test.should_close


def test_h2_takes_our_shutdown() -> None:
    under_test = session()
    client = Oracle(under_test)
    client.exchange()
    under_test.start_shutdown()
    under_test.finish_shutdown()
    client.exchange()
    ends = client.of(ConnectionTerminated)
    assert [(end.error_code, end.last_stream_id) for end in ends] == [(0, 2**31 - 1), (0, 0)]


@pytest.mark.parametrize("size", [0, 100, 4096])
def test_the_peers_table_size_is_honoured(size: int) -> None:
    """A decoder that was told a smaller table insists on a size update in the first block."""
    under_test = session()
    client = Oracle(under_test)
    client.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
    client.exchange()
    for _ in range(2):
        stream_id = client.request()
        client.exchange()
        under_test.send_headers(stream_id, OK_HEADERS, end_stream=True)
        client.exchange()
        assert client.headers(ResponseReceived, stream_id)[":status"] == "200"


@pytest.mark.parametrize("length", [1, 1000, 1900])
def test_cached_header_blocks_follow_the_dynamic_table(length: int) -> None:
    """The same bytes mean other fields once an insertion has moved the indices.

    Long values push others out, so that the table changes and its size does not.
    """
    under_test = session()
    client = Oracle(under_test)
    for letter in "aaabcabbccabbbaaccc":
        headers = [*GRPC_HEADERS, ("x-letter", letter * length), ("x-other", letter)]
        client.request(headers=headers)
        (event,) = client.exchange()
        assert event.block.fields == [(n.encode(), v.encode()) for n, v in headers]
        under_test.send_headers(event.stream_id, OK_HEADERS, end_stream=True)


def test_cached_header_blocks_follow_a_replaced_entry() -> None:
    """Each insertion fills the table alone, so index 62 is a new entry and the size is the same."""
    under_test = greeted()
    fixed = request_block()

    def insertion(letter: bytes) -> bytes:
        return fixed + b"\x40\x01x\x7f\xa1\x1e" + letter * 4000

    minimal = bytes((0x83, 0x86, 0x84, 0xBE))  # POST, http, / and the entry
    for stream_id, letter in ((1, b"a"), (7, b"b")):
        feed(under_test, raw_frame(1, 5, stream_id, insertion(letter)))
        for later in (stream_id + 2, stream_id + 4):
            (event,) = feed(under_test, raw_frame(1, 5, later, minimal))
            assert event.block.fields[-1] == (b"x", letter * 4000)


def test_a_repeated_header_block_is_decoded_once() -> None:
    under_test = session()
    client = Oracle(under_test)
    blocks = []
    for _ in range(3):
        client.request()
        blocks += [event.block for event in client.exchange()]
    assert blocks[1] is blocks[2]
