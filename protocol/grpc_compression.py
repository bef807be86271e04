"""Message compression of gRPC: which codings there are, and inflating no further than allowed.

Source: the gRPC compression document; "deflate" there is the zlib format (RFC 1950).
"""

from __future__ import annotations

import zlib
from typing import Final

from grpclib.const import Status

from .http2_frames import Buffer

IDENTITY: Final = "identity"
ACCEPTED_ENCODINGS: Final = "identity, deflate, gzip"
COMPRESSION_LEVEL: Final = 1
"""Tensors shrink little more at higher levels, and the work is done between two requests."""

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


def choose_encoding(accepted: str) -> str:
    """Return the coding for responses: gzip, deflate or identity.

    Args:
      accepted: The client's grpc-accept-encoding, a comma-separated list.
    """
    offered = {name.strip() for name in accepted.split(",")}
    return next((name for name in _WINDOW_BITS if name in offered), IDENTITY)


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


def compress_message(parts: list[Buffer], encoding: str) -> list[Buffer]:
    """Deflate one message given in parts, with a supported coding that is not identity."""
    deflater = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    compressed: list[Buffer] = [deflater.compress(part) for part in parts]
    compressed.append(deflater.flush())
    return compressed
