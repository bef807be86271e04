"""The example models as files: their configs, and what their weights answer without a server."""

from __future__ import annotations

import gzip
import io
import json
import runpy
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from tokenizers import Tokenizer
from tritonclient.grpc import model_config_pb2

EXAMPLES = Path(__file__).resolve().parents[2] / "repo_examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/config.pbtxt"))
SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A cheetah is running behind its prey.",
]
CONFIG_TYPES = {
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float)": "TYPE_FP32",
}


def config(name: str) -> Any:
    """The example's config.pbtxt, read with the protocol's own message."""
    message = model_config_pb2.ModelConfig()
    return text_format.Parse((EXAMPLES / name / "config.pbtxt").read_text(), message)


def session(name: str) -> onnxruntime.InferenceSession:
    path = EXAMPLES / name / "1" / "model.onnx"
    if not path.exists():
        pytest.skip(f"{name} has no weights yet: run scripts/fetch_models")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def embed(sentences: list[str]) -> np.ndarray:
    minilm = session("minilm")
    tokenizer = Tokenizer.from_file(str(EXAMPLES / "minilm" / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)
    encoded = tokenizer.encode_batch(sentences)
    feeds = {
        "input_ids": np.array([sentence.ids for sentence in encoded], np.int64),
        "attention_mask": np.array([sentence.attention_mask for sentence in encoded], np.int64),
    }
    (embedding,) = minilm.run(None, feeds)
    return np.asarray(embedding)


def kinds(contents: list[bytes]) -> list[str]:
    magika = session("magika")
    features = runpy.run_path(str(EXAMPLES / "magika" / "identify.py"))["features"]
    labels = (EXAMPLES / "magika" / "labels.txt").read_text().splitlines()
    rows = np.array([features(content) for content in contents], np.int32)
    (scores,) = magika.run(None, {"bytes": rows})
    return [labels[index] for index in np.asarray(scores).argmax(axis=1)]


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.txt", "hello " * 50)
    return buffer.getvalue()


NOT_BATCHING = {"ocr", "ocr_boxes", "ocr_decode", "ocr_text", "ocr_turn", "smollm2"}
"""What works on one picture, and on any number of lines in it."""


@pytest.mark.parametrize("name", NAMES)
def test_config_is_named_as_its_directory_and_batches(name: str) -> None:
    assert config(name).name == name
    assert (config(name).max_batch_size > 1) == (name not in NOT_BATCHING)


@pytest.mark.parametrize("name", ["magika", "minilm"])
def test_config_states_the_tensors_the_onnx_file_has(name: str) -> None:
    model = session(name)
    for declared, found in (
        (config(name).input, model.get_inputs()),
        (config(name).output, model.get_outputs()),
    ):
        assert [tensor.name for tensor in declared] == [tensor.name for tensor in found]
        for tensor, actual in zip(declared, found, strict=True):
            assert model_config_pb2.DataType.Name(tensor.data_type) == CONFIG_TYPES[actual.type]
            batch, *dims = actual.shape
            assert isinstance(batch, str)
            assert list(tensor.dims) == [dim if isinstance(dim, int) else -1 for dim in dims]


def test_minilm_gives_the_cosines_its_authors_weights_give() -> None:
    embedding = embed(SENTENCES)
    assert embedding.shape == (4, 384)
    assert np.linalg.norm(embedding, axis=1) == pytest.approx([1, 1, 1, 1], abs=1e-6)
    assert embedding[1:] @ embedding[0] == pytest.approx([0.755, -0.105, 0.142], abs=5e-4)


def test_minilm_answers_the_same_alone_and_padded_in_a_batch() -> None:
    together = embed(SENTENCES)
    for sentence, row in zip(SENTENCES, together, strict=True):
        assert embed([sentence])[0] == pytest.approx(row, abs=1e-6)


def test_minilm_gives_zeros_for_padding_only() -> None:
    feeds = {name: np.zeros((1, 3), np.int64) for name in ("input_ids", "attention_mask")}
    (embedding,) = session("minilm").run(None, feeds)
    assert not np.asarray(embedding).any()


def test_magika_tells_kinds_of_files_apart_in_one_batch() -> None:
    contents = {
        "python": Path(__file__).read_bytes(),
        "json": json.dumps({"a": [1, 2, {"b": None}], "name": "x" * 20}, indent=1).encode(),
        "zip": archive(),
        "gzip": gzip.compress(b"hello " * 100, mtime=0),
        "shell": b'#!/bin/bash\nset -e\nfor f in *.txt; do echo "$f"; done\n',
    }
    assert kinds(list(contents.values())) == list(contents)


def test_magika_has_one_label_a_class() -> None:
    assert session("magika").get_outputs()[0].shape[1] == 214
    assert len((EXAMPLES / "magika" / "labels.txt").read_text().splitlines()) == 214
