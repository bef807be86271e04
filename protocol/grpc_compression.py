"""Message compression of gRPC: which codings there are, and how far they may inflate.

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


def decompress_message(data: Buffer, encoding: str, size_max: int) -> bytes:
    """Inflate one message, never further than the limit.

    Args:
      data: The message as it came.
      encoding: A supported coding, not identity.
      size_max: Most bytes it may have afterwards.

    Raises:
      MessageError: It is larger, or not in that coding.
    """
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        message = inflater.decompress(data, size_max + 1)
    except zlib.error as error:
        raise MessageError(
            Status.INTERNAL, f"A message flagged as compressed must be in {encoding}: {error}."
        ) from error
    if len(message) > size_max:
        raise MessageError(
            Status.RESOURCE_EXHAUSTED,
            f"A message may have {size_max} bytes when decompressed, this one has more.",
        )
    if not inflater.eof or inflater.unused_data:
        raise MessageError(
            Status.INTERNAL, f"A compressed message must be exactly one {encoding} stream."
        )
    return message


def compress_message(parts: list[Buffer], encoding: str) -> list[Buffer]:
    """Deflate one message given in parts, with a supported coding that is not identity."""
    deflater = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    compressed: list[Buffer] = [deflater.compress(part) for part in parts]
    compressed.append(deflater.flush())
    return compressed
