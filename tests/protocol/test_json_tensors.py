from __future__ import annotations

import pytest

from tritrio.protocol.json_tensors import tensor_from_json

from .infer_specs import Refused


def test_element_counts_beyond_int64_are_refused():
    for shape in ((2**62, 2), (2**62, 2, 3)):
        with Refused("'IN'", "9223372036854775807 elements"):
            tensor_from_json("IN", "INT8", shape, [], 100)
    with Refused("'IN'", "elements of 4 bytes", "9223372036854775807 bytes"):
        tensor_from_json("IN", "INT32", (2**62,), [], 100)


@pytest.mark.parametrize("shape", [(0,), (2**63, 0), (3, 0, 2)])
def test_a_shape_with_a_zero_has_no_elements(shape):
    tensor = tensor_from_json("IN", "INT32", shape, "ignored", 0)
    assert tensor.raw == b""
    assert tensor.shape == shape
