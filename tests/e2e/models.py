"""Model repositories that these tests write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "repo_examples"

GATE = """
import pathlib
import time
import triton_python_backend_utils as pb_utils

PLACE = pathlib.Path({place!r})


class TritonPythonModel:
    def execute(self, requests):
        (PLACE / "started").touch()
        while not (PLACE / "go").exists():
            time.sleep(0.01)
        outputs = [
            pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy())
            for r in requests
        ]
        return [pb_utils.InferenceResponse([output]) for output in outputs]

    def finalize(self):
        (PLACE / "finalized").touch()
"""

SLOW_START = """
import pathlib
import time

PLACE = pathlib.Path({place!r})


class TritonPythonModel:
    def initialize(self, args):
        (PLACE / "started").touch()
        while not (PLACE / "go").exists():
            time.sleep(0.01)

    def execute(self, requests):
        return []
"""

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights here")

    def execute(self, requests):
        return []
"""

CONFIG = """
backend: "python"
max_batch_size: 0
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: {kind} }} ]
"""


def copy_example(repository: Path, name: str) -> None:
    """Put one of the example models, with its weights, into a repository."""
    shutil.copytree(EXAMPLES / name, repository / name)


def write_python_model(
    repository: Path, name: str, source: str, *, place: Path | None = None, kind: str = "KIND_CPU"
) -> None:
    """Write a Python model with INPUT0 and OUTPUT0, FP32 [-1].

    Args:
      repository: Where.
      name: Its name.
      source: One of the sources above.
      place: A directory where the model and the test meet.
      kind: Of its instance group.
    """
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source.replace("{place!r}", repr(str(place))))
    (version.parent / "config.pbtxt").write_text(CONFIG.format(kind=kind))


def wait_until_exists(path: Path, server: ServerProcess) -> None:
    """Wait for what a model of this server does to a file."""
    for _ in range(1500):
        if path.exists():
            return
        if server.has_ended(0.02):
            break
    pytest.fail(f"{path.name} never came:\n{server.log()}")
