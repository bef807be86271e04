"""Compressed answers over gRPC: which coding a level prefers, and how hard and how it is made."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from tritrio.protocol.errors import RequestError
from tritrio.protocol.grpc_compression import (
    COMPRESSION_LEVELS,
    DEFLATE_PIECE_BYTES,
    choose_encoding,
    compression_level,
    deflate_message,
)


@pytest.mark.parametrize(
    ("accepted", "codings"),
    [
        ("identity", ["identity"] * 4),
        ("", ["identity"] * 4),
        ("snappy, br", ["identity"] * 4),
        ("gzip", ["identity", "gzip", "gzip", "gzip"]),
        ("deflate", ["identity", "deflate", "deflate", "deflate"]),
        ("identity,deflate,gzip", ["identity", "gzip", "deflate", "deflate"]),
        ("gzip, deflate", ["identity", "gzip", "deflate", "deflate"]),
    ],
)
def test_a_level_prefers_the_coding_that_triton_prefers(accepted: str, codings: list[str]) -> None:
    levels = map(compression_level, ("none", "low", "medium", "high"))
    assert [choose_encoding(accepted, level) for level in levels] == codings


def test_a_higher_level_compresses_harder() -> None:
    text = bytes(Random(5).choices(b"abcdef", k=100_000))
    sizes = [
        sum(map(len, deflate_message([text], "gzip", level)))
        for name, level in COMPRESSION_LEVELS.items()
        if name != "none"
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(RequestError, match="none, low, medium, high, got 'fast'"):
        compression_level("fast")


def test_a_message_is_compressed_a_piece_at_a_time() -> None:
    parts: list[bytes | memoryview[int]] = [
        b"head",
        memoryview(bytes(5 * DEFLATE_PIECE_BYTES // 2)),
        b"tail",
    ]
    pieces = list(deflate_message(parts, "deflate", 1))
    assert len(pieces) == 1 + 3 + 1 + 1
    assert zlib.decompress(b"".join(pieces)) == b"".join(parts)
