"""However the bytes of an HTTP/2 connection are split, they mean the same and leave nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tritrio.protocol.http2_frames import encode_fields

from .http2_support import (
    GRPC_HEADERS,
    OK_HEADERS,
    feed,
    greeted,
    greeting,
    numbers,
    output,
    plain,
    raw_frame,
    request_block,
    request_frame,
    session,
)

END = encode_fields([("x-outcome", "fine")])


def conversation() -> bytes:
    block = request_block([*GRPC_HEADERS, ("x", "y" * 40)])
    return b"".join(
        (
            greeting((4, 100)),
            raw_frame(4, 1, 0),
            raw_frame(1, 0, 1, block[:30]),
            raw_frame(9, 0, 1, block[30:50]),
            raw_frame(9, 4, 1, block[50:]),
            raw_frame(0, 8, 1, bytes((3,)) + b"hello" + bytes(3)),
            raw_frame(0xEE, 0xFF, 77, b"unknown kind"),
            raw_frame(2, 0, 3, bytes(5)),
            raw_frame(6, 0, 0, b"pingpong"),
            raw_frame(0, 0, 1, b" world"),
            raw_frame(8, 0, 1, bytes((0, 0, 0, 9))),
            raw_frame(1, 5, 1, request_block([("x-trailer", "t")])),
            request_frame(3, end_stream=True),
            raw_frame(3, 0, 3, bytes((0, 0, 0, 8))),
            raw_frame(7, 0, 0, bytes(8) + b"goodbye"),
        )
    )


def test_every_split_in_two_means_the_same() -> None:
    octets = conversation()
    whole = session()
    expected = plain(whole.receive_data(octets))
    answer = output(whole)
    kinds = [entry[0] for entry in expected]
    assert kinds == ["request", "data", "PingReceived", "data", "request", "StreamReset"]
    assert expected[1] == ("data", 1, b"hello", False)
    assert expected[3] == ("data", 1, b" world", True)
    for cut in range(len(octets) + 1):
        halves = session()
        events = halves.receive_data(octets[:cut]) + halves.receive_data(octets[cut:])
        assert plain(events) == expected
        assert output(halves) == answer


def test_bytes_may_come_in_a_bytearray() -> None:
    under_test = session()
    events = list(under_test.receive_data(bytearray(conversation())))
    assert plain(events) == plain(feed(session(), conversation()))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10])
def test_small_steps_mean_the_same(step: int) -> None:
    octets = conversation()
    expected = plain(session().receive_data(octets))
    stepped = session()
    events: list[Any] = []
    for start in range(0, len(octets), step):
        events += stepped.receive_data(octets[start : start + step])
    assert plain(events) == expected


def test_closed_streams_leave_no_memory() -> None:
    import tracemalloc

    under_test = greeted()
    feed(under_test, raw_frame(8, 0, 0, numbers(1 << 30)))

    def run(first: int, count: int) -> None:
        for stream_id in range(first, first + 2 * count, 2):
            feed(under_test, request_frame(stream_id) + raw_frame(0, 1, stream_id, b"question"))
            under_test.acknowledge(stream_id, 8)
            under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
            under_test.send_data(stream_id, [b"answer"])
            under_test.send_headers(stream_id, END, end_stream=True)
            under_test.take_output()

    run(1, 200)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    run(401, 2000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10_000
