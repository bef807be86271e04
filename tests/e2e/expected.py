"""Inputs for the example models, and what onnxruntime answers to them without a server."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from .models import EXAMPLES

Arrays = dict[str, np.ndarray[Any, Any]]

WORDS = 30_000
"""Token ids below this are words of minilm's vocabulary."""


@functools.cache
def _session(model: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = EXAMPLES / model / "1" / "model.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def answer(model: str, inputs: Arrays) -> np.ndarray[Any, Any]:
    """The model's one output for these inputs, computed here."""
    (output,) = _session(model).run(None, inputs)
    return np.asarray(output)


def magika_inputs(rows: int, seed: int = 0) -> Arrays:
    """`bytes` INT32 [rows, 2048]: pieces of this repository's own text."""
    features = runpy.run_path(str(EXAMPLES / "magika" / "identify.py"))["features"]
    files = sorted(Path(__file__).resolve().parents[2].glob("[a-z]*/[a-z]*.py"))
    chosen = [files[(seed + row) % len(files)].read_bytes()[seed:] for row in range(rows)]
    return {"bytes": np.array([features(content) for content in chosen], np.int32)}


def minilm_inputs(rows: int, seed: int = 0, tokens: int = 12) -> Arrays:
    """`input_ids` and `attention_mask`, INT64 [rows, tokens]; the mask leaves some tokens out."""
    generator = np.random.default_rng(seed)
    mask = np.ones((rows, tokens), np.int64)
    mask[:, tokens - seed % 4 :] = 0
    return {"input_ids": generator.integers(1000, WORDS, (rows, tokens)), "attention_mask": mask}


INPUTS = {"magika": magika_inputs, "minilm": minilm_inputs}
OUTPUT = {"magika": "target_label", "minilm": "embedding"}
