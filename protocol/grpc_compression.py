"""Message compression of gRPC: which codings there are, and inflating no further than allowed.

How hard answers are compressed is `--grpc-infer-response-compression-level`; which coding a level
prefers is as grpc-core has it.

Source: the gRPC compression document; "deflate" there is the zlib format (RFC 1950).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from grpclib.const import Status

from .errors import invalid_argument
from .http2_frames import Buffer
from .wording import quoted

IDENTITY: Final = "identity"
ACCEPTED_ENCODINGS: Final = "identity, deflate, gzip"
COMPRESSION_LEVELS: Final = {"none": 0, "low": 1, "medium": 6, "high": 9}
"""Name of each level -> zlib's level: its fastest, its default and its best. 0 is off."""

DEFLATE_PIECE_BYTES: Final = 1024 * 1024
"""Bytes of an answer that are compressed at once: tens of milliseconds of work at most, which a
thread does before it looks whether the call still needs it."""

DEFLATED_PIECE_BYTES: Final = 256 * 1024
"""Compressed bytes that zlib is given at once: it copies what it has not used in each step."""

_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class MessageError(Exception):
    """A message cannot be taken; it ends the call.

    Attributes:
      status: What the call ends with.
      message: One sentence: what was expected and what came.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def is_supported(encoding: str) -> bool:
    """Whether messages in this coding can be read and written."""
    return encoding == IDENTITY or encoding in _WINDOW_BITS


def compression_level(name: str) -> int:
    """Return zlib's number for the name of a level.

    Raises:
      RequestError: INVALID_ARG; there is no such level.
    """
    if name not in COMPRESSION_LEVELS:
        raise invalid_argument(
            "--grpc-infer-response-compression-level must be one of "
            f"{', '.join(COMPRESSION_LEVELS)}, got {quoted(name)}"
        )
    return COMPRESSION_LEVELS[name]


def choose_encoding(accepted: str, level: int) -> str:
    """Return the coding for responses: gzip, deflate or identity.

    Args:
      accepted: The client's grpc-accept-encoding, a comma-separated list.
      level: zlib's; 0 is off.
    """
    if not level:
        return IDENTITY
    offered = {name.strip() for name in accepted.split(",")}
    preferred = ("gzip", "deflate") if level <= COMPRESSION_LEVELS["low"] else ("deflate", "gzip")
    return next((name for name in preferred if name in offered), IDENTITY)


class Inflater:
    """Inflates one message step by step, never further than the limit.

    Args:
      data: The message as it came.
      encoding: A supported coding, not identity.
      size_max: Most bytes it may have afterwards.

    Attributes:
      message: What it is so far.
      is_whole: Whether that is all of it.
    """

    __slots__ = ("_data", "_encoding", "_inflater", "_position", "_size_max", "is_whole", "message")

    def __init__(self, data: Buffer, encoding: str, size_max: int) -> None:
        self._data = memoryview(data)
        self._encoding = encoding
        self._inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
        self._position = 0
        self._size_max = size_max
        self.is_whole = False
        self.message = bytearray()

    def step(self, n_bytes: int) -> None:
        """Inflate the next `n_bytes`, or what is left if that is less.

        Raises:
          MessageError: The message is larger than the limit, or not in that coding.
        """
        inflater, message = self._inflater, self.message
        stop = len(message) + n_bytes
        while len(message) < stop and not inflater.eof:
            source: Buffer = inflater.unconsumed_tail
            if not source:
                source = self._data[self._position : self._position + DEFLATED_PIECE_BYTES]
                self._position += len(source)
            try:
                piece = inflater.decompress(source, stop - len(message))
            except zlib.error as error:
                raise MessageError(
                    Status.INTERNAL,
                    f"A message flagged as compressed must be in {self._encoding}: {error}.",
                ) from error
            message += piece
            if not piece and not inflater.eof and self._position == len(self._data):
                break  # it ends early
        if len(message) > self._size_max:
            raise MessageError(
                Status.RESOURCE_EXHAUSTED,
                f"A message may have {self._size_max} bytes when decompressed, this one has more.",
            )
        if (len(message) < stop and not inflater.eof) or self._has_surplus():
            raise MessageError(
                Status.INTERNAL,
                f"A compressed message must be exactly one {self._encoding} stream.",
            )
        self.is_whole = inflater.eof

    def _has_surplus(self) -> bool:
        """Whether there are bytes behind the end of the stream."""
        if not self._inflater.eof:
            return False
        return bool(self._inflater.unused_data) or self._position < len(self._data)


def deflate_message(parts: Sequence[Buffer], encoding: str, level: int) -> Iterator[bytes]:
    """Yield the pieces of one message, compressed; each takes about the same time.

    Args:
      parts: The message in pieces, byte buffers.
      encoding: A supported coding, not identity.
      level: zlib's.
    """
    deflater = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), DEFLATE_PIECE_BYTES):
            yield deflater.compress(view[start : start + DEFLATE_PIECE_BYTES])
    yield deflater.flush()
