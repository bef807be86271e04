"""Requests of different shapes in one batch: what a model is told of them, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.backends.builders import error_of, execute, outputs_of, request_of
from tests.backends.onnx_files import FLOAT, INT64, STRING, node, write_onnx
from tests.backends.test_onnx_model import RecordingSession, completed
from tritrio.backends.base import ModelInstance
from tritrio.backends.batch_tensors import (
    BatchTensors,
    batch_input,
    cut_flat,
    join_flat,
    scattered_shape,
)
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.errors import RequestError
from tritrio.protocol.pb.inference import BatchInputKind as Kind, ModelConfig

SHAPES = [(1, 2, 3), (2, 1, 4), (1, 0, 5)]
INT32, FP32 = np.dtype(np.int32), np.dtype(np.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.BATCH_ELEMENT_COUNT, [6, 8, 0]),
        (Kind.BATCH_ACCUMULATED_ELEMENT_COUNT, [6, 14, 14]),
        (Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, [0, 6, 14, 14]),
        (Kind.BATCH_ITEM_SHAPE, [[2, 3], [1, 4], [1, 4], [0, 5]]),
        (Kind.BATCH_ITEM_SHAPE_FLATTEN, [2, 3, 1, 4, 1, 4, 0, 5]),
    ],
)
@pytest.mark.parametrize("dtype", [INT32, FP32])
def test_a_batch_input_says_what_its_kind_is_for(kind: Kind, expected: Any, dtype: Any) -> None:
    array = batch_input(kind, SHAPES, dtype)
    assert array.tolist() == expected
    assert array.dtype == dtype


def test_the_most_elements_of_a_request_are_told_by_a_shape() -> None:
    array = batch_input(Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE, SHAPES, INT32)
    assert (array.shape, array.dtype) == ((8,), INT32)


def test_arrays_are_joined_row_by_row_and_one_alone_is_not_copied() -> None:
    first, second = np.arange(4).reshape(2, 2), np.array([[7], [8]])
    assert join_flat([first.T, second]).tolist() == [0, 2, 1, 3, 7, 8]
    assert join_flat([first]).tolist() == [0, 1, 2, 3]
    assert np.shares_memory(join_flat([first]), first)


def test_a_flat_array_is_cut_into_views_of_each_shape() -> None:
    flat = np.arange(7)
    parts = cut_flat(flat, [(1, 2), (0, 3), (1, 5, 1)])
    assert [part.tolist() for part in parts] == [[[0, 1]], [], [[[2], [3], [4], [5], [6]]]]
    assert parts[1].shape == (0, 3)
    assert all(np.shares_memory(part, flat) for part in (parts[0], parts[2]))


def test_a_variable_dimension_is_as_large_as_that_of_the_source() -> None:
    assert scattered_shape((-1, 3, -1), (2, 7, 5)) == (2, 3, 5)


def config_of(text: str) -> ModelConfig:
    return parse_model_config(f'name: "m" backend: "onnxruntime" {text}', file="config.pbtxt")


def ragged_input(data_type: str = "TYPE_FP32", dims: str = "[ -1, -1 ]") -> str:
    return f'input {{ name: "X" data_type: {data_type} dims: {dims} allow_ragged_batch: true }}'


def batch_inputs(data_type: str = "TYPE_FP32") -> str:
    return " ".join(
        f'batch_input {{ kind: {kind.name} target_name: "{kind.name}" source_input: "X" '
        f"data_type: {data_type} }}"
        for kind in Kind
    )


def telling_model(directory: Path, data_type: str = "TYPE_FP32") -> ModelInstance:
    """Y is the flat X doubled; N is how many elements each request has."""
    source = write_onnx(
        directory,
        [
            node("Add", ["X", "X"], ["Y"]),
            node("Constant", [], ["AXIS"], value=helper.make_tensor("AXIS", INT64, (1,), [1])),
            node("Unsqueeze", ["BATCH_ELEMENT_COUNT", "AXIS"], ["N"]),
        ],
        [
            ("X", FLOAT, ("n",)),
            *[
                (kind.name, FLOAT, ("n", 2) if kind == Kind.BATCH_ITEM_SHAPE else ("n",))
                for kind in Kind
            ],
        ],
        [("Y", FLOAT, ("n",)), ("N", FLOAT, ("n", 1))],
    )
    text = (
        f"max_batch_size: 8 {ragged_input()} {batch_inputs(data_type)} "
        'output { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] } '
        'output { name: "N" data_type: TYPE_FP32 dims: [ 1 ] } '
        'batch_output { target_name: "Y" source_input: "X" }'
    )
    return completed(source, config_of(text))


def test_requests_of_different_shapes_run_at_once_and_get_their_own_shapes_back(
    tmp_path: Path,
) -> None:
    instance = telling_model(tmp_path)
    session = RecordingSession.of(instance)
    first = np.array([[[1, 2, 3], [4, 5, 6]]], np.float32)
    second = np.array([[[7, 8]]], np.float32)
    responses = execute(instance, request_of(X=first), request_of(X=second))
    assert [outputs_of(response)["Y"].tolist() for response in responses] == [
        [[[2, 4, 6], [8, 10, 12]]],
        [[[14, 16]]],
    ]
    assert [outputs_of(response)["N"].tolist() for response in responses] == [[[6]], [[2]]]
    (fed,) = session.fed
    assert {name: array.tolist() for name, array in fed.items()} == {
        "X": [1, 2, 3, 4, 5, 6, 7, 8],
        "BATCH_ELEMENT_COUNT": [6, 2],
        "BATCH_ACCUMULATED_ELEMENT_COUNT": [6, 8],
        "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 6, 8],
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0] * 6,
        "BATCH_ITEM_SHAPE": [[2, 3], [1, 2]],
        "BATCH_ITEM_SHAPE_FLATTEN": [2, 3, 1, 2],
    }


def test_a_request_alone_is_flat_as_well(tmp_path: Path) -> None:
    array = np.array([[[1, 2], [3, 4]]], np.float32)
    (response,) = execute(telling_model(tmp_path), request_of(X=array))
    assert outputs_of(response)["Y"].tolist() == [[[2, 4], [6, 8]]]
    assert outputs_of(response)["N"].tolist() == [[4]]


def test_batch_inputs_of_another_data_type_than_the_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="'BATCH_ELEMENT_COUNT': the datatype in the model is"):
        telling_model(tmp_path, "TYPE_INT32")


def scattering(directory: Path, operator: str, output: str, dims: str) -> ModelInstance:
    """Y is made of the flat text X, and cut by the shapes of X."""
    source = write_onnx(
        directory,
        [node(operator, ["X", "X"], ["Y"], axis=0)],
        [("X", STRING, ("n",))],
        [("Y", STRING, ("m",))],
    )
    text = (
        f"max_batch_size: 8 {ragged_input('TYPE_STRING')} "
        f'output {{ name: "Y" data_type: TYPE_STRING dims: {dims} {output} }} '
        'batch_output { target_name: "Y" source_input: "X" }'
    )
    return completed(source, config_of(text))


def test_ragged_text_is_scattered_into_the_dims_of_the_output(tmp_path: Path) -> None:
    instance = scattering(tmp_path, "Concat", "reshape { shape: [ -1, -1, 2 ] }", "[ -1, 2, -1 ]")
    first = np.array([[[b"a", b"b"]]], object)
    (response,) = execute(instance, request_of(X=first))
    assert outputs_of(response)["Y"].tolist() == [[[[b"a", b"b"], [b"a", b"b"]]]]


def test_an_output_that_does_not_fit_the_shapes_fails_the_batch(tmp_path: Path) -> None:
    instance = scattering(tmp_path, "Concat", "", "[ -1, -1 ]")
    requests = [request_of(X=np.array([[[b"a"] * count]], object)) for count in (1, 2)]
    expected = (
        "INTERNAL: model 'm': output 'Y' must have 3 elements, as the shapes of input 'X' ask for, "
        "got shape [6]"
    )
    assert list(map(error_of, execute(instance, *requests))) == [expected, expected]


def test_an_output_with_a_dimension_that_its_source_lacks_is_refused() -> None:
    config = config_of(
        f"max_batch_size: 8 {ragged_input(dims='[ -1 ]')} "
        'batch_output { target_name: "Y" source_input: "X" }'
    )
    with pytest.raises(RequestError, match="'Y' has a variable dimension after the 2 dimensions"):
        BatchTensors(config, {"Y": (-1, 3, -1)})


def test_a_model_without_batching_is_one_item() -> None:
    config = config_of(f"{ragged_input()} {batch_inputs('TYPE_INT32')}")
    request = request_of(X=np.zeros((2, 3), np.float32), batched=False)
    generated = BatchTensors(config, {}).generate([request])
    assert generated["BATCH_ITEM_SHAPE"].tolist() == [[2, 3]]
    assert generated["BATCH_ELEMENT_COUNT"].tolist() == [6]
    assert generated["BATCH_ELEMENT_COUNT"].dtype == INT32
