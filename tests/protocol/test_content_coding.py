from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritrio.protocol.content_coding import choose_response_coding, compress, decompress
from tritrio.protocol.errors import ErrorCode, RequestError

from .infer_specs import PROPERTY, Refused

TEXT = b'{"inputs":[]}' * 10


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"GZIP", b" Deflate "])
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_either_format_is_taken_under_either_name(coding: Any, pack: Any) -> None:
    assert decompress(pack(TEXT), coding, 1000) == TEXT


@pytest.mark.parametrize("coding", [b"", b"identity", b" Identity"])
def test_identity_is_passed_through(coding: Any) -> None:
    assert decompress(TEXT, coding, 0) is TEXT


@pytest.mark.parametrize("coding", [b"br", b"gzip, deflate", b"zstd", b"\xff"])
def test_another_coding_is_unsupported(coding: Any) -> None:
    with Refused(coding.decode("latin-1"), "gzip or deflate", code=ErrorCode.UNSUPPORTED):
        decompress(TEXT, coding, 1000)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_every_fault_in_the_stream_is_refused(pack: Any) -> None:
    packed = pack(TEXT)
    for length in range(len(packed)):
        with Refused("gzip"):
            decompress(packed[:length], b"gzip", 1000)
    with Refused("2 bytes behind"):
        decompress(packed + b"xx", b"gzip", 1000)
    broken = bytearray(packed)
    broken[-1] ^= 1
    with Refused("cannot be decompressed"):
        decompress(broken, b"gzip", 1000)
    with Refused("cannot be decompressed"):
        decompress(b"rubbish", b"deflate", 1000)


def test_inflating_stops_at_the_limit() -> None:
    assert len(decompress(gzip.compress(bytes(1000)), b"gzip", 1000)) == 1000
    with Refused("limit of 999 bytes", "--http-max-input-size"):
        decompress(gzip.compress(bytes(1000)), b"gzip", 999)
    with Refused("limit of 1000"):
        decompress(gzip.compress(bytes(10_000_000)), b"gzip", 1000)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_response_is_what_its_coding_says(coding: Any) -> None:
    packed = compress([b"ab", memoryview(b"cd"), b""], coding)
    assert decompress(packed, coding.encode(), 10) == b"abcd"
    assert packed.startswith(b"\x1f\x8b") == (coding == "gzip")


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, None),
        (b"", None),
        (b"gzip", "gzip"),
        (b"deflate, gzip", "deflate"),
        (b"gzip;q=0.5, deflate;q=0.8", "deflate"),
        (b"deflate;q=0.8,gzip;q=0.8", "deflate"),
        (b"gzip;q=0", None),
        (b"gzip;q=0, deflate", "deflate"),
        (b"*", None),
        (b"br", None),
        (b"br, gzip;q=0.1", "gzip"),
        (b"identity, gzip;q=0.5", None),
        (b"identity;q=0.5, GZIP ; q=0.6", "gzip"),
        (b"gzip;q=2, deflate;q=x, gzip;q=, deflate;q=-1", None),
        (b"gzip;level=1, ,;, deflate;q=0.3", "deflate"),
        (b"gzip;q=1.000", "gzip"),
        (b"gzip;q=\xb2", None),
    ],
)
def test_the_first_of_the_highest_weights_wins(header: Any, coding: Any) -> None:
    assert choose_response_coding(header) == coding


@PROPERTY
@given(st.binary(max_size=60), st.sampled_from([b"gzip", b"deflate"]))
def test_random_bytes_never_raise_anything_but_request_errors(data: Any, coding: Any) -> None:
    choose_response_coding(data)
    with suppress(RequestError):
        decompress(data, coding, 100)
