"""Byte streams over real sockets and over trio's streams in memory."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tritrio.actors.byte_stream import (
    JOIN_BYTES_MAX,
    RECEIVE_BYTES_MAX,
    SEND_BUFFERS_MAX,
    SocketStream,
)
from tritrio.protocol.tensors import Buffer


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SocketStream, trio.SocketStream]]:
    """A stream and its peer, over TCP."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        peer = await trio.open_tcp_stream(*listener.getsockname())
        accepted, _ = listener.accept()
    stream = SocketStream(accepted)
    yield stream, peer
    await stream.aclose()
    await peer.aclose()


async def read_all(peer: trio.SocketStream) -> bytes:
    received = bytearray()
    async for data in peer:
        received += data
    return bytes(received)


SEQUENCES: list[list[Buffer]] = [
    [b""],
    [],
    [b"one"],
    [b"one", bytearray(b"two"), memoryview(b"three")],
    [b"", b"a", b""],
    [bytes(range(256)) * 40_000],  # more than socket buffers hold
    [bytes(range(256)) * 1000] * 40,
    [b"x" * JOIN_BYTES_MAX, b"y"],
    [bytes([number % 256]) * 100 for number in range(3 * SEND_BUFFERS_MAX)],
    [b"", b"z" * (JOIN_BYTES_MAX + 1), b"", b"end", b""],
]


@pytest.mark.parametrize("buffers", SEQUENCES, ids=range(len(SEQUENCES)))
async def test_every_byte_arrives_in_order_and_is_counted(buffers: list[Buffer]) -> None:
    expected = b"".join(buffers)
    async with connected() as (stream, peer):
        received: list[bytes] = []

        async def read() -> None:
            received.append(await read_all(peer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(buffers)
            await stream.send_eof()
        assert received == [expected]
        assert stream.sent_bytes == len(expected)


async def test_send_nowait_returns_what_did_not_fit() -> None:
    data = bytes(range(256)) * 100_000
    async with connected() as (stream, peer):
        rest = stream.send_nowait([data[:1000], data[1000:]])
        left = sum(map(len, rest))
        assert 0 < left < len(data)
        assert stream.sent_bytes == len(data) - left
        assert stream.send_nowait(rest)  # nothing more fits
        received: list[bytes] = []

        async def read() -> None:
            received.append(await read_all(peer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(rest)
            await stream.send_eof()
        assert received == [data]


async def test_progress_of_a_long_write_is_seen_while_it_waits() -> None:
    async with connected() as (stream, peer), trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, [bytes(30_000_000)])
        await wait_all_tasks_blocked()
        first = stream.sent_bytes
        assert first > 0
        for _ in range(10):
            await peer.receive_some(1_000_000)
        await wait_all_tasks_blocked(0.01)
        assert stream.sent_bytes > first
        nursery.cancel_scope.cancel()


async def test_many_bytes_are_received_in_order() -> None:
    data = bytes(range(256)) * 8_000
    async with connected() as (stream, peer):
        received = bytearray()

        async def send() -> None:
            await peer.send_all(data)
            await peer.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while piece := await stream.receive_some():
                assert len(piece) <= RECEIVE_BYTES_MAX
                received += piece
        assert received == data
        assert await stream.receive_some() == b""


async def test_reset_is_a_broken_resource_in_both_directions() -> None:
    async with connected() as (stream, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.socket.close()
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all([b"x"])
        with pytest.raises(trio.BrokenResourceError):
            stream.send_nowait([b"x" * JOIN_BYTES_MAX] * 2)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_eof()


async def test_reset_wakes_a_write_that_waits() -> None:
    async with connected() as (stream, peer):

        async def send() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all([bytes(50_000_000)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await wait_all_tasks_blocked()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.socket.close()


async def test_stream_takes_an_accepted_socket_over() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        peer = await trio.open_tcp_stream(*listener.socket.getsockname())
        accepted = await listener.accept()
        stream = SocketStream.from_trio(accepted)
        assert accepted.socket.fileno() == -1
        assert stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert stream._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await stream.send_all([b"hello"])
        assert await peer.receive_some(10) == b"hello"
        await stream.aclose()
        assert await peer.receive_some(10) == b""
        await peer.aclose()
