"""Properties of the HTTP/2 session: soup is survived, and windows are kept."""

from __future__ import annotations

from h2.events import (
    StreamEnded,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hypothesis import given, settings, strategies as st

from tritrio.protocol.http2_events import (
    DataReceived,
    RequestReceived,
)
from tritrio.protocol.http2_frames import encode_fields

from .http2_support import (
    OK_HEADERS,
    Oracle,
    feed,
    greeted,
    numbers,
    output,
    parse_frames,
    raw_frame,
    request_block,
    session,
)

END = encode_fields([("x-outcome", "fine")])

SOUP_FRAMES = st.builds(
    raw_frame,
    st.integers(0, 10),
    st.one_of(st.sampled_from([0, 1, 4, 5, 8, 0x2D]), st.integers(0, 255)),
    st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1, 2**32 - 1]),
    st.one_of(
        st.binary(max_size=40),
        st.just(request_block()),
        st.just(bytes(8)),
        st.integers(0, 2**32 - 1).map(numbers),
    ),
)
SOUP = st.lists(st.one_of(SOUP_FRAMES, st.binary(max_size=12)), max_size=30).map(b"".join)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(soup=SOUP, step=st.integers(1, 200), answers=st.booleans())
def test_soup_never_raises_and_output_stays_bounded(soup: bytes, step: int, answers: bool) -> None:
    under_test = greeted()
    for start in range(0, len(soup), step):
        for event in feed(under_test, soup[start : start + step]):
            if answers and isinstance(event, RequestReceived):
                under_test.send_headers(event.stream_id, OK_HEADERS, end_stream=False)
                under_test.send_data(event.stream_id, [bytes(100)])
            elif isinstance(event, DataReceived):
                under_test.acknowledge(event.stream_id, len(event.data))
    assert under_test.buffered_bytes <= 8 * len(soup) + 1000
    parse_frames(output(under_test))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(block=st.binary(max_size=60))
def test_any_header_block_is_decoded_or_refused(block: bytes) -> None:
    under_test = greeted()
    events = feed(under_test, raw_frame(1, 5, 1, block))
    assert len(events) <= 1


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    initial=st.integers(0, 300),
    messages=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), max_size=12),
    openings=st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 200)), max_size=40),
    changes=st.lists(st.integers(0, 300), max_size=5),
)
def test_any_windows_let_exactly_the_bytes_sent_through_in_order(
    initial: int,
    messages: list[tuple[int, int]],
    openings: list[tuple[int, int]],
    changes: list[int],
) -> None:
    """The h2 library raises if a window is overrun; the connection window starts all but used."""
    under_test = session()
    client = Oracle(under_test, {SettingCodes.INITIAL_WINDOW_SIZE: 65_400})
    client.request()
    client.exchange()
    under_test.send_headers(1, OK_HEADERS, end_stream=False)
    under_test.send_data(1, [bytes(65_400)], end_stream=True)
    client.exchange()
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: initial})
    ids = [client.request() for _ in range(3)]
    client.exchange()
    sent = [b"", b"", b""]
    for stream_id in ids:
        under_test.send_headers(stream_id, OK_HEADERS, end_stream=False)
    steps: list[tuple[str, int, int]] = [("send", *entry) for entry in messages]
    steps += [("open", *entry) for entry in openings] + [("change", 0, size) for size in changes]
    for turn, (what, index, size) in enumerate(steps[::2] + steps[1::2]):
        if what == "send":
            payload = bytes((turn + n) % 251 for n in range(size))
            sent[index] += payload
            under_test.send_data(ids[index], [payload[: size // 3], payload[size // 3 :]])
        elif what == "open":
            client.h2.increment_flow_control_window(size, ids[index] if index >= 0 else None)
        else:
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})
        client.exchange()
    for index, stream_id in enumerate(ids):
        got = client.data(stream_id)
        assert sent[index].startswith(got)
        assert under_test.unsent_bytes(stream_id) == len(sent[index]) - len(got)
        under_test.send_headers(stream_id, END, end_stream=True)
    client.h2.increment_flow_control_window(1 << 20)
    for stream_id in ids:
        if not client.of(StreamEnded, stream_id):
            client.h2.increment_flow_control_window(1 << 20, stream_id)
    client.exchange()
    assert [client.data(stream_id) for stream_id in ids] == sent
    assert len(client.of(TrailersReceived)) == 3
    assert (under_test.open_streams, under_test.buffered_bytes) == (0, 0)
