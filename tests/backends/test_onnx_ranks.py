from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.backends.onnx_files import FLOAT, node, write_onnx
from tritrio.backends.onnx_ranks import inputs_without_rank


def test_inputs_without_a_shape_are_told_from_scalars(tmp_path: Path) -> None:
    names = ("scalar", "unknown", "dims", "größe")
    shapes = ((), None, ("N", 2), None)
    source = write_onnx(
        tmp_path,
        [node("Sum", ["w", *names], ["Y"])],
        [(name, FLOAT, shape) for name, shape in zip(names, shapes, strict=True)],
        [("Y", FLOAT, None)],
        initializers=[numpy_helper.from_array(np.zeros(1000, np.float32), "w")],
    )
    path = source.version_directory / "model.onnx"
    assert inputs_without_rank(path) == ["unknown", "größe"]
    assert [len(i.type.tensor_type.shape.dim) for i in onnx.load(path).graph.input] == [0, 0, 2, 0]


@pytest.mark.parametrize("content", [b"", b"ORTM not protobuf", b"\x3a\x7f\x5a"])
def test_a_file_of_another_format_has_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    assert inputs_without_rank(path) == []
    assert inputs_without_rank(tmp_path / "missing") == []
