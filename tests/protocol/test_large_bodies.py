"""Bodies beyond 2 GiB, where sums of 32 bits would be negative: memory that nobody touches."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator

import pytest

from tritrio.protocol.binary_codec import parse_header_length
from tritrio.protocol.http_session import HttpLimits, HttpSession, HttpState
from tritrio.protocol.model_spec import InputSpec

from .infer_specs import Refused, decode, spec

BODY_BYTES = 2_362_232_012
"""2.2 GiB, a multiple of an element of FP32."""
JSON_BYTES = 1000
HEADER = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def body() -> Iterator[memoryview]:
    """2.2 GiB of zeros, of which only what is written takes room."""
    with mmap.mmap(-1, BODY_BYTES) as memory, memoryview(memory) as view:
        yield view


def test_a_session_waits_for_all_of_a_large_body() -> None:
    session = HttpSession(HttpLimits())
    session.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % BODY_BYTES)
    assert session.state is HttpState.BODY
    assert session.body_bytes_missing == BODY_BYTES


@pytest.mark.parametrize(
    "value", ["-1", "abc", str(BODY_BYTES + 1), str(2**32 + 10), str(2**40), str(2**63), str(2**64)]
)
def test_a_wrong_length_of_the_json_part_is_refused_with_the_range(value: str) -> None:
    with Refused(HEADER, f"'{value}'" if value == "abc" else value):
        parse_header_length(value.encode(), BODY_BYTES)


@pytest.mark.parametrize("length", [0, 2**31 - 1, 2**31, 2**31 + 1, BODY_BYTES])
def test_a_length_within_the_body_is_taken_whatever_its_size(length: int) -> None:
    assert parse_header_length(str(length).encode(), BODY_BYTES) == length


def header_of(size: int) -> bytes:
    """A JSON part of `JSON_BYTES` that says how large the tensor behind it is."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [size // 4]}
    text = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]})
    return text.encode().ljust(JSON_BYTES)


def test_a_tensor_beyond_2_gib_is_taken_without_a_copy(body: memoryview) -> None:
    model = spec(InputSpec("IN", "FP32", (-1,)))
    size = BODY_BYTES - JSON_BYTES
    body[:JSON_BYTES] = header_of(size)
    made = decode(body, header_length=JSON_BYTES, model=model)
    assert len(made.inputs["IN"].raw) == size > 2**31
    body[:JSON_BYTES] = header_of(size + 4)
    with Refused("'IN'", str(size + 4), "4 bytes of it are missing"):
        decode(body, header_length=JSON_BYTES, model=model)


def test_json_beyond_2_gib_is_refused_with_the_limit(body: memoryview) -> None:
    with Refused(str(BODY_BYTES), "67108864", "--http-max-input-size"):
        decode(body, header_length=None, model=spec(InputSpec("IN", "FP32", (-1,))))
    with Refused("67108864", "--http-max-input-size"):
        decode(body, header_length=0, model=spec(InputSpec("IN", "FP32", (-1,))))
