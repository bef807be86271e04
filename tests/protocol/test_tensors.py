"""The raw form of BYTES tensors: there and back, however long the elements are."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritrio.protocol.tensors import Tensor, decode_bytes_elements, encode_bytes_elements


def plainly_encoded(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


ELEMENTS = [
    [],
    [b""],
    [b"a\0b"],
    [b""] * 8,
    [b""] * 9,
    [b"\0\0"] * 7,
    [b"ab\0", b"\0\0\0", *[b"xyz"] * 6],
    [b"a"] * 8 + [b""],
    [b""] * 8 + [b"abc"],
    [b"", b"a"] * 10,
    [b"x" * 300] * 8,
    [*[b"four"] * 8, b"\4\0\0\0", b"", b"abcd"],
    [b"\0\0\0\0"] * 8,
]


@pytest.mark.parametrize("elements", ELEMENTS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_elements_of_one_length_and_of_many_come_back(elements: list[bytes], kind: Any) -> None:
    raw = encode_bytes_elements(elements)
    assert raw == plainly_encoded(elements)
    decoded = decode_bytes_elements(kind(raw))
    assert decoded == elements
    assert {type(element) for element in decoded} <= {bytes}


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=3), max_size=40))
def test_any_elements_come_back(elements: list[bytes]) -> None:
    raw = encode_bytes_elements(elements)
    assert raw == plainly_encoded(elements)
    assert decode_bytes_elements(memoryview(raw)) == elements


def test_text_and_other_objects_are_encoded_as_text() -> None:
    elements = ["ü", b"\xff", bytearray(b"ab"), memoryview(b"cd"), 7, None, np.bytes_(b"e")]
    expected = ["ü".encode(), b"\xff", b"ab", b"cd", b"7", b"None", b"e"]
    assert encode_bytes_elements(iter(elements)) == plainly_encoded(expected)


@pytest.mark.parametrize("before", [0, 1, 20])
@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (b"\0", "expected a 4-byte element length, got 1 bytes"),
        (b"\0\0\0", "expected a 4-byte element length, got 3 bytes"),
        (b"\3\0\0\0ab", "expected an element of 3 bytes, got 2 bytes"),
        (b"\xff\xff\xff\xff", "expected an element of 4294967295 bytes, got 0 bytes"),
    ],
)
def test_what_is_cut_off_is_named(before: int, rest: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        decode_bytes_elements(plainly_encoded([b"xy"] * before) + rest)


def test_a_first_length_of_four_gigabytes_takes_no_memory() -> None:
    with pytest.raises(ValueError, match="expected an element of 4294967295 bytes, got 96 bytes"):
        decode_bytes_elements(b"\xff" * 100)


@pytest.mark.parametrize("count", [6, 12])
def test_both_forms_of_a_tensor_make_each_other(count: int) -> None:
    elements = [b"%02d" % number for number in range(count)]
    raw = plainly_encoded(elements)
    received = Tensor("X", "BYTES", (count // 2, 2), raw=memoryview(raw))
    assert received.array.ravel().tolist() == elements
    assert received.array.shape == (count // 2, 2)
    assert Tensor("X", "BYTES", received.shape, array=received.array).raw == raw
