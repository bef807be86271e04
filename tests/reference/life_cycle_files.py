"""Models whose life is watched: their files, and changes to them."""

from __future__ import annotations

import shutil
from pathlib import Path

from .life_cycle import Edit

ECHO = '''
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The output is the input."""

    def execute(self, requests):
        outputs = [
            pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests
        ]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", o)]) for o in outputs]
'''
DOUBLE = ECHO.replace('Tensor("OUTPUT0", o)', 'Tensor("OUTPUT0", o * 2)')
RAISES = 'raise ValueError("not today")\n'

TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
PYTHON = 'backend: "python"\n' + TENSORS
PYTHON_JSON = {
    "backend": "python",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": ["-1"]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def ensemble(*steps: str, more: str = "") -> str:
    """The configuration of an ensemble that hands its input from model to model."""
    parts = []
    for place, step in enumerate(steps):
        source = f"after_{place - 1}" if place else "INPUT0"
        target = f"after_{place}" if place < len(steps) - 1 else "OUTPUT0"
        parts.append(
            f'{{ model_name: "{step}" model_version: -1'
            f' input_map {{ key: "INPUT0" value: "{source}" }}'
            f' output_map {{ key: "OUTPUT0" value: "{target}" }} }}'
        )
    scheduling = f"ensemble_scheduling {{ step [ {', '.join(parts)} ] }}"
    return f'platform: "ensemble"\n{TENSORS}{more}\n{scheduling}'


def model(
    name: str,
    config: str | None = PYTHON,
    source: str | None = ECHO,
    versions: tuple[str, ...] = ("1",),
) -> Edit:
    """Write a model, or write it anew."""

    def write(repository: Path) -> None:
        directory = repository / name
        directory.mkdir(parents=True, exist_ok=True)
        for version in versions:
            (directory / version).mkdir(exist_ok=True)
            if source is not None:
                (directory / version / "model.py").write_text(source)
        if config is not None:
            (directory / "config.pbtxt").write_text(config)

    return write


def without_source(name: str, config: str, versions: tuple[str, ...] = ("1",)) -> Edit:
    """Write a model that is only its configuration."""
    return model(name, config, None, versions)


def all_of(*edits: Edit) -> Edit:
    """Several changes, one after the other."""

    def write(repository: Path) -> None:
        for edit in edits:
            edit(repository)

    return write


def removed(path: str) -> Edit:
    """Remove a directory."""

    def write(repository: Path) -> None:
        shutil.rmtree(repository / path)

    return write


def nothing(_: Path) -> None:
    """Leave the repository as it is."""
