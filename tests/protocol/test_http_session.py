"""The HTTP/1.1 session: what it makes of bytes, however they are cut."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from tests.protocol.http_bytes import (
    CHUNKED,
    GET,
    SMALL,
    chunked,
    events_of,
    failure_of,
    head_of,
    one_by_one,
    post,
    request_of,
    with_header,
)
from tritrio.protocol.http_session import (
    HttpContinue,
    HttpEvent,
    HttpFailure,
    HttpLimits,
    HttpRequest,
    HttpSession,
    HttpState,
)

REQUESTS = {
    "get": GET,
    "post": post(b"\r\n\r\nabc\r\n\r\n"),
    "two posts": post(b"one") + post(b"two!"),
    "chunked": chunked(b"abc", b"\r\n\r\n", b"0\r\n\r\n", b"\r\n\r\n\r\n\r\n") + GET,
    "chunked with trailers": chunked(b"x", trailers=b"A: b\r\nC:\r\n") + chunked() + post(b"y"),
    "chunk extensions": CHUNKED + b'3;a=b;c="d"\r\nabc\r\n0;e\r\n\r\n' + GET,
    "expect": post(b"body", b"Expect: 100-continue") + GET,
    "empty lines": b"\r\n\r\n" + GET + b"\r\n" + post(b"z") + b"\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n" + post(b"q"),
    "close": post(b"last", b"Connection: close") + GET,
    "http/1.0": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n" + GET,
    "bad second": GET + b"GET /x HTTP/1.1\r\nHost : b\r\n\r\n" + GET,
    "bad chunk": GET + CHUNKED + b"3\r\nabcd\r\n" + GET,
    "rubbish": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "too long": GET + b"GET /" + b"x" * 300 + b" HTTP/1.1\r\n\r\n",
    "too large": GET + b"GET / HTTP/1.1\r\nHost: " + b"x" * 300 + b"\r\n\r\n",
    "rubbish beyond the limit": b"GET / HTTP/1.1\r\nHost: " + b"x" * 300 + b"\0\r\n\r\n",
    "rubbish before the limit": b"GET / HTTP/1.1\r\nHost : " + b"x" * 300 + b"\r\n\r\n",
    "too many chunks": chunked(b"1", b"2", b"3", b"4", b"5") + GET,
    "too long a body": chunked(b"x" * 60, b"y" * 5) + GET,
}


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS)
def test_how_bytes_are_cut_does_not_change_what_they_mean(data: bytes) -> None:
    whole = events_of(data, limits=SMALL)
    assert whole
    for at in range(1, len(data)):
        assert events_of(data[:at], data[at:], limits=SMALL) == whole
    assert events_of(*one_by_one(data), limits=SMALL) == whole


def test_a_request_without_a_body_has_an_empty_one() -> None:
    assert (request_of(GET).body, request_of(GET).content_length) == (b"", None)
    assert (request_of(post(b"")).body, request_of(post(b"")).content_length) == (b"", 0)
    assert (request_of(chunked()).body, request_of(chunked()).content_length) == (b"", None)


def test_a_body_in_one_segment_is_bytes_and_one_in_several_is_writable() -> None:
    data = post(b"abcdef")
    assert type(request_of(data).body) is bytes
    for pieces in ([data[:-4], data[-4:]], [chunked(b"abc", b"def")]):
        (request,) = events_of(*pieces)
        assert isinstance(request, HttpRequest)
        assert isinstance(request.body, bytearray)
        request.body += b"g"
        assert request.body == b"abcdefg"


def test_a_body_is_kept_when_the_next_request_comes() -> None:
    session = HttpSession(HttpLimits())
    first, second = post(b"first"), post(b"other")
    session.receive_data(first[:-2])
    (event,) = session.receive_data(first[-2:] + second[:-2])
    session.receive_data(second[-2:])
    assert isinstance(event, HttpRequest)
    assert event.body == b"first"


def test_pipelined_requests_come_in_order() -> None:
    bodies = [b"%d" % number for number in range(50)]
    events = events_of(b"".join(map(post, bodies)))
    assert [event.body for event in events if isinstance(event, HttpRequest)] == bodies


@pytest.mark.parametrize("header", [b"Expect: 100-continue", b"EXPECT: 100-Continue"])
def test_a_client_that_waits_is_told_to_continue_before_its_body(header: bytes) -> None:
    data = post(b"body", header)
    session = HttpSession(HttpLimits())
    assert session.receive_data(data[:-4]) == [HttpContinue()]
    (request,) = session.receive_data(data[-4:])
    assert isinstance(request, HttpRequest)
    assert request.expects_continue


@pytest.mark.parametrize(
    "data",
    [
        post(b"", b"Expect: 100-continue"),
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
        b"POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\nx",
        b"POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: something\r\n\r\nx",
    ],
)
def test_nothing_to_wait_for_means_no_continue(data: bytes) -> None:
    assert not request_of(data).expects_continue


def test_admit_sees_each_head_once_before_the_body_and_before_a_continue() -> None:
    seen = []

    def admit(request: HttpRequest) -> HttpFailure | None:
        seen.append((request.method, request.content_length, request.body))
        return HttpFailure(400, "too much") if request.content_length == 9 else None

    session = HttpSession(HttpLimits(), admit=admit)
    data = GET + post(b"12345") + post(b"123456789", b"Expect: 100-continue") + GET
    events = [event for piece in one_by_one(data) for event in session.receive_data(piece)]
    assert [type(event) for event in events] == [HttpRequest, HttpRequest, HttpFailure]
    assert events[-1] == HttpFailure(400, "too much")
    assert seen == [(b"GET", None, b""), (b"POST", 5, b""), (b"POST", 9, b"")]


def test_the_state_says_what_is_awaited_and_buffered_bytes_what_is_held() -> None:
    session = HttpSession(HttpLimits())
    head, body = post(b"0123456789")[:-10], b"0123456789"

    def now() -> tuple[HttpState, int, int]:
        return session.state, session.buffered_bytes, session.body_bytes_missing

    assert now() == (HttpState.IDLE, 0, 0)
    session.receive_data(b"\r\n")
    assert now() == (HttpState.IDLE, 0, 0)
    session.receive_data(head[:7])
    assert now() == (HttpState.HEAD, 7, 0)
    session.receive_data(head[7:])
    assert now() == (HttpState.BODY, len(head), 10)
    session.receive_data(body[:4])
    assert now() == (HttpState.BODY, len(head) + 4, 6)
    session.receive_data(body[4:] + CHUNKED + b"5\r\nabc")
    assert now() == (HttpState.BODY, len(CHUNKED) + 3, 0)
    session.receive_data(b"de\r\n0\r\n\r\n")
    assert now() == (HttpState.IDLE, 0, 0)


@pytest.mark.parametrize("sent", [b"", GET[:-1], post(b"ab")[:-1], chunked(b"ab")[:-1]])
def test_a_session_that_is_given_up_holds_nothing_and_takes_nothing(sent: bytes) -> None:
    session = HttpSession(HttpLimits())
    session.receive_data(sent)
    session.fail()
    assert session.state is HttpState.FAILED
    assert (session.buffered_bytes, session.body_bytes_missing) == (0, 0)
    assert session.receive_data(GET) == []
    assert session.receive_eof() == []


def test_four_empty_lines_may_come_before_each_request() -> None:
    data = (b"\r\n" * 4 + GET) * 3
    for events in (events_of(data), events_of(*one_by_one(data))):
        assert [type(event) for event in events] == [HttpRequest] * 3


@pytest.mark.parametrize("sent", [b"", GET, b"\r\n", b"\r", b"GET / HTTP/1.0\r\n\r\n"])
def test_the_end_between_requests_is_no_failure(sent: bytes) -> None:
    session = HttpSession(HttpLimits())
    session.receive_data(sent)
    assert session.receive_eof() == []
    assert session.state is HttpState.CLOSED
    assert session.receive_data(GET) == []


@pytest.mark.parametrize(
    ("sent", "part"), [(b"G", "head"), (post(b"ab")[:-1], "body"), (chunked(b"ab")[:-1], "body")]
)
def test_the_end_within_a_request_is_a_failure(sent: bytes, part: str) -> None:
    session = HttpSession(HttpLimits())
    session.receive_data(sent)
    (failure,) = session.receive_eof()
    assert isinstance(failure, HttpFailure)
    assert failure.status == 400
    assert part in failure.message
    assert session.receive_eof() == []


def test_nothing_follows_a_failure() -> None:
    session = HttpSession(HttpLimits())
    events = session.receive_data(GET + b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n" + GET)
    assert [type(event) for event in events] == [HttpRequest, HttpFailure]
    assert session.receive_data(GET) == []
    assert session.receive_eof() == []
    assert (session.state, session.buffered_bytes) == (HttpState.FAILED, 0)


def test_a_dripped_head_is_refused_as_soon_as_it_is_over_the_limit() -> None:
    session = HttpSession(SMALL)
    for piece in one_by_one(head_of(10_000)[: SMALL.head_bytes_max]):
        assert session.receive_data(piece) == []
    assert session.buffered_bytes == SMALL.head_bytes_max
    (failure,) = session.receive_data(b"x")
    assert isinstance(failure, HttpFailure)
    assert failure.status == 431


def test_the_body_limit_is_exact() -> None:
    limit = SMALL.body_bytes_max
    exact, over = b"x" * limit, b"x" * (limit + 1)
    for data in (post(exact), chunked(exact)):
        (request,) = events_of(data, limits=SMALL)
        assert isinstance(request, HttpRequest)
        assert request.body == exact
    for data in (post(over), chunked(over), chunked(exact, b"x")):
        failure = failure_of(data, SMALL)
        assert failure.status == 400
        assert str(limit) in failure.message


def test_a_body_beyond_the_limit_gets_no_continue() -> None:
    data = post(b"x" * 65, b"Expect: 100-continue")
    assert [type(event) for event in events_of(data, limits=SMALL)] == [HttpFailure]


def test_sizes_above_32_bits_are_just_sizes() -> None:
    session = HttpSession(HttpLimits())
    assert session.receive_data(with_header(b"Content-Length: 5000000000") + b"x") == []
    assert session.body_bytes_missing == 4_999_999_999
    assert session.buffered_bytes < 1000


def cpu_s(data: bytes, segment: int) -> float:
    session = HttpSession(HttpLimits())
    pieces = [data[at : at + segment] for at in range(0, len(data), segment)]
    began = time.process_time()
    for piece in pieces:
        session.receive_data(piece)
    return time.process_time() - began


@pytest.mark.parametrize(
    ("data", "segment"),
    [
        (head_of(60_000)[:-1], 1),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100_000, 1),
        (CHUNKED + b"1\r\nx\r\n" * 15_000, 1),
        (CHUNKED + b"F00000\r\n" + b"\r\n" * 1_000_000, 65_536),
        (CHUNKED + b"F00000\r\n" + b"0\r\n\r\n" * 200_000, 65_536),
        (b"\r\n" * 1_000_000, 65_536),
    ],
    ids=["dripped head", "dripped body", "dripped chunks", "line ends", "false ends", "blanks"],
)
def test_cost_grows_in_step_with_the_bytes(data: bytes, segment: int) -> None:
    # Four times the bytes may cost four times as much; anything quadratic costs sixteen.
    quarter = min(cpu_s(data[: len(data) // 4], segment) for _ in range(3))
    assert cpu_s(data, segment) < 10 * quarter + 0.02


@given(st.integers(0, 2**32), st.data())
@settings(max_examples=150, derandomize=True, deadline=None)
def test_any_mix_of_requests_and_cuts_round_trips(seed: int, data: st.DataObject) -> None:
    token = st.binary(max_size=40)
    bodies = data.draw(st.lists(st.tuples(st.booleans(), st.lists(token, max_size=4)), max_size=4))
    stream = b""
    for is_chunked, pieces in bodies:
        chunks = [piece for piece in pieces if piece]
        stream += chunked(*chunks) if is_chunked else post(b"".join(chunks))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    edges = sorted({0, len(stream), *cuts})
    events = events_of(*(stream[start:end] for start, end in pairwise(edges)))
    assert [event.body for event in events if isinstance(event, HttpRequest)] == [
        b"".join(pieces) for _, pieces in bodies
    ]
    assert len(events) == len(bodies)


FRAGMENTS = [
    b"GET ", b"POST ", b"/", b"/v2?x", b"*", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/2.0\r\n",
    b"Host: a\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"\r",
    b"\n", b"\0", b" ", b":", b"Expect: 100-continue\r\n", b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"abc", b"3\r\nabc\r\n", b"0\r\n", b"0\r\n\r\n",
    b"3;x\r\n", b"A: b\r\n", b"\xff", GET, CHUNKED, post(b"abc"), b"x" * 70, b"CONNECT a:1",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=8), max_size=20),
    st.lists(st.integers(0, 300), max_size=6),
)
@settings(max_examples=400, derandomize=True, deadline=None)
def test_any_bytes_give_events_within_bounds_whatever_the_cuts(
    fragments: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(fragments)
    whole = HttpSession(SMALL)
    expected = whole.receive_data(stream)
    session = HttpSession(SMALL)
    events: list[HttpEvent] = []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(edges):
        events += session.receive_data(stream[start:end])
        assert session.buffered_bytes <= SMALL.head_bytes_max + SMALL.body_bytes_max
    assert events == expected
    assert session.state is whole.state
    failures = [event for event in events if isinstance(event, HttpFailure)]
    assert failures == events[len(events) - len(failures) :]
    assert len(failures) <= 1
    assert len(failures + session.receive_eof()) <= 1


def test_a_repeated_head_gives_a_request_of_its_own() -> None:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"
    session = HttpSession(HttpLimits())
    first, second, third = session.receive_data(head + b"abc" + head + b"def" + head + b"ghi")
    assert isinstance(first, HttpRequest)
    assert isinstance(second, HttpRequest)
    assert isinstance(third, HttpRequest)
    assert [bytes(request.body) for request in (first, second, third)] == [b"abc", b"def", b"ghi"]
    assert (second.method, second.path, second.headers) == (
        first.method,
        first.path,
        first.headers,
    )
    assert second.content_length == 3
    assert second.keep_alive


def test_a_head_that_differs_in_one_byte_is_not_taken_for_the_last_one() -> None:
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"
    session = HttpSession(HttpLimits())
    session.receive_data(head + b"abc" + head.replace(b"models/m", b"models/n") + b"d")
    assert session.state is HttpState.BODY
    (second,) = session.receive_data(b"ef")
    assert isinstance(second, HttpRequest)
    assert second.path == b"/v2/models/n/infer"
