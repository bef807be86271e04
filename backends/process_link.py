"""How the server and the process of a model talk: messages over one socket pair.

A message is a header, which JSON can carry, and buffers. Both ends read it back with the sizes
checked, since one of them runs the code of a model. A small message is one packet. The bytes of a
large one lie in an anonymous memory file that is sealed, so that nobody can change or shorten it
any more, and whose descriptor travels with the packet: the receiver maps it and copies nothing.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias, final

from ..protocol.tensors import Buffer

INLINE_MAX_BYTES: Final = 64 * 1024
"""Most bytes of a message in its packet: more than the header of any common batch, and several
fit into a socket's default buffer. Larger ones cost some 20 microseconds for a memory file."""

HEADER_MAX_BYTES: Final = 256 * 1024**2
"""Largest header: a batch of requests whose parameters are as large as a body may be."""

PAYLOAD_MAX_BYTES: Final = 16 * 1024**3
"""Largest message: no answer with as much could be sent to a client."""

BUFFERS_MAX: Final = 1_000_000
"""Most buffers of a message: a large batch of requests with a thousand inputs each."""

_ALIGNMENT: Final = 64
"""Bytes that the start of a buffer is a multiple of, as numpy and vector instructions like it."""

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_PREFIX: Final = struct.Struct("<QQ")  # bytes of the header, of the whole payload
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(4 * array("i").itemsize)

Header: TypeAlias = dict[str, Any]


class LinkError(Exception):
    """What came is no message: the other end is out of order."""


class LinkClosedError(Exception):
    """The other end is gone."""


class Message(NamedTuple):
    """What was received.

    Attributes:
      header: As sent.
      buffers: As sent; each keeps the memory of the whole message.
    """

    header: Header
    buffers: Sequence[memoryview]


@final
class Packet:
    """A message on its way out: what goes into the socket; owns the descriptor of a large one."""

    __slots__ = ("_data", "_descriptor")

    def __init__(self, header: Header, buffers: Sequence[Buffer] = ()) -> None:
        sizes = [len(buffer) for buffer in buffers]
        text = json.dumps([sizes, header], separators=(",", ":")).encode()
        starts, size = _layout(len(text), sizes)
        prefix = _PREFIX.pack(len(text), size)
        self._descriptor = -1
        if size > INLINE_MAX_BYTES:
            self._data = prefix
            self._descriptor = _memory_file(size, [text, *buffers], [0, *starts])
            return
        parts: list[Buffer] = [prefix, text]
        end = len(text)
        for start, buffer in zip(starts, buffers, strict=True):
            parts += bytes(start - end), buffer
            end = start + len(buffer)
        self._data = b"".join(parts)

    def send(self, link: socket.socket) -> None:
        """Send it, and let go of its descriptor.

        Raises:
          BlockingIOError: the socket does not block, and has no room; try again.
          LinkClosedError: the other end is gone.
        """
        try:
            if self._descriptor < 0:
                link.send(self._data)
            else:
                rights = array("i", [self._descriptor])
                link.sendmsg(
                    [self._data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights.tobytes())]
                )
        except BlockingIOError:
            raise
        except OSError as error:
            self.close()
            raise LinkClosedError(str(error)) from None
        self.close()

    def close(self) -> None:
        """Let go of the descriptor; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def receive(link: socket.socket, *, writable: bool = False) -> Message:
    """Receive one message.

    Args:
      link: One end of a SOCK_SEQPACKET pair.
      writable: Whether large buffers may be written into; nobody else sees what is written.

    Raises:
      BlockingIOError: the socket does not block, and there is none.
      LinkClosedError: the other end is gone.
      LinkError: it is no message.
    """
    try:
        data, ancillary, flags, _ = link.recvmsg(
            INLINE_MAX_BYTES + _PREFIX.size, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        raise
    except OSError as error:
        raise LinkClosedError(str(error)) from None
    descriptors = array("i")
    for level, kind, rights in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
    try:
        if not data and not descriptors:
            raise LinkClosedError("end of file")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(data) < _PREFIX.size:
            raise LinkError(f"expected a packet with a prefix, got {len(data)} bytes")
        header_bytes, size = _PREFIX.unpack_from(data)
        if header_bytes > min(size, HEADER_MAX_BYTES) or size > PAYLOAD_MAX_BYTES:
            raise LinkError(f"expected a message of some size, got {header_bytes} of {size} bytes")
        if len(descriptors) == 1 and len(data) == _PREFIX.size:
            payload = _mapped(descriptors[0], size, writable=writable)
        elif not descriptors and len(data) == _PREFIX.size + size:
            payload = memoryview(data)[_PREFIX.size :]
        else:
            raise LinkError(f"expected {size} bytes, got {len(data) - _PREFIX.size} in the packet")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return _message(payload, header_bytes)


def _message(payload: memoryview, header_bytes: int) -> Message:
    try:
        sizes, header = json.loads(bytes(payload[:header_bytes]))
    except (ValueError, TypeError, RecursionError) as error:
        raise LinkError(f"expected a header of sizes and fields, got {error}") from None
    if not isinstance(header, dict) or not isinstance(sizes, list) or len(sizes) > BUFFERS_MAX:
        raise LinkError("expected a header of sizes and fields")
    if not all(type(size) is int and 0 <= size <= len(payload) for size in sizes):
        raise LinkError("expected the sizes of buffers, which are not negative")
    starts, size = _layout(header_bytes, sizes)
    if size != len(payload):
        raise LinkError(f"expected buffers of {len(payload)} bytes, got {size}")
    views = [payload[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return Message(header, views)


def _layout(header_bytes: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each buffer begins, and where the last one ends."""
    if not sizes:
        return [], header_bytes
    padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in (header_bytes, *sizes)]
    starts = list(accumulate(padded))[:-1]
    return starts, starts[-1] + sizes[-1]


def _memory_file(size: int, parts: Sequence[Buffer], starts: Sequence[int]) -> int:
    """Return the descriptor of a sealed memory file with these parts at these places."""
    descriptor = os.memfd_create("tritrio", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        for part, start in zip(parts, starts, strict=True):
            view = memoryview(part)
            written = 0
            while written < len(view):  # the kernel takes 2 GiB at a time
                written += os.pwrite(descriptor, view[written:], start + written)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mapped(descriptor: int, size: int, *, writable: bool) -> memoryview:
    """Return the bytes of a sealed memory file; they are unmapped with their last view."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        found = os.fstat(descriptor).st_size
        if seals & _SEALS != _SEALS or found != size:  # else reading it could end the reader
            raise LinkError(f"expected a sealed memory file of {size} bytes, got {found}")
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=prot))
    except (OSError, ValueError) as error:
        raise LinkError(f"expected a memory file, got {error}") from None
