"""TLS over real sockets: bytes, ends, clients that speak something else, and cancellation."""

from __future__ import annotations

import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.certificates import NAME, Certificates, write_certificates
from tritrio.actors import tls_stream
from tritrio.actors.byte_stream import JOIN_BYTES_MAX, SocketStream
from tritrio.actors.tls_stream import (
    HANDSHAKE_S,
    RECORD_BYTES_MAX,
    SEND_BYTES_MAX,
    TlsAcceptor,
    TlsStream,
)
from tritrio.protocol.tensors import Buffer
from tritrio.tls import tls_context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


def acceptor(
    certificates: Certificates, *, alpn: str | None = None, mutual: bool = False
) -> TlsAcceptor:
    context = tls_context("HTTP", certificates.options(mutual=mutual), alpn="h2")
    return TlsAcceptor(context, alpn=alpn)


def pair() -> tuple[SocketStream, trio.SocketStream]:
    ours, theirs = socket.socketpair()
    return SocketStream(ours), trio.SocketStream(trio.socket.from_stdlib_socket(theirs))


def client_of(
    peer: trio.SocketStream, context: ssl.SSLContext
) -> trio.SSLStream[trio.SocketStream]:
    return trio.SSLStream(peer, context, server_hostname=NAME)


@asynccontextmanager
async def connected(
    certificates: Certificates,
) -> AsyncIterator[tuple[TlsStream, trio.SSLStream[trio.SocketStream]]]:
    """A stream and its peer, after the handshake."""
    ours, theirs = pair()
    peer = client_of(theirs, certificates.client_context())
    accepted: list[TlsStream | None] = []

    async def accept() -> None:
        accepted.append(await acceptor(certificates).accept(ours))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await peer.do_handshake()
    (stream,) = accepted
    assert stream is not None
    yield stream, peer
    await stream.aclose()
    await trio.aclose_forcefully(peer)


async def refused(certificates: Certificates, greeting: bytes) -> tuple[TlsStream | None, bytes]:
    """What comes of a client that is no TLS client: our stream, and what it reads to the end."""
    ours, theirs = pair()
    async with theirs:
        await theirs.send_all(greeting)
        stream = await acceptor(certificates).accept(ours)
        received = b""
        async for data in theirs:
            received += data
    return stream, received


SEQUENCES: list[list[Buffer]] = [
    [b""],
    [],
    [b"one"],
    [b"one", bytearray(b"two"), memoryview(b"three"), b""],
    [bytes(range(256)) * 40_000],  # more than the socket's buffers hold
    [b"a" * 60_000, b"b" * 60_000, b"c" * JOIN_BYTES_MAX, b"d"],
    [bytes([number % 256]) * 100 for number in range(2000)],
    [b"x" * SEND_BYTES_MAX, b"y" * SEND_BYTES_MAX],
]


@pytest.mark.parametrize("buffers", SEQUENCES, ids=range(len(SEQUENCES)))
async def test_every_byte_arrives_in_order_and_then_the_end(
    certificates: Certificates, buffers: list[Buffer]
) -> None:
    async with connected(certificates) as (stream, peer):
        received = bytearray()

        async def read() -> None:
            async for data in peer:
                received.extend(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            before = stream.sent_bytes
            await stream.send_all(buffers)
            await stream.send_eof()
        expected = b"".join(buffers)
        assert received == expected
        assert stream.sent_bytes - before > len(expected)  # records have headers


async def test_many_bytes_are_received_in_order_and_then_the_goodbye(
    certificates: Certificates,
) -> None:
    async with connected(certificates) as (stream, peer):
        data = bytes(range(256)) * 8000
        received = bytearray()

        async def write() -> None:
            for start in range(0, len(data), 100_003):
                await peer.send_all(data[start : start + 100_003])
            transport, _ = await peer.unwrap()
            await transport.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while piece := await stream.receive_some():
                received += piece
            assert await stream.receive_some() == b""  # and it stays the end
            await stream.send_eof()
        assert received == data


async def test_connection_that_ends_without_a_goodbye_has_ended(
    certificates: Certificates,
) -> None:
    async with connected(certificates) as (stream, peer):
        await peer.send_all(b"last words")
        await peer.transport_stream.send_eof()
        assert await stream.receive_some() == b"last words"
        assert await stream.receive_some() == b""


async def test_stream_whose_end_was_sent_still_receives(certificates: Certificates) -> None:
    """A client that was refused early may go on sending, and has to read the answer."""
    async with connected(certificates) as (stream, peer):
        await stream.send_all([b"no"])
        await stream.send_eof()
        await peer.send_all(b"more of the body")
        assert await stream.receive_some() == b"more of the body"
        assert await peer.receive_some(10) == b"no"
        assert await peer.receive_some(10) == b""


async def test_garbage_in_place_of_a_record_breaks_the_stream(certificates: Certificates) -> None:
    async with connected(certificates) as (stream, peer):
        await peer.transport_stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()


async def test_write_that_waits_can_be_cancelled_and_nothing_of_it_is_lost(
    certificates: Certificates,
) -> None:
    data = bytes(range(256)) * 20_000
    async with connected(certificates) as (stream, peer):
        rest = stream.send_nowait([data])
        while rest and rest != [b""]:  # until the socket takes no more
            size = sum(map(len, rest))
            rest = stream.send_nowait(rest)
            if sum(map(len, rest)) == size:
                break
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.send_all(rest)
        assert scope.cancelled_caught
        received = bytearray()

        async def read() -> None:
            while len(received) < len(data):
                received.extend(await peer.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(rest)
        assert received == data


async def test_what_is_encrypted_and_not_sent_is_left_to_write(certificates: Certificates) -> None:
    async with connected(certificates) as (stream, peer):
        piece = bytes(range(256)) * 40
        count, rest = 0, list[Buffer]()
        while not rest:
            rest = stream.send_nowait([piece])
            count += 1
        assert rest == [b""]
        assert stream.send_nowait(rest) == [b""]
        received = bytearray()

        async def read() -> None:
            while len(received) < count * len(piece):
                received.extend(await peer.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(rest)
        assert received == piece * count


async def test_reading_goes_on_while_a_write_waits(certificates: Certificates) -> None:
    async with connected(certificates) as (stream, peer), trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, [bytes(10_000_000)])
        await wait_all_tasks_blocked(0.01)
        await peer.send_all(b"x" * RECORD_BYTES_MAX)
        assert await stream.receive_some() == b"x" * RECORD_BYTES_MAX
        nursery.cancel_scope.cancel()


async def test_reset_is_a_broken_resource(certificates: Certificates) -> None:
    async with connected(certificates) as (stream, peer):
        peer.transport_stream.socket.close()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all([bytes(10_000_000)])


async def test_closing_says_goodbye_without_waiting_for_an_answer(
    certificates: Certificates,
) -> None:
    async with connected(certificates) as (stream, peer):
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.aclose()
        assert await peer.receive_some(10) == b""  # a ragged end would raise


# Handshakes.


@pytest.mark.parametrize(
    "greeting",
    [b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0" * 100],
    ids=["http", "http2", "zeros"],
)
async def test_plain_client_gets_a_clean_end(certificates: Certificates, greeting: bytes) -> None:
    stream, received = await refused(certificates, greeting)
    assert stream is None
    assert received[:1] in {b"", b"\x15"}  # nothing, or an alert


async def test_client_that_leaves_within_the_handshake_is_let_go(
    certificates: Certificates,
) -> None:
    ours, theirs = pair()
    async with theirs:
        await theirs.send_all(b"\x16\x03\x01")
        await theirs.send_eof()
        assert await acceptor(certificates).accept(ours) is None


async def test_silent_client_is_cut_exactly_in_time(
    certificates: Certificates, autojump_clock: MockClock
) -> None:
    start_s = trio.current_time()
    stream, received = await refused(certificates, b"")
    assert (stream, received) == (None, b"")
    assert trio.current_time() - start_s == HANDSHAKE_S


async def test_handshakes_beyond_the_limit_wait_their_turn(
    certificates: Certificates, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_stream, "HANDSHAKES_MAX", 2)
    gate = acceptor(certificates)
    accepted: list[float] = []
    start_s = trio.current_time()
    streams = []

    async def accept(ours: SocketStream) -> None:
        stream = await gate.accept(ours)
        if stream is not None:
            accepted.append(trio.current_time() - start_s)
            await stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            ours, theirs = pair()
            await theirs.send_all(b"\x16")
            streams.append(theirs)
            nursery.start_soon(accept, ours)
        await trio.sleep(1)
        ours, theirs = pair()
        nursery.start_soon(accept, ours)
        peer = client_of(theirs, certificates.client_context())
        await wait_all_tasks_blocked()
        assert gate._turns.borrowed_tokens == 2
        await peer.do_handshake()
        await trio.aclose_forcefully(peer)
    for theirs in streams:
        await theirs.aclose()
    assert accepted == [HANDSHAKE_S]


async def test_clients_that_say_nothing_hold_no_handshake_up(
    certificates: Certificates, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_stream, "HANDSHAKES_MAX", 2)
    gate = acceptor(certificates)
    start_s = trio.current_time()
    silent = [pair() for _ in range(5)]
    ours, theirs = pair()
    peer = client_of(theirs, certificates.client_context())

    async def accept() -> None:
        stream = await gate.accept(ours)
        assert stream is not None
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        for each, _ in silent:
            nursery.start_soon(gate.accept, each)
        await wait_all_tasks_blocked()
        nursery.start_soon(accept)
        await peer.do_handshake()
        assert trio.current_time() == start_s
    assert [await client.receive_some(1) for _, client in silent] == [b""] * 5
    assert trio.current_time() == start_s + HANDSHAKE_S
    for stream in (peer, *(client for _, client in silent)):
        await trio.aclose_forcefully(stream)


async def test_cancelled_handshake_closes_the_connection(certificates: Certificates) -> None:
    ours, theirs = pair()
    async with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acceptor(certificates).accept, ours)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert await theirs.receive_some(10) == b""


@pytest.mark.parametrize(
    ("offered", "taken"), [((), False), (("http/1.1",), False), (("http/1.1", "h2"), True)]
)
async def test_protocol_that_has_to_be_agreed_on_is(
    certificates: Certificates, offered: tuple[str, ...], taken: bool
) -> None:
    ours, theirs = pair()
    peer = client_of(theirs, certificates.client_context(alpn=offered))
    accepted: list[TlsStream | None] = []

    async def accept() -> None:
        accepted.append(await acceptor(certificates, alpn="h2").accept(ours))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await peer.do_handshake()
    (stream,) = accepted
    assert (stream is not None) == taken
    if stream is None:
        assert await peer.receive_some(10) == b""
    else:
        assert peer.selected_alpn_protocol() == "h2"
        await stream.aclose()
    await trio.aclose_forcefully(peer)


@pytest.mark.parametrize("who", ["client", "stranger", "nobody"])
async def test_client_has_to_show_a_certificate_of_the_root_where_it_is_mutual(
    certificates: Certificates, who: str
) -> None:
    identity: tuple[Path, Path] | None = getattr(certificates, who, None)
    ours, theirs = pair()
    peer = client_of(theirs, certificates.client_context(identity=identity))
    accepted: list[TlsStream | None] = []

    async def accept() -> None:
        accepted.append(await acceptor(certificates, mutual=True).accept(ours))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await peer.do_handshake()  # in TLS 1.3 the client is done before it is looked at
    (stream,) = accepted
    if who == "client":
        assert stream is not None
        await stream.aclose()
    else:
        assert stream is None
        with pytest.raises(trio.BrokenResourceError) as raised:
            await peer.receive_some(10)
        assert "ALERT" in str(raised.value.__cause__)
    await trio.aclose_forcefully(peer)


async def test_client_that_knows_tls_1_1_alone_is_refused(certificates: Certificates) -> None:
    context = certificates.client_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    ours, theirs = pair()
    peer = client_of(theirs, context)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor(certificates).accept, ours)
        with pytest.raises(trio.BrokenResourceError):
            await peer.do_handshake()
    await theirs.aclose()
