from __future__ import annotations

import numpy as np
import pytest

from tritrio.memory.gather import split_rows, stack_inputs, unpinned
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.tensors import Array, Tensor, encode_bytes_elements


def request_with(tensor: Tensor) -> InferRequest:
    request = InferRequest("model")
    request.inputs = {tensor.name: tensor}
    return request


def request_of(array: Array, datatype: str = "FP32") -> InferRequest:
    return request_with(Tensor("X", datatype, array.shape, array=array))


def test_a_batch_of_one_is_the_array_of_the_request_itself() -> None:
    body = bytes(16)
    request = request_with(Tensor("X", "FP32", (1, 4), raw=body))
    stacked = stack_inputs([request], "X")
    assert stacked is request.inputs["X"].array
    assert np.shares_memory(stacked, np.frombuffer(body, np.uint8))


def test_requests_are_joined_along_the_batch_dimension_in_order() -> None:
    first, second = np.full((1, 2), 1, np.float32), np.full((2, 2), 2, np.float32)
    stacked = stack_inputs([request_of(first), request_of(second)], "X")
    assert stacked.tolist() == [[1, 1], [2, 2], [2, 2]]
    assert stacked.flags.c_contiguous
    assert stacked.flags.writeable
    assert not np.shares_memory(stacked, first)


def test_byte_strings_received_and_made_join() -> None:
    raw = encode_bytes_elements([b"a\0b", b""])
    received = request_with(Tensor("X", "BYTES", (1, 2), raw=raw))
    made = request_of(np.array([["c", "d"]], np.object_), "BYTES")
    assert stack_inputs([received, made], "X").tolist() == [[b"a\0b", b""], ["c", "d"]]


def test_rows_come_back_as_views_in_order() -> None:
    array = np.arange(8).reshape(4, 2)
    views = split_rows(array, [1, 0, 3])
    assert [view.tolist() for view in views] == [[[0, 1]], [], [[2, 3], [4, 5], [6, 7]]]
    assert all(view.base is not None for view in views)


def test_the_rows_of_one_request_are_the_array_itself() -> None:
    array = np.zeros((3, 2))
    assert split_rows(array, [3])[0] is array


def test_batch_sizes_that_do_not_add_up_are_a_programmer_error() -> None:
    with pytest.raises(AssertionError):
        split_rows(np.zeros((3, 2)), [1, 1])


def test_rows_of_less_than_half_a_batch_are_copied_when_they_are_kept() -> None:
    batch = np.zeros((4, 2))
    assert unpinned(batch) is batch
    assert np.shares_memory(unpinned(batch[:2]), batch)
    row = unpinned(batch[1:2])
    assert not np.shares_memory(row, batch)
    assert row.flags.writeable
