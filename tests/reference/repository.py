"""The model repository that both servers serve: Python models, written out by the tests."""

from __future__ import annotations

from pathlib import Path

from .calling_cases import CALLER

ECHO = '''
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Every input comes back as the output at its place in the configuration."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        inputs = [entry["name"] for entry in config["input"]]
        outputs = [entry["name"] for entry in config["output"]]
        self.outputs = dict(zip(inputs, outputs))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensors = []
        for tensor in request.inputs():
            name = self.outputs[tensor.name()]
            if name == "OUT_BF16":  # numpy has no such type
                tensors.append(pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack()))
            else:
                tensors.append(pb_utils.Tensor(name, tensor.as_numpy()))
        return pb_utils.InferenceResponse(tensors)
'''

ADD_SUB = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """OUTPUT0 is the sum, OUTPUT1 the difference."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        outputs = [pb_utils.Tensor("OUTPUT0", left + right)]
        outputs.append(pb_utils.Tensor("OUTPUT1", left - right))
        return pb_utils.InferenceResponse(outputs)
'''

VERSIONS = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with its own version number."""

    def initialize(self, args):
        self.version = int(args["model_version"])

    def execute(self, requests):
        version = pb_utils.Tensor("VERSION", np.array([self.version], np.int64))
        return [pb_utils.InferenceResponse([version]) for _ in requests]
'''

REQUEST_FACTS = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with what a model sees of a request, and with parameters of every kind."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        facts = {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "outputs": sorted(request.requested_output_names()),
            "inputs": {tensor.name(): list(tensor.shape()) for tensor in request.inputs()},
            "parameters": json.loads(request.parameters() or "{}"),
        }
        text = json.dumps(facts, sort_keys=True).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("FACTS", np.array([text], object))])
'''

FAULTS = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Does what MODE asks for: an error code's name, or one of the faults below."""

    def execute(self, requests):
        request = requests[0]
        mode = pb_utils.get_input_tensor_by_name(request, "MODE").as_numpy().flat[0].decode()
        if mode == "raise":
            raise ValueError("asked to raise")
        if mode == "none":
            return None
        if mode == "too few":
            return []
        if mode == "too many":
            return [self.answer(np.zeros(2, np.float32))] * 2
        if mode == "not a response":
            return [3]
        if mode == "not a list":
            return 3
        if mode == "wrong dtype":
            return [self.answer(np.zeros(2, np.float64))]
        if mode == "wrong rank":
            return [self.answer(np.zeros((1, 2), np.float32))]
        if mode == "wrong dims":
            return [self.answer(np.zeros(3, np.float32))]
        if mode == "unknown output":
            return [self.answer(np.zeros(2, np.float32), "OTHER")]
        if mode == "no outputs":
            return [pb_utils.InferenceResponse([])]
        if mode == "ok":
            return [self.answer(np.zeros(2, np.float32))]
        if mode == "default":
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("the default code"))]
        code = getattr(pb_utils.TritonError, mode)
        error = pb_utils.TritonError("said the model", code)
        return [pb_utils.InferenceResponse([], error)]

    def answer(self, values, name="OUTPUT0"):
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, values)])
'''

REPEAT = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends each element of IN as a response of its own; a negative one as an error."""

    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for value in values:
                if value < 0:
                    error = pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG)
                    sender.send(pb_utils.InferenceResponse(error=error))
                else:
                    output = pb_utils.Tensor("OUT", np.array([value], np.int32))
                    sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
'''

HELD = '''
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says `started` in the directory PLACE, and answers once there is `go`."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        place = pb_utils.get_input_tensor_by_name(request, "PLACE").as_numpy().flat[0]
        place = pathlib.Path(place.decode())
        (place / "started").touch()
        while not (place / "go").exists():
            time.sleep(0.005)
        output = pb_utils.Tensor("OUTPUT0", np.array([7], np.int32))
        return pb_utils.InferenceResponse([output])
'''

BROKEN = '''
class TritonPythonModel:
    """Cannot be loaded."""

    def initialize(self, args):
        raise RuntimeError("asked to fail")

    def execute(self, requests):
        return []
'''

TYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FP16": "TYPE_FP16",
    "FP32": "TYPE_FP32",
    "FP64": "TYPE_FP64",
    "BYTES": "TYPE_STRING",
    "BF16": "TYPE_BF16",
}
"""Protocol name -> configuration name."""


def _tensor(name: str, kind: str, dims: str, more: str = "") -> str:
    return f'{{ name: "{name}" data_type: {TYPES[kind]} dims: [{dims}] {more} }}'


def _config(rows_max: int, inputs: list[str], outputs: list[str], more: str = "") -> str:
    lines = ['backend: "python"', f"max_batch_size: {rows_max}"]
    lines += [f"input {entry}" for entry in inputs]
    lines += [f"output {entry}" for entry in outputs]
    return "\n".join([*lines, "instance_group { kind: KIND_CPU }", more, ""])


def _echo(rows_max: int, kind: str, dims: str, more: str = "") -> str:
    inputs, outputs = [_tensor("INPUT0", kind, dims)], [_tensor("OUTPUT0", kind, dims)]
    return _config(rows_max, inputs, outputs, more)


def _pair(rows_max: int, kind: str, dims: str, optional: str = "") -> str:
    inputs = [_tensor("INPUT0", kind, dims), _tensor("INPUT1", kind, dims, optional)]
    return _config(rows_max, inputs, [_tensor(f"OUTPUT{i}", kind, dims) for i in (0, 1)])


MODELS = {
    "identity": (ECHO, _echo(8, "FP32", "-1", "dynamic_batching { }"), [1]),
    "counted": (ECHO, _echo(8, "FP32", "-1"), [1]),
    "fixed": (ECHO, _echo(0, "FP32", "2, 3"), [1]),
    "variable": (ECHO, _echo(0, "FP32", "-1, -1"), [1]),
    "text": (ECHO, _echo(8, "BYTES", "1"), [1]),
    "add_sub": (ADD_SUB, _pair(8, "INT32", "4"), [1]),
    "optional": (ECHO, _pair(0, "INT32", "1", "optional: true"), [1]),
    "types": (
        ECHO,
        _config(
            0,
            [_tensor(f"IN_{kind}", kind, "-1", "optional: true") for kind in TYPES],
            [_tensor(f"OUT_{kind}", kind, "-1") for kind in TYPES],
        ),
        [1],
    ),
    "versions": (
        VERSIONS,
        _config(
            0,
            [_tensor("INPUT0", "INT64", "1", "optional: true")],
            [_tensor("VERSION", "INT64", "1")],
            "version_policy { specific { versions: [1, 3] } }",
        ),
        [1, 2, 3],
    ),
    "request_facts": (
        REQUEST_FACTS,
        _config(0, [_tensor("INPUT0", "INT32", "1")], [_tensor("FACTS", "BYTES", "1")]),
        [1],
    ),
    "faults": (
        FAULTS,
        _config(0, [_tensor("MODE", "BYTES", "1")], [_tensor("OUTPUT0", "FP32", "2")]),
        [1],
    ),
    "held": (
        HELD,
        _config(0, [_tensor("PLACE", "BYTES", "1")], [_tensor("OUTPUT0", "INT32", "1")]),
        [1],
    ),
    "repeat": (
        REPEAT,
        _config(
            0,
            [_tensor("IN", "INT32", "-1")],
            [_tensor("OUT", "INT32", "1")],
            "model_transaction_policy { decoupled: true }",
        ),
        [1],
    ),
    "scores": (
        ECHO,
        _config(
            8,
            [_tensor("INPUT0", "FP32", "4")],
            [_tensor("OUTPUT0", "FP32", "4", 'label_filename: "labels.txt"')],
        ),
        [1],
    ),
    "caller": (
        CALLER,
        _config(0, [_tensor("MODE", "BYTES", "1")], [_tensor("SAID", "BYTES", "1")]),
        [1],
    ),
    "broken": (BROKEN, _echo(8, "FP32", "-1"), [1]),
}
"""Model name -> its source, its configuration and its versions."""

FILES = {"scores/labels.txt": "cat\ndog:big\nbird\n"}


def write_repository(directory: Path) -> None:
    """Write every model of `MODELS` under `directory`."""
    for name, (source, config, versions) in MODELS.items():
        for version in versions:
            (directory / name / str(version)).mkdir(parents=True)
            (directory / name / str(version) / "model.py").write_text(source)
        (directory / name / "config.pbtxt").write_text(config)
    for name, text in FILES.items():
        (directory / name).write_text(text)
