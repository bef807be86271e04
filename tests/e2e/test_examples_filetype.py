"""The example filetype: its Python steps, the steps in a row, and the ensemble in a server."""

from __future__ import annotations

import gzip
import runpy
from pathlib import Path

import numpy as np
import pytest

from tests.support.server_process import ROOT, ServerProcess
from tritrio.protocol.tensors import Array

from .models import EXAMPLES
from .raw_http import connect, exchange
from .steps import answer, answer_of_ensemble, needs_weights

FEATURES = runpy.run_path(str(EXAMPLES / "magika" / "identify.py"))["features"]
FILES = {
    "python": Path(__file__).read_bytes(),
    "gzip": gzip.compress(b"hello " * 100, mtime=0),
    "shell": b'#!/bin/bash\nset -e\nfor f in *.txt; do echo "$f"; done\n',
    "png": (EXAMPLES / "ocr" / "sample.png").read_bytes(),
}


def column(*contents: bytes) -> Array:
    """BYTES [files, 1]."""
    array = np.empty((len(contents), 1), np.object_)
    array[:, 0] = contents
    return array


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"x",
        b"  x\t",
        bytes(range(256)) * 4,
        b" " * 5000 + b"end",
        b"\n" + b"ab" * 9999,
    ],
    ids=["empty", "blank", "one byte", "padded", "1024 bytes", "blank beginning", "long"],
)
def test_features_are_those_that_magikas_own_client_computes(content: bytes) -> None:
    rows = answer("filetype_features", {"CONTENT": column(content, b"other")})["bytes"]
    assert rows.dtype == np.int32
    assert rows.tolist() == [FEATURES(content), FEATURES(b"other")]


def test_the_label_is_that_of_the_highest_score() -> None:
    needs_weights(EXAMPLES / "magika" / "labels.txt")
    labels = (EXAMPLES / "magika" / "labels.txt").read_text().splitlines()
    scores = np.zeros((2, 214), np.float32)
    scores[0, 213], scores[1, 0] = 0.75, 0.5
    outputs = answer("filetype_label", {"target_label": scores})
    first, second = labels[213], labels[0]
    assert outputs["LABEL"].tolist() == [[first.encode()], [second.encode()]]
    assert outputs["SCORE"].tolist() == [[0.75], [0.5]]
    lines = [row.tobytes().decode() for row in outputs["LINE"]]
    width = max(len(first), len(second)) + 2
    assert lines == [f"{first}\n".rjust(width, "\n"), f"{second}\n".rjust(width, "\n")]


def test_the_steps_tell_kinds_of_files_apart_in_one_batch() -> None:
    outputs = answer_of_ensemble("filetype", {"CONTENT": column(*FILES.values())})
    assert [label.decode() for (label,) in outputs["LABEL"]] == list(FILES)
    assert outputs["SCORE"].min() > 0.5


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_the_last_line_of_the_answer_to_a_bare_file_is_its_kind(
    examples: ServerProcess, kind: str
) -> None:
    header = {"Inference-Header-Content-Length": "0"}
    with connect(examples.http_port) as connection:
        response = exchange(
            connection, "POST", "/v2/models/filetype/infer", FILES[kind], headers=header
        )
    assert response.status == 200
    assert response.body.decode(errors="replace").split("\n")[-2:] == [kind, ""]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_file_far_beyond_a_socket_buffer_is_named(examples: ServerProcess) -> None:
    content = (ROOT / "LICENSE").read_bytes() * 400
    header = {"Inference-Header-Content-Length": "0"}
    with connect(examples.http_port) as connection:
        response = exchange(
            connection, "POST", "/v2/models/filetype/infer", content, headers=header
        )
    assert response.body.endswith(b"\ntxt\n")
