"""Messages between the server and the process of a model, one of which may be out of order."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from array import array
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.backends.processes import descriptors
from tritrio.backends.process_link import (
    INLINE_MAX_BYTES,
    LinkClosedError,
    LinkError,
    Packet,
    receive,
)

Pair = tuple[socket.socket, socket.socket]
ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a link; no descriptor is left by what goes through it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = descriptors()
        yield ours, theirs
        assert descriptors() == before


@given(
    st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.none()),
    st.lists(st.binary(max_size=200) | st.binary(min_size=9, max_size=9).map(lambda b: b * 4000)),
)
def test_a_message_arrives_as_it_was_sent(header: dict[str, object], buffers: list[bytes]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        Packet(header, buffers).send(ours)
        message = receive(theirs)
        assert message.header == header
        assert [bytes(buffer) for buffer in message.buffers] == buffers


def test_a_large_message_leaves_the_packet_small_and_is_mapped(pair: Pair) -> None:
    ours, theirs = pair
    data = np.arange(INLINE_MAX_BYTES, dtype=np.uint8)
    Packet({}, [b"abc", data.data]).send(ours)
    message = receive(theirs, writable=True)
    assert bytes(message.buffers[1]) == data.tobytes()
    found = np.frombuffer(message.buffers[1], np.uint8)
    assert found.ctypes.data % 64 == 0
    found[0] = 9  # its own copy of the page
    assert data[0] == 0
    del found, message


def test_the_receiver_of_a_large_message_cannot_write_into_it_by_accident(pair: Pair) -> None:
    ours, theirs = pair
    Packet({}, [bytes(INLINE_MAX_BYTES)]).send(ours)
    message = receive(theirs)
    assert message.buffers[0].readonly
    del message


def test_a_closed_link_says_so_to_both(pair: Pair) -> None:
    ours, theirs = pair
    packet = Packet({}, [bytes(INLINE_MAX_BYTES)])
    theirs.shutdown(socket.SHUT_RDWR)
    with pytest.raises(LinkClosedError):
        packet.send(ours)
    with pytest.raises(LinkClosedError):
        receive(ours)


def test_a_full_link_keeps_the_packet_for_later(pair: Pair) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    packets = [Packet({"n": number}, [bytes(60_000)]) for number in range(100)]
    sent = next(number for number, packet in enumerate(packets) if not goes(packet, ours))
    assert 0 < sent < 100
    assert receive(theirs).header == {"n": 0}
    packets[sent].send(ours)
    numbers = [receive(theirs).header["n"] for _ in range(sent)]
    assert numbers == list(range(1, sent + 1))


def goes(packet: Packet, link: socket.socket) -> bool:
    try:
        packet.send(link)
    except BlockingIOError:
        return False
    return True


def raw(header: object, payload_bytes: int | None = None, more: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    size = len(text) + len(more) if payload_bytes is None else payload_bytes
    return struct.pack("<QQ", len(text), size) + text + more


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        struct.pack("<QQ", 1, 1) + b"{",
        struct.pack("<QQ", 5, 2) + b"[]",
        struct.pack("<QQ", 2**60, 2**60),
        struct.pack("<QQ", 2, 2**60) + b"[]",
        raw([[], {}], 4),
        raw([[], {}], 400),
        raw([[], []]),
        raw([[1], {}]),
        raw([[-1], {}]),
        raw([[True], {}], more=b" " * 200),
        raw([["1"], {}]),
        raw([[2**40], {}]),
        raw({"sizes": []}),
        raw([[], {}], more=b"something"),
        struct.pack("<QQ", 4000, 4000) + b"[" * 4000,
        b"x" * (INLINE_MAX_BYTES + 17),
    ],
)
def test_what_is_no_message_is_refused(pair: Pair, data: bytes) -> None:
    ours, theirs = pair
    ours.send(data)
    with pytest.raises(LinkError):
        receive(theirs)


@pytest.mark.parametrize(
    ("seals", "size", "count"),
    [(0, 100_000, 1), (fcntl.F_SEAL_SHRINK, 100_000, 1), (ALL_SEALS, 99_999, 1), (ALL_SEALS, 0, 2)],
)
def test_a_memory_file_that_could_change_or_has_another_size_is_refused(
    pair: Pair, seals: int, size: int, count: int
) -> None:
    ours, theirs = pair
    files = [os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) for _ in range(count)]
    for file in files:
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))]
    ours.sendmsg([struct.pack("<QQ", 10, 100_000)], rights)
    for file in files:
        os.close(file)
    with pytest.raises(LinkError):
        receive(theirs)


def test_a_descriptor_of_something_else_is_refused(pair: Pair) -> None:
    ours, theirs = pair
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [ours.fileno()]))]
    ours.sendmsg([struct.pack("<QQ", 10, 100_000)], rights)
    with pytest.raises(LinkError):
        receive(theirs)
