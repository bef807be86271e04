"""Python models that cannot be loaded, each in its own way, and why the index says they are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

MODES = ("thread", "process")

TIMEOUT_S = 12
"""How long a load may take: more than that of a good model on a busy machine."""

FINE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]
            )
            for request in requests
        ]
"""

CLASS = """
import os
import sys
import threading


class TritonPythonModel:
    {decorator}
    def {method}:
{body}

    def execute(self, requests):
        return []
"""

CONFIG = """
backend: "python"
max_batch_size: 4
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
parameters {{ key: "EXECUTION_MODE" value {{ string_value: "{mode}" }} }}
"""


def initialize(body: str) -> str:
    """The code of a model with this `initialize`."""
    return CLASS.format(
        decorator="", method="initialize(self, args)", body=indent(body, " " * 8)
    ).replace("    \n    def init", "    def init")


def complete(body: str) -> str:
    """The code of a model with this `auto_complete_config`."""
    return CLASS.format(
        decorator="@staticmethod",
        method="auto_complete_config(config)",
        body=indent(body, " " * 8),
    )


@dataclass(frozen=True, slots=True)
class Faulty:
    """A model that cannot be loaded.

    Attributes:
      name: Its name, without the mode.
      code: Its model.py.
      reason: What the index says; "{name}" is the whole name of the model.
      modes: In which it can be tried.
    """

    name: str
    code: str
    reason: str
    modes: tuple[str, ...] = MODES


CALLS = """def open_weights():
    open("/no/such/weights")

open_weights()"""
HANGS = "threading.Event().wait()"
EDITS_INPUT = """config.add_input({"name": "INPUT0", "data_type": "TYPE_INT8", "dims": [1]})
return config"""
KEY = """config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1], "size": 1})
return config"""
VERSION = "model '{name}' version 1: "
INITIALIZE = f"Internal: {VERSION}initialize raised "
COMPLETE = f"Internal: {VERSION}auto_complete_config raised "
ENDED = "Internal: model '{name}': auto_complete_config failed: its process "

FAULTY = (
    Faulty(
        "syntax",
        "\n\nclass TritonPythonModel\n    pass\n",
        f"Internal: {VERSION}importing model.py raised SyntaxError: expected ':' (at 1/model.py:3)",
    ),
    Faulty(
        "imports",
        "import no_such_module_5170\n",
        f"Internal: {VERSION}importing model.py raised ModuleNotFoundError: No module named "
        "'no_such_module_5170' (at 1/model.py:1 in <module>)",
    ),
    Faulty(
        "classless",
        "class Model: ...\n",
        f"Invalid argument: {VERSION}expected a class TritonPythonModel in model.py, got none",
    ),
    Faulty(
        "raises",
        initialize(CALLS),
        f"{INITIALIZE}FileNotFoundError: [Errno 2] No such file or directory: '/no/such/weights' "
        "(at 1/model.py:12 in initialize, 1/model.py:10 in open_weights)",
    ),
    Faulty(
        "exits",
        initialize("sys.exit(3)"),
        f"{INITIALIZE}SystemExit: 3 (at 1/model.py:9 in initialize)",
    ),
    Faulty(
        "hangs",
        initialize(HANGS),
        f"Unavailable: model instance '{{name}}_0' did not load within {TIMEOUT_S} s",
    ),
    Faulty(
        "aborts",
        initialize("os.abort()"),
        "Internal: loading model instance '{name}_0' failed: its process was killed by SIGABRT",
        ("process",),
    ),
    Faulty(
        "complete_raises",
        complete("raise LookupError(config.as_dict()['name'])"),
        f"{COMPLETE}LookupError: {{name}} (at 1/model.py:10 in auto_complete_config)",
    ),
    Faulty(
        "complete_exits",
        complete("sys.exit('no')"),
        f"{COMPLETE}SystemExit: no (at 1/model.py:10 in auto_complete_config)",
    ),
    Faulty(
        "complete_nothing",
        complete("pass"),
        "Internal: model '{name}': auto_complete_config must return the pb_utils.ModelConfig "
        "it was given, got NoneType",
    ),
    Faulty(
        "complete_lowers",
        complete("config.set_max_batch_size(2)"),
        f"{COMPLETE}ValueError: max_batch_size is 4, cannot be lowered to 2 "
        "(at 1/model.py:10 in auto_complete_config)",
    ),
    Faulty(
        "complete_other_type",
        complete(EDITS_INPUT),
        f"{COMPLETE}ValueError: tensor 'INPUT0' has data_type TYPE_FP32 in the configuration, "
        "cannot be set to TYPE_INT8 (at 1/model.py:10 in auto_complete_config)",
    ),
    Faulty(
        "complete_unknown_key",
        complete(KEY),
        f"{COMPLETE}ValueError: an output has the keys ['data_type', 'dims', 'name'], got also "
        "'size' (at 1/model.py:10 in auto_complete_config)",
    ),
    Faulty(
        "complete_hangs",
        complete(HANGS),
        f"Unavailable: model '{{name}}': its configuration was not completed within {TIMEOUT_S} s",
    ),
    Faulty(
        "complete_aborts",
        complete("os.abort()"),
        f"{ENDED}was killed by SIGABRT",
        ("process",),
    ),
)

CASES = [(faulty, mode) for faulty in FAULTY for mode in faulty.modes]


def name_of(faulty: Faulty, mode: str) -> str:
    """The whole name of a model."""
    return f"{faulty.name}_{mode}"


def write_faulty(repository: Path) -> None:
    """Write all of them, and `fine_MODE` among them."""
    for name, code, mode in _models():
        write_model(repository, name, code, mode)


def write_model(repository: Path, name: str, code: str, mode: str) -> None:
    """Write one model."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (version.parent / "config.pbtxt").write_text(CONFIG.format(mode=mode))


def _models() -> Iterator[tuple[str, str, str]]:
    for mode in MODES:
        yield f"fine_{mode}", FINE, mode
    for faulty, mode in CASES:
        yield name_of(faulty, mode), faulty.code, mode
