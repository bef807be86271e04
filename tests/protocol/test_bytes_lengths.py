"""Raw BYTES tensors of many short elements, which numpy takes apart."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.protocol.infer_specs import Refused, request, spec
from tritrio.protocol.bytes_lengths import MANY, SHORT_BYTES_MAX, short_lengths
from tritrio.protocol.model_spec import InputSpec
from tritrio.protocol.request_rules import validate
from tritrio.protocol.tensors import Tensor, decode_bytes_elements, encode_bytes_elements


def raw_form(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def words(count: int, *, bytes_max: int = 12) -> list[bytes]:
    """Elements of 0 to `bytes_max` letters."""
    source = random.Random(1)
    return [b"w" * source.randint(0, bytes_max) for _ in range(count)]


def test_the_lengths_of_many_short_texts_are_seen_at_a_glance() -> None:
    elements = words(5 * MANY, bytes_max=SHORT_BYTES_MAX)
    lengths = short_lengths(memoryview(raw_form(elements)), len(elements))
    assert lengths is not None
    assert lengths.tolist() == [len(element) for element in elements]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param([b""], id="an empty one"),
        pytest.param([b"", b"", b"", b"a"], id="empty ones in a row"),
        pytest.param([b"\0\0\0\0\0"], id="zeros"),
        pytest.param([b"a\5\0\0\0bcdef\1\0\0\0g"], id="what looks like elements"),
        pytest.param([b"\377\0\0\0"], id="what looks like a long element"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 700, 999, 1000])
def test_an_element_with_zeros_does_not_mislead(odd: list[bytes], place: int) -> None:
    elements = [*[b"some", b"words"] * 500]
    elements[place:place] = odd
    lengths = short_lengths(raw_form(elements), len(elements))
    assert lengths is not None
    assert lengths.tolist() == [len(element) for element in elements]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_form([b"some", b"words"] * 500)[:-1], id="cut off"),
        pytest.param(raw_form([b"some", b"words"] * 500) + b"\0", id="with a rest"),
        pytest.param(b"x" + raw_form([b"some", b"words"] * 500), id="with something before"),
        pytest.param(raw_form([b"ab", b"c" * 256] * 500), id="with long elements"),
        pytest.param(bytes(10_000), id="zeros only"),
        pytest.param(b"x" * 10_000, id="no zeros"),
        pytest.param(raw_form([b"", b"", b"", b"a"] * 250), id="empty ones for the most part"),
    ],
)
def test_what_is_not_seen_at_a_glance_says_nothing(raw: bytes) -> None:
    assert short_lengths(raw, 1000) is None


def test_few_elements_are_left_to_a_walk() -> None:
    raw = raw_form(words(MANY))
    assert short_lengths(raw, MANY) is not None
    assert short_lengths(raw, MANY - 1) is None


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([b"", b"\0", b"\0\0\0", b"\3\0\0\0", b"x\0\0\0\0y", b"z" * 256])),
    st.integers(0, 1000),
    st.integers(0, 3),
)
def test_no_bytes_are_taken_for_other_elements(odd: list[bytes], place: int, cut: int) -> None:
    elements = [*[b"some", b"words"] * 500]
    elements[place:place] = odd
    raw = raw_form(elements)
    whole = raw[: len(raw) - cut]
    lengths = short_lengths(whole, len(elements))
    assert lengths is None or (
        lengths.tolist() == [len(element) for element in elements] and cut == 0
    )
    assert decode_bytes_elements(raw, len(elements)) == elements
    assert encode_bytes_elements(elements) == raw
    array = Tensor("X", "BYTES", (len(elements),), raw=raw).array
    assert array.tolist() == elements


def test_many_elements_come_back_in_pieces_and_in_their_shape() -> None:
    elements = words(20_000)
    raw = raw_form(elements)
    tensor = Tensor("IN", "BYTES", (4, 5000), raw=memoryview(raw))
    validate(request(tensor), spec(InputSpec("IN", "BYTES", (4, 5000))))
    assert tensor.array.shape == (4, 5000)
    assert tensor.array.ravel().tolist() == elements
    assert Tensor("OUT", "BYTES", (4, 5000), array=tensor.array).raw == raw


@pytest.mark.parametrize("count", [999, 1001])
def test_another_number_of_short_elements_is_refused(count: int) -> None:
    tensor = Tensor("IN", "BYTES", (1000,), raw=raw_form(words(count)))
    with Refused(f"expected 1000 BYTES elements, got {count}"):
        validate(request(tensor), spec(InputSpec("IN", "BYTES", (1000,))))


def test_each_may_write_into_the_array_that_is_its_own() -> None:
    elements = words(MANY)
    tensor = Tensor("X", "BYTES", (MANY,), raw=raw_form(elements))
    own = tensor.own_array()
    own[0] = b"other"
    assert tensor.own_array().tolist() == elements
    numbers = Tensor("X", "INT32", (2,), raw=struct.pack("<2i", 1, 2)).own_array()
    numbers[0] = 3
    assert np.array_equal(numbers, [3, 2])
