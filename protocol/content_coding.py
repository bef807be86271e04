"""HTTP content codings: gzip and deflate, bounded while inflating.

Source: RFC 9110 8.4.1 and 12.5.3.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from .errors import ErrorCode, RequestError, invalid_argument
from .tensors import Buffer
from .wording import quoted

CODINGS: Final = ("gzip", "deflate")
"""What bodies may be compressed with, in the order `Accept-Encoding` names them."""

_EITHER_FORMAT: Final = 32 + zlib.MAX_WBITS
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_COMPRESSION_LEVEL: Final = 1
"""Responses are compressed on the way out: tensors gain little from more effort."""
_PREFERENCES_MAX: Final = 32
"""Items of an `Accept-Encoding` that are looked at; there are about ten codings in all."""


class InflatedTooFarError(RequestError):
    """A body has more bytes when decompressed than the limit: INVALID_ARG."""


def decompress(body: Buffer, coding: bytes, limit_bytes: int) -> Buffer:
    """Return the body a client compressed.

    Args:
      body: The body as it came.
      coding: The value of `Content-Encoding`; empty and "identity" mean not compressed. Clients
        mix the names up, so gzip and zlib streams are taken under either.
      limit_bytes: Most bytes of the result.

    Raises:
      RequestError: UNSUPPORTED for another coding; INVALID_ARG for bytes that are no whole
        stream, and for more than `limit_bytes` (an `InflatedTooFarError`).
    """
    name = coding.strip().lower().decode("latin-1")
    if name in {"", "identity"}:
        return body
    if name not in CODINGS:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"compression type {quoted(name)} is not supported, expected {' or '.join(CODINGS)}",
        )
    inflater = zlib.decompressobj(_EITHER_FORMAT)
    try:
        inflated = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as fault:
        raise invalid_argument(f"the {name} body cannot be decompressed: {fault}") from None
    if len(inflated) > limit_bytes:
        raise InflatedTooFarError(
            ErrorCode.INVALID_ARG,
            f"the {name} body decompresses to more than the limit of {limit_bytes} bytes set by "
            "--http-max-input-size",
        )
    if not inflater.eof:
        raise invalid_argument(
            f"the {name} body is cut off: its {len(body)} bytes are no whole stream"
        )
    if inflater.unused_data:
        raise invalid_argument(
            f"the {name} body has {len(inflater.unused_data)} bytes behind its compressed stream"
        )
    return inflated


def compress(parts: Iterable[Buffer], coding: str) -> bytes:
    """Return a body compressed with one of `CODINGS`."""
    deflater = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _WINDOW_BITS[coding])
    return b"".join([*map(deflater.compress, parts), deflater.flush()])


def choose_response_coding(accept_encoding: bytes | None) -> str | None:
    """Return the coding a client likes best, or None for identity.

    Args:
      accept_encoding: The value of `Accept-Encoding`, or None without the header.

    The first of the highest weights wins; items that are malformed, unknown or of weight 0 are
    skipped.
    """
    if accept_encoding is None:
        return None
    best: str | None = None
    best_weight = 0.0
    for item in accept_encoding.decode("latin-1").lower().split(",", _PREFERENCES_MAX):
        name, *parameters = (part.strip() for part in item.split(";"))
        if name not in {"identity", *CODINGS}:
            continue
        weight = _weight(parameters)
        if weight > best_weight:
            best, best_weight = name, weight
    return None if best == "identity" else best


def _weight(parameters: list[str]) -> float:
    """Return the weight an item's parameters give, 0 if they are malformed."""
    if not parameters:
        return 1.0
    name, _, value = parameters[0].partition("=")
    whole, _, thousandths = value.strip().partition(".")
    digits = whole + thousandths
    if len(parameters) > 1 or name.strip() != "q" or not (digits.isascii() and digits.isdigit()):
        return 0.0
    weight = float(f"{whole or 0}.{thousandths or 0}")
    return weight if weight <= 1.0 and len(thousandths) <= 3 else 0.0
