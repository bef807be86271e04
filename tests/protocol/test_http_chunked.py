"""Chunked HTTP/1.1 bodies: what is collected, what is refused, and at what cost."""

import sys

import pytest

from tests.protocol.http_bytes import CHUNKED, GET, chunked, events_of, failure_of, one_by_one
from tritrio.protocol.http_chunked import CHUNK_FRAMING_BYTES_MAX
from tritrio.protocol.http_session import HttpFailure, HttpLimits, HttpRequest, HttpSession

REFUSED = {
    "chunk size without digits": (400, CHUNKED + b"\r\n"),
    "chunk size g": (400, CHUNKED + b"g\r\n"),
    "chunk size with sign": (400, CHUNKED + b"+5\r\n"),
    "negative chunk size": (400, CHUNKED + b"-5\r\n"),
    "chunk size 0x": (400, CHUNKED + b"0x5\r\n"),
    "blank before chunk size": (400, CHUNKED + b" 5\r\n"),
    "blank after chunk size": (400, CHUNKED + b"5 \r\n"),
    "chunk size beyond 64 bits": (400, CHUNKED + b"fffffffffffffffff\r\n"),
    "bare LF after chunk size": (400, CHUNKED + b"5\nabcde\r\n"),
    "bare LF after chunk": (400, CHUNKED + b"5\r\nabcde\n"),
    "chunk longer than its size": (400, CHUNKED + b"5\r\nabcdef\r\n"),
    "control in chunk extension": (400, CHUNKED + b"5;\x01\r\n"),
    "LF in chunk extension": (400, CHUNKED + b'5;a="\n"\r\n'),
    "bad trailer": (400, CHUNKED + b"0\r\nA : b\r\n\r\n"),
    "folded trailer": (400, CHUNKED + b"0\r\nA: b\r\n c\r\n\r\n"),
    "length as trailer": (400, CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n"),
}


@pytest.mark.parametrize(("status", "data"), REFUSED.values(), ids=REFUSED)
def test_a_body_with_faulty_framing_is_refused(status: int, data: bytes) -> None:
    session = HttpSession(HttpLimits())
    (failure,) = session.receive_data(data)
    assert isinstance(failure, HttpFailure)
    assert failure.status == status
    assert session.receive_data(GET) == []
    assert events_of(*one_by_one(data)) == [failure]


@pytest.mark.parametrize("segment", [1 << 20, 1460, 6, 1])
def test_exactly_65536_one_byte_chunks_pass_and_one_more_fails(segment: int) -> None:
    chunks = b"1\r\nx\r\n" * 65_536
    session = HttpSession(HttpLimits())
    session.receive_data(CHUNKED)
    for at in range(0, len(chunks), segment):
        assert session.receive_data(chunks[at : at + segment]) == []
    held = session.buffered_bytes
    assert held == len(CHUNKED) + 65_536
    (request,) = session.receive_data(b"0\r\n\r\n")
    assert isinstance(request, HttpRequest)
    assert request.body == b"x" * 65_536

    failure = failure_of(CHUNKED + chunks + b"1\r\nx")
    assert failure.status == 400
    assert "65536" in failure.message
    assert "fewer, larger chunks" in failure.message


@pytest.mark.parametrize("segment", [1, 6, 1460])
def test_the_work_for_a_dripped_body_grows_with_its_chunks_only(segment: int) -> None:
    """Counted in calls, each of which does a bounded amount of work."""
    calls = {1000: 0, 2000: 0}
    for count in calls:
        session = HttpSession(HttpLimits())
        session.receive_data(CHUNKED)
        chunks = b"1\r\nx\r\n" * count

        def counting(_: object, event: str, __: object, count: int = count) -> None:
            calls[count] += event in {"call", "c_call"}

        sys.setprofile(counting)
        try:
            for at in range(0, len(chunks), segment):
                session.receive_data(chunks[at : at + segment])
        finally:
            sys.setprofile(None)
    assert calls[2000] == pytest.approx(2 * calls[1000], rel=0.02)


def test_the_body_does_not_count_as_framing() -> None:
    body = b"x" * (CHUNK_FRAMING_BYTES_MAX + 1)
    (request,) = events_of(chunked(body, body))
    assert isinstance(request, HttpRequest)
    assert request.body == body * 2


@pytest.mark.parametrize(
    "filler",
    [b"0" * 1000, b"5;" + b"x" * 998, b"0\r\n" + b"A: bcd\r\n" * 200],
    ids=["size", "extension", "trailers"],
)
def test_chunk_framing_is_bounded(filler: bytes) -> None:
    session = HttpSession(HttpLimits())
    session.receive_data(CHUNKED + filler)
    more = filler[-8:] * 1000
    fed = len(filler)
    while not (events := session.receive_data(more)):
        fed += len(more)
        assert fed <= CHUNK_FRAMING_BYTES_MAX
    (failure,) = events
    assert isinstance(failure, HttpFailure)
    assert failure.status == 400
    assert str(CHUNK_FRAMING_BYTES_MAX) in failure.message
