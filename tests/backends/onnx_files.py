"""Builds small ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.backends.builders import source_in
from tritrio.backends.base import ModelSource

Described = tuple[str, int, Sequence[int | str] | None]
"""Name, TensorProto type, shape."""

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, outputs, **attributes)


def write_onnx(
    directory: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Described],
    outputs: Sequence[Described],
    *,
    initializers: Sequence[Any] = (),
    filename: str = "model.onnx",
    name: str = "m",
) -> ModelSource:
    """Write a model file into version 1 of a model directory."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*described) for described in inputs],
        [helper.make_tensor_value_info(*described) for described in outputs],
        initializer=initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    source = source_in(directory, name=name)
    path = source.version_directory / filename
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path)
    return source


def write_identity(
    directory: Path,
    kind: int = FLOAT,
    shape: Sequence[int | str] | None = ("N", 2),
    **options: Any,
) -> ModelSource:
    """A model whose output Y is its input X."""
    return write_onnx(
        directory,
        [node("Identity", ["X"], ["Y"])],
        [("X", kind, shape)],
        [("Y", kind, shape)],
        **options,
    )


def write_sum_and_difference(directory: Path) -> ModelSource:
    """A batching model with A + B and A - B."""
    return write_onnx(
        directory,
        [node("Add", ["A", "B"], ["SUM"]), node("Sub", ["A", "B"], ["DIFFERENCE"])],
        [("A", FLOAT, ("N", 2)), ("B", FLOAT, ("N", 2))],
        [("SUM", FLOAT, ("N", 2)), ("DIFFERENCE", FLOAT, ("N", 2))],
    )
