from __future__ import annotations

import re
import struct
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.model_spec import InputSpec
from tritrio.protocol.request_rules import (
    ACCEPTED_SHAPES_MAX,
    bytes_elements_fault,
    check_fields,
    validate,
)
from tritrio.protocol.requests import InferRequest, RequestedOutput
from tritrio.protocol.tensors import Tensor, encode_bytes_elements

from .infer_specs import PROPERTY, Refused, request, spec, zeros


def batching(*, optional: bool = False) -> InputSpec:
    return InputSpec("IN", "INT32", (4,), batches=True, optional=optional)


def test_a_valid_request_gets_its_batch_size_again_and_again() -> None:
    model = spec(batching(), max_batch_size=8)
    for rows in (1, 8, 8, 1):
        made = request(zeros((rows, 4)))
        validate(made, model)
        assert made.batch_size == rows


def test_a_model_that_does_not_batch_takes_one_row() -> None:
    made = request(zeros((7,)))
    validate(made, spec())
    assert made.batch_size == 1


def test_an_unknown_output_is_named() -> None:
    with Refused("'NOPE'", "'m'"):
        validate(request(zeros((1,)), outputs=(RequestedOutput("NOPE"),)), spec())


def test_an_unknown_output_is_told_before_a_missing_input() -> None:
    with Refused("'NOPE'"):
        validate(request(outputs=(RequestedOutput("NOPE"),)), spec())


def test_too_many_inputs_are_counted_and_named() -> None:
    with Refused("expects 1 inputs", "got 2", "'IN', 'MORE'", "'m'"):
        validate(request(zeros((1,)), zeros((1,), "MORE")), spec())


def test_missing_required_inputs_are_named_in_config_order() -> None:
    model = spec(
        InputSpec("z", "INT32", (1,)),
        InputSpec("a", "INT32", (1,)),
        InputSpec("o", "INT32", (1,), optional=True),
    )
    with Refused("expects 2 to 3 inputs", "got 1", "['o']", "missing ['z', 'a']", "required"):
        validate(request(zeros((1,), "o")), model)


def test_an_optional_input_does_not_stand_in_for_a_required_one() -> None:
    model = spec(
        InputSpec("a", "INT32", (1,)),
        InputSpec("o", "INT32", (1,), optional=True),
    )
    validate(request(zeros((1,), "a")), model)
    validate(request(zeros((1,), "a"), zeros((1,), "o")), model)
    with Refused("missing ['a']"):
        validate(request(zeros((1,), "o")), model)


def test_an_unknown_input_is_named() -> None:
    with Refused("'NOPE'", "'m'"):
        validate(request(zeros((1,), "NOPE")), spec())


def test_a_batching_model_needs_a_batch_dimension() -> None:
    with Refused("'IN'", "'m'", "batch dimension"):
        validate(request(zeros(())), spec(batching(), max_batch_size=8))


def test_batches_that_differ_between_inputs_are_refused_also_once_both_shapes_are_known() -> None:
    model = spec(
        InputSpec("a", "INT32", (1,), batches=True),
        InputSpec("b", "INT32", (1,), batches=True),
        max_batch_size=8,
    )
    for _ in range(2):
        with Refused("'b'", "'m'", "batch size 3", "have 2"):
            validate(request(zeros((2, 1), "a"), zeros((3, 1), "b")), model)
        validate(request(zeros((2, 1), "a"), zeros((2, 1), "b")), model)
        validate(request(zeros((3, 1), "a"), zeros((3, 1), "b")), model)


@pytest.mark.parametrize("rows", [0, 9])
def test_a_batch_of_nothing_or_over_the_maximum_is_refused(rows: int) -> None:
    with Refused("batch dimension", "from 1 to 8", "'m'", f"got {rows}"):
        validate(request(zeros((rows, 4))), spec(batching(), max_batch_size=8))


def test_another_datatype_is_refused_with_both() -> None:
    with Refused("'IN'", "'FP32'", "'m'", "'INT32'"):
        validate(request(zeros((1,), datatype="FP32")), spec())


@pytest.mark.parametrize("shape", [(-1,), (2, -5)])
def test_a_negative_dimension_is_refused(shape: Any) -> None:
    dims = (-1,) * len(shape)
    text = str(list(shape)).replace(" ", "")
    with Refused("'IN'", "'m'", text, "negative"):
        validate(request(zeros(shape)), spec(InputSpec("IN", "INT32", dims)))


def test_a_negative_batch_is_refused() -> None:
    with Refused("negative", "[-1,4]"):
        validate(request(zeros((-1, 4))), spec(batching(), max_batch_size=8))


def test_another_shape_is_refused_with_a_hint_about_the_batch_dimension() -> None:
    for shape in ((4,), (1, 5), (1, 1, 4)):
        got = "[" + ",".join(map(str, shape)) + "]"
        with Refused("'IN'", "'m'", "[-1,4]", got, "max_batch_size 0"):
            validate(request(zeros(shape)), spec(batching(), max_batch_size=8))


def test_an_extra_dimension_without_batching_gets_no_hint() -> None:
    model = spec(InputSpec("IN", "INT32", (4,)))
    with pytest.raises(Exception, match=r"expects shape \[4\], got \[1,4\]$"):
        validate(request(zeros((1, 4))), model)


def test_reshape_keeps_the_batch_and_the_variable_dimensions() -> None:
    tensor = InputSpec("IN", "INT32", (-1, 2, -1), batches=True, reshape=(2, -1, -1, 1))
    model = spec(tensor, max_batch_size=8)
    raw = zeros((3, 5, 2, 7))
    array = Tensor("IN", "INT32", (3, 5, 2, 7), array=np.zeros((3, 5, 2, 7), np.int32))
    for given_tensor in (raw, array):
        made = request(given_tensor)
        validate(made, model)
        assert given_tensor.shape == (3, 2, 5, 7, 1)
        assert given_tensor.array.shape == (3, 2, 5, 7, 1)


def test_a_scalar_per_row_is_reached_by_an_empty_reshape() -> None:
    tensor = InputSpec("IN", "INT32", (1,), batches=True, reshape=())
    made = request(zeros((5, 1)))
    validate(made, spec(tensor, max_batch_size=8))
    assert made.inputs["IN"].shape == (5,)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_bytes_that_do_not_fit_the_shape_are_refused(size: Any) -> None:
    made = request(Tensor("IN", "INT32", (4,), raw=bytes(size)))
    with Refused("'IN'", "'m'", "needs 16 bytes", f"got {size} bytes"):
        validate(made, spec())


def test_sizes_beyond_int64_are_refused() -> None:
    model = spec(InputSpec("IN", "INT32", (-1, -1)))
    for shape in ((2**62, 1), (2**62, 2), (2**63 - 1, 2**63 - 1)):
        with Refused("'IN'", "maximum", "9223372036854775807"):
            validate(request(Tensor("IN", "INT32", shape, raw=b"")), model)


@pytest.mark.parametrize("count", [1, 4, 20])
def test_bytes_elements_are_walked(count: Any) -> None:
    model = spec(InputSpec("IN", "BYTES", (count,)))
    elements = [b"x" * (index % 3) for index in range(count)]
    raw = encode_bytes_elements(elements)
    validate(request(Tensor("IN", "BYTES", (count,), raw=raw)), model)
    validate(request(Tensor("IN", "BYTES", (count,), raw=memoryview(raw))), model)
    with Refused("'IN'", "'m'", "expected a 4-byte element length", "got 3 bytes"):
        validate(request(Tensor("IN", "BYTES", (count,), raw=raw + b"\0\0\0")), model)
    with Refused(f"expected {count} BYTES elements, got {count + 1}"):
        validate(request(Tensor("IN", "BYTES", (count,), raw=raw + bytes(4))), model)
    with Refused(f"expected {count} BYTES elements, got 0"):
        validate(request(Tensor("IN", "BYTES", (count,), raw=b"")), model)
    with Refused(f"should end at byte {len(raw) + 4 + 9}", f"only {len(raw) + 4} bytes"):
        long = raw + struct.pack("<I", 9)
        validate(request(Tensor("IN", "BYTES", (count,), raw=long)), model)


@PROPERTY
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 31), st.binary(max_size=6))
def test_the_walk_accepts_exactly_the_well_formed(lengths: Any, expected: Any, rest: Any) -> None:
    raw = encode_bytes_elements([b"a" * length for length in lengths]) + rest
    fault = bytes_elements_fault(raw, expected)
    well_formed = not rest and len(lengths) == expected
    if not rest or rest == bytes(4):
        assert (fault is None) == (well_formed or (bool(rest) and len(lengths) + 1 == expected))


@PROPERTY
@given(st.integers(0, 9), st.integers(1, 300), st.sampled_from([-1, 0, 1]), st.integers(0, 300))
def test_elements_of_one_length_are_counted_whatever_was_expected(
    length: Any, count: Any, change: Any, index: Any
) -> None:
    lengths = [length] * count
    raw = encode_bytes_elements([b"a" * each for each in lengths])
    for expected in (1, count, count + 1):
        fault = None if expected == count else f"expected {expected} BYTES elements, got {count}"
        assert bytes_elements_fault(raw, expected) == fault
    lengths[index % count] = max(0, length + change)  # one that may differ
    raw = encode_bytes_elements([b"a" * each for each in lengths])
    assert bytes_elements_fault(raw, count) is None


def test_many_elements_of_one_length_are_not_walked() -> None:
    """The walk in Python would take seconds for what a client sends in one."""
    calls = 0

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "c_call"

    raw = bytes(4 * 100_000)
    sys.setprofile(count_calls)
    try:
        fault = bytes_elements_fault(raw, 7)
    finally:
        sys.setprofile(None)
    assert fault == "expected 7 BYTES elements, got 100000"
    assert calls < 100


def test_a_sequence_id_must_fit_the_control_tensor() -> None:
    text = spec(correlation_id=("CORRID", "BYTES"))
    number = spec(correlation_id=("CORRID", "UINT64"))
    validate(request(zeros((1,)), sequence_id="a"), text)
    validate(request(zeros((1,)), sequence_id=7), number)
    validate(request(zeros((1,)), sequence_id=0), text)
    with Refused("'CORRID'", "'m'", "BYTES", "UINT64"):
        validate(request(zeros((1,)), sequence_id=7), text)
    with Refused("'CORRID'", "'m'", "BYTES", "UINT64"):
        validate(request(zeros((1,)), sequence_id="a"), number)


def test_remembered_shapes_are_bounded() -> None:
    model = spec()
    for size in range(ACCEPTED_SHAPES_MAX + 10):
        validate(request(zeros((size,))), model)
        assert len(model.accepted) <= ACCEPTED_SHAPES_MAX


def test_a_sequence_model_takes_one_row_and_a_sequence_id() -> None:
    model = spec(batching(), max_batch_size=8, sequences=True)
    validate(request(zeros((1, 4)), sequence_id=7), model)
    validate(request(zeros((1, 4)), sequence_id="a"), model)
    with Refused("'m'", "batch size of each request must be 1, got 2"):
        validate(request(zeros((2, 4)), sequence_id=7), model)
    for nothing in (0, ""):
        with Refused("'m'", "sequence id", "neither 0 nor empty"):
            validate(request(zeros((1, 4)), sequence_id=nothing), model)


def test_an_iterative_model_needs_no_sequence_id() -> None:
    model = spec(batching(), max_batch_size=8, sequences=True, iterative=True)
    validate(request(zeros((1, 4))), model)
    with Refused("'m'", "batch size of each request must be 1, got 2"):
        validate(request(zeros((2, 4))), model)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("id", 1, "request_id must be text, got int"),
        ("timeout_us", "100", "timeout must be a whole number from 0 to 9223372036854775807, got"),
        ("timeout_us", -1, "timeout must be a whole number from 0 to"),
        ("priority", True, "priority must be a whole number from 0 to"),
        ("sequence_id", [1], "correlation_id must be text or a whole number below 2^64, got"),
        ("sequence_id", 2**64, "correlation_id must be text or a whole number below 2^64, got"),
    ],
)
def test_a_field_that_no_codec_has_checked_is_refused_by_name(
    field: str, value: Any, message: str
) -> None:
    made = InferRequest("model")
    check_fields(made)
    setattr(made, field, value)
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        check_fields(made)
    assert caught.value.code is ErrorCode.INVALID_ARG
