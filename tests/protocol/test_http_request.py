"""Heads of HTTP/1.1 requests: what is read from them, and which are refused."""

import contextlib

import httptools
import pytest
from hypothesis import given, settings, strategies as st

from tests.protocol.http_bytes import (
    DEFAULT,
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
    with_line,
)
from tritrio.protocol.http_request import BODY_BYTES_MAX, Refused, parse_head
from tritrio.protocol.http_session import (
    HttpFailure,
    HttpLimits,
    HttpRequest,
    HttpSession,
    HttpState,
)


def test_a_request_says_all_that_was_sent() -> None:
    request = request_of(
        b"POST /v2/models/a%20b/infer?x=1?y HTTP/1.1\r\nHost: h:8000\r\n"
        b"X-Mixed:  two words \t\r\nACCEPT: a\r\naccept: b\r\nEmpty:\r\n"
        b"Content-Length: 3\r\n\r\n{ }"
    )
    assert request == HttpRequest(
        method=b"POST",
        target=b"/v2/models/a%20b/infer?x=1?y",
        path=b"/v2/models/a%20b/infer",
        version=b"HTTP/1.1",
        headers={
            b"host": b"h:8000",
            b"x-mixed": b"two words",
            b"accept": b"a, b",
            b"empty": b"",
            b"content-length": b"3",
        },
        raw_headers=[
            (b"Host", b"h:8000"),
            (b"X-Mixed", b"two words"),
            (b"ACCEPT", b"a"),
            (b"accept", b"b"),
            (b"Empty", b""),
            (b"Content-Length", b"3"),
        ],
        content_length=3,
        keep_alive=True,
        expects_continue=False,
        body=b"{ }",
    )


@pytest.mark.parametrize(
    ("target", "reduced"),
    [
        (b"/", b"/"),
        (b"/a//b?c", b"/a//b?c"),
        (b"http://h:8000/v2?x", b"/v2?x"),
        (b"HTTP://h", b"/"),
        (b"https://h?x=/y", b"/?x=/y"),
        (b"*", b"*"),
    ],
)
def test_an_absolute_target_is_cut_to_its_path(target: bytes, reduced: bytes) -> None:
    request = request_of(b"OPTIONS %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
    assert request.target == reduced
    assert request.path == reduced.split(b"?")[0]


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        (b"1.1", None, True),
        (b"1.1", b"keep-alive", True),
        (b"1.1", b"Close", False),
        (b"1.1", b"TE , close", False),
        (b"1.1", b"keep-alive, close", False),
        (b"1.1", b"not-close", True),
        (b"1.0", None, False),
        (b"1.0", b"Keep-Alive", True),
        (b"1.0", b"te", False),
        (b"1.0", b"close, keep-alive", False),
    ],
)
def test_the_version_and_the_connection_header_decide_keep_alive(
    version: bytes, connection: bytes | None, keep_alive: bool
) -> None:
    header = b"" if connection is None else b"Connection: %b\r\n" % connection
    head = b"GET / HTTP/%b\r\nHost: a\r\n%b\r\n" % (version, header)
    session = HttpSession(HttpLimits())
    (request,) = session.receive_data(head)
    assert isinstance(request, HttpRequest)
    assert (request.version, request.keep_alive) == (b"HTTP/" + version, keep_alive)
    assert session.state is (HttpState.IDLE if keep_alive else HttpState.CLOSED)
    assert len(session.receive_data(GET)) == keep_alive  # after a last request data is discarded


def test_http_1_0_needs_no_host() -> None:
    assert request_of(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi").body == b"hi"


@pytest.mark.parametrize("offer", [b"h2c", b"websocket"])
@pytest.mark.parametrize("body", [post(b"abc"), chunked(b"abc")])
def test_an_offer_to_change_protocols_is_ignored(offer: bytes, body: bytes) -> None:
    upgrade = b"\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %b\r\n" % offer
    data = body.replace(b"\r\nHost: a\r\n", upgrade)
    first, second = events_of(data + GET)
    assert isinstance(first, HttpRequest)
    assert isinstance(second, HttpRequest)
    assert (first.body, first.keep_alive, second.path) == (b"abc", True, b"/v2")


REFUSED = {
    "length and chunked": (400, with_header(b"Content-Length: 5\r\nTransfer-Encoding: chunked")),
    "chunked and length": (400, with_header(b"Transfer-Encoding: chunked\r\nContent-Length: 5")),
    "two lengths": (400, with_header(b"Content-Length: 5\r\nContent-Length: 6")),
    "equal lengths": (400, with_header(b"Content-Length: 5\r\nContent-Length: 5")),
    "length list": (400, with_header(b"Content-Length: 5, 5")),
    "length with sign": (400, with_header(b"Content-Length: +5")),
    "negative length": (400, with_header(b"Content-Length: -5")),
    "length with exponent": (400, with_header(b"Content-Length: 1e2")),
    "length with blank": (400, with_header(b"Content-Length:  5 5")),
    "hexadecimal length": (400, with_header(b"Content-Length: 0x5")),
    "length with underscore": (400, with_header(b"Content-Length: 1_0")),
    "length in other digits": (400, with_header("Content-Length: \u0665".encode())),
    "empty length": (400, with_header(b"Content-Length:")),
    "20 digits": (400, with_header(b"Content-Length: 00000000000000000005")),
    "beyond 64 bits": (400, with_header(b"Content-Length: 99999999999999999999")),
    "length beyond the limit": (400, with_header(b"Content-Length: %d" % (BODY_BYTES_MAX + 1))),
    "gzip": (400, with_header(b"Transfer-Encoding: gzip")),
    "gzip, chunked": (501, with_header(b"Transfer-Encoding: gzip, chunked")),
    "chunked, gzip": (400, with_header(b"Transfer-Encoding: chunked, gzip")),
    "identity": (400, with_header(b"Transfer-Encoding: identity")),
    "xchunked": (400, with_header(b"Transfer-Encoding: xchunked")),
    "chunked;q=1": (400, with_header(b"Transfer-Encoding: chunked;q=1")),
    "chunked twice": (400, with_header(b"Transfer-Encoding: chunked\r\n" * 2 + b"A: b")),
    "vertical tab": (400, with_header(b"Transfer-Encoding: \x0bchunked")),
    "empty coding": (400, with_header(b"Transfer-Encoding:")),
    "chunked HTTP/1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "folded header": (400, with_header(b"A: b\r\n c")),
    "blank first line": (400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    "blank before colon": (400, with_header(b"A : b")),
    "no colon": (400, with_header(b"A")),
    "empty name": (400, with_header(b": b")),
    "name with parenthesis": (400, with_header(b"A(b): c")),
    "name beyond ASCII": (400, with_header(b"A\xe9: b")),
    "bare LF in header": (400, with_header(b"A: b\nC: d")),
    "bare CR in header": (400, with_header(b"A: b\rC: d")),
    "bare CR before colon": (400, with_header(b"A\r: b")),
    "NUL in header": (400, with_header(b"A: b\0")),
    "control in header": (400, with_header(b"A: \x01")),
    "bare LF after request line": (400, b"GET / HTTP/1.1\nHost: a\r\n\r\n"),
    "bare LF only": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "bare CR in request line": (400, with_line(b"GET /\rx HTTP/1.1")),
    "NUL in request line": (400, with_line(b"GET /\0 HTTP/1.1")),
    "blank after version": (400, with_line(b"GET / HTTP/1.1 ")),
    "two blanks": (400, with_line(b"GET  / HTTP/1.1")),
    "two blanks before version": (400, with_line(b"GET /  HTTP/1.1")),
    "tab": (400, with_line(b"GET\t/ HTTP/1.1")),
    "blank in target": (400, with_line(b"GET /a b HTTP/1.1")),
    "fragment": (400, with_line(b"GET /a#b HTTP/1.1")),
    "absolute fragment": (400, with_line(b"GET http://h/a#b HTTP/1.1")),
    "target beyond ASCII": (400, with_line(b"GET /\xe9 HTTP/1.1")),
    "relative target": (400, with_line(b"GET v2 HTTP/1.1")),
    "other scheme": (400, with_line(b"GET ftp://h/ HTTP/1.1")),
    "method with parenthesis": (400, with_line(b"GE(T / HTTP/1.1")),
    "lower-case method": (400, with_line(b"get / HTTP/1.1")),
    "unknown method": (400, with_line(b"FOO / HTTP/1.1")),
    "CONNECT": (501, with_line(b"CONNECT a:1 HTTP/1.1")),
    "HTTP/2 preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2.0": (505, with_line(b"GET / HTTP/2.0")),
    "HTTP/0.9": (505, with_line(b"GET / HTTP/0.9")),
    "HTTP/0.9 without version": (400, b"GET /\r\n\r\n"),
    "HTTP/3.0": (505, with_line(b"GET / HTTP/3.0")),
    "HTTP/1.2": (505, with_line(b"GET / HTTP/1.2")),
    "RTSP": (400, with_line(b"GET / RTSP/1.0")),
    "lower-case version": (400, with_line(b"GET / http/1.1")),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n"),
    "unknown expectation": (417, with_header(b"Expect: 200-ok")),
    "two expectations": (417, with_header(b"Expect: 100-continue\r\nExpect: other")),
    "LF before the request": (400, b"\n" + GET),
    "CR before the request": (400, b"\r" + GET),
    "empty lines without end": (400, b"\r\n" * 5 + GET),
}


@pytest.mark.parametrize(("status", "data"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_can_be_read_in_two_ways_is_refused(status: int, data: bytes) -> None:
    session = HttpSession(HttpLimits())
    (failure,) = session.receive_data(data)
    assert isinstance(failure, HttpFailure)
    assert failure.status == status
    assert session.receive_data(GET) == []
    assert events_of(*one_by_one(data)) == [failure]


@pytest.mark.parametrize("limits", [HttpLimits(), SMALL])
def test_the_head_limit_is_exact(limits: HttpLimits) -> None:
    size = limits.head_bytes_max
    for data in (head_of(size), head_of(size) + GET, b"\r\n" + head_of(size)):
        for pieces in ([data], [data[:9], data[9:]]):
            events = events_of(*pieces, limits=limits)
            assert all(isinstance(event, HttpRequest) for event in events)
    assert failure_of(head_of(size + 1), limits).status == 431
    assert str(size) in failure_of(head_of(size + 1), limits).message


def test_a_long_version_is_not_echoed_in_full() -> None:
    failure = failure_of(with_line(b"GET / HTTP/1." + b"1" * 60_000))
    assert failure == HttpFailure(505, "expected HTTP/1.1 or HTTP/1.0, got 'HTTP/1.111111111'")


def test_the_target_limit_is_exact() -> None:
    limit = HttpLimits().target_bytes_max
    line = b"GET /%b HTTP/1.1"
    assert len(request_of(with_line(line % (b"x" * (limit - 1)))).target) == limit
    assert failure_of(with_line(line % (b"x" * limit))).status == 414
    assert failure_of(with_line(line % (b"x" * 1_000_000))).status == 414


def test_the_header_limit_is_exact() -> None:
    limit = HttpLimits().headers_max
    names = [b"X%d: y" % number for number in range(limit)]
    assert len(request_of(with_header(b"\r\n".join(names[1:]))).headers) == limit
    assert failure_of(with_header(b"\r\n".join(names))).status == 431
    assert failure_of(with_header(b"\r\n".join([b"X: y"] * limit))).status == 431


FRAGMENTS = [
    b"A: b", b"A:", b"A : b", b" b", b"\r\n", b"\r", b"\n", b"\n\r", b"Content-Length: 3",
    b"Transfer-Encoding: chunked", b"Connection: Upgrade\r\nUpgrade: h2c", b"Host: a",
]  # fmt: skip


class Heads:
    """Counts the heads that llhttp finds complete."""

    def __init__(self) -> None:
        self.complete = 0

    def on_headers_complete(self) -> None:
        self.complete += 1


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_a_head_ends_where_llhttp_says_so(fragments: list[bytes]) -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(fragments) + b"\r\n\r\n"
    head = head[: head.find(b"\r\n\r\n") + 4]
    try:
        parse_head(head, DEFAULT)
    except Refused:
        return
    heads = Heads()
    parser = httptools.HttpRequestParser(heads)
    parser.feed_data(head[:-1])
    assert heads.complete == 0
    with contextlib.suppress(httptools.HttpParserUpgrade):
        parser.feed_data(head[-1:])
    assert heads.complete == 1
