"""What `scripts/build_smollm2` makes of files of the Llama family, and which of them it refuses."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from tests.backends.builders import source_in
from tritrio.backends.base import InstancePlace
from tritrio.backends.llm.onnx_causal import OnnxCausalModel
from tritrio.backends.llm.settings import LlmSettings
from tritrio.backends.llm.steps import Prefill

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
WIDTH, HIDDEN, HEADS, KV_HEADS, VOCABULARY = 64, 96, 4, 2, 48
NUMBERS: Mapping[str, Any] = {
    "context_length": 32,
    "embedding_length": WIDTH,
    "block_count": 1,
    "feed_forward_length": HIDDEN,
    "head_count": HEADS,
    "head_count_kv": KV_HEADS,
    "layer_norm_rms_eps": 1e-5,
    "rope_freq_base": 10000.0,
}


def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    state = WIDTH // HEADS * KV_HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (state, WIDTH), "attn_v": (state, WIDTH)}
    shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_down": (WIDTH, HIDDEN)}
    shapes |= {"ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH)}
    made = {f"blk.0.{name}.weight": random.normal(0, 0.2, size) for name, size in shapes.items()}
    made |= {f"blk.0.{name}.weight": np.ones(WIDTH) for name in ("attn_norm", "ffn_norm")}
    made["output_norm.weight"] = np.ones(WIDTH)
    made["token_embd.weight"] = random.normal(0, 1, (VOCABULARY, WIDTH))
    return {name: array.astype(np.float32) for name, array in made.items()}


def write_gguf(path: Path, weights: Mapping[str, np.ndarray], **numbers: Any) -> Path:
    writer = GGUFWriter(path, "llama")
    for name, value in {**NUMBERS, **numbers}.items():
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    for name, array in weights.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def build(gguf: Path, output: Path, precision: str = "fp32") -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["build", str(gguf), str(output), "--precision", precision])
        runpy.run_path(str(SCRIPTS / "build_smollm2"), run_name="__main__")


def logits(directory: Path, weights: Mapping[str, np.ndarray], precision: str) -> np.ndarray:
    """What the model that is built of these weights says behind three tokens."""
    source = source_in(directory)
    gguf = write_gguf(directory / "model.gguf", weights)
    build(gguf, source.version_directory / "model.onnx", precision)
    model = OnnxCausalModel(source, LlmSettings(max_num_seqs=1), InstancePlace("m_0"))
    assert model.tokens_per_row == 32
    return model.prefill(Prefill(0, 0, (1, 2, 3), past=0, samples=True)).copy()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_output_layer_may_be_that_of_the_embedding_or_another(
    tmp_path: Path, precision: str
) -> None:
    shared = tensors()
    found = logits(tmp_path / "shared", shared, precision)
    same = {**shared, "output.weight": shared["token_embd.weight"]}
    assert np.array_equal(logits(tmp_path / "same", same, precision), found)
    turned = {**shared, "output.weight": shared["token_embd.weight"][::-1].copy()}
    other = logits(tmp_path / "turned", turned, precision)
    assert other == pytest.approx(found[:, ::-1], abs=1e-4)


@pytest.mark.parametrize(
    ("more", "numbers", "precision", "message"),
    [
        ({"blk.0.attn_q.bias": np.zeros(4)}, {}, "fp32", "got blk.0.attn_q.bias"),
        ({"rope_freqs.weight": np.zeros(4)}, {}, "fp32", "got rope_freqs.weight"),
        ({}, {"block_count": 2}, "fp32", "expected a tensor blk.1.attn_k.weight, got none"),
        ({}, {"key_length": 32}, "fp32", "expected attention.key_length 16, got 32"),
        ({}, {"sliding_window": 16}, "fp32", "expected no attention.sliding_window, got 16"),
        ({}, {"rope_scaling_factor": 8.0}, "fp32", "expected no rope.scaling.factor, got 8.0"),
        ({}, {"rope_freq_base": None}, "fp32", "expected llama.rope.freq_base, got none"),
        ({}, {"feed_forward_length": 40}, "int8", "expected feed_forward_length in blocks of 32"),
    ],
)
def test_a_file_with_more_than_the_graph_can_have_is_refused(
    tmp_path: Path,
    more: dict[str, np.ndarray],
    numbers: dict[str, Any],
    precision: str,
    message: str,
) -> None:
    weights = {**tensors(), **{name: each.astype(np.float32) for name, each in more.items()}}
    gguf = write_gguf(tmp_path / "model.gguf", weights, **numbers)
    with pytest.raises(SystemExit, match=f"model.gguf: .*{message}"):
        build(gguf, tmp_path / "model.onnx", precision)
    assert not (tmp_path / "model.onnx").exists()


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("no model")
    for name in ("model.gguf", "missing.gguf"):
        with pytest.raises(SystemExit, match=f"{name}: cannot be read as a GGUF file"):
            build(tmp_path / name, tmp_path / "model.onnx")
