"""Models, and ways to say a request over HTTP and gRPC, for tests of requests that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from tritonclient.grpc import service_pb2 as pb

from tests.support.http_client import request_bytes

TYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES", "BF16"),
)

_ECHO = '''
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
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor.from_dlpack(self.outputs[tensor.name()], tensor.to_dlpack())
                if tensor.name() == "IN_BF16"
                else pb_utils.Tensor(self.outputs[tensor.name()], tensor.as_numpy())
                for tensor in request.inputs()
            ]
        )
'''


def _tensor(name: str, datatype: str, dims: str, more: str = "") -> str:
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return f'{{ name: "{name}" data_type: {kind} dims: [ {dims} ] {more} }}'


def _config(rows_max: int, inputs: list[str], outputs: list[str]) -> str:
    return (
        f'backend: "python"\nmax_batch_size: {rows_max}\n'
        f"input [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n"
    )


CONFIGS = {
    "types": _config(
        0,
        [_tensor(f"IN_{kind}", kind, "-1", "optional: true") for kind in TYPES],
        [_tensor(f"OUT_{kind}", kind, "-1") for kind in TYPES],
    ),
    "one": _config(0, [_tensor("IN", "FP32", "-1")], [_tensor("OUT", "FP32", "-1")]),
    "two": _config(
        8,
        [_tensor("A", "INT32", "2"), _tensor("B", "INT32", "2")],
        [_tensor("OUT_A", "INT32", "2"), _tensor("OUT_B", "INT32", "2")],
    ),
    "free": _config(0, [_tensor("IN", "FP32", "-1, -1")], [_tensor("OUT", "FP32", "-1, -1")]),
    "text": _config(0, [_tensor("IN", "BYTES", "2")], [_tensor("OUT", "BYTES", "2")]),
    "word": _config(0, [_tensor("IN", "BYTES", "1")], [_tensor("OUT", "BYTES", "1")]),
}


def write_models(repository: Path) -> Path:
    """Write the models of `CONFIGS`, each of which gives back what it gets."""
    for name, config in CONFIGS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        (repository / name / "1" / "model.py").write_text(_ECHO)
    return repository


def one(name: str, datatype: str, shape: Any, data: Any = None, **more: Any) -> dict[str, Any]:
    """An input of a JSON request; without data where they are None."""
    tensor = {"name": name, "datatype": datatype, "shape": shape, **more}
    return tensor if data is None else {**tensor, "data": data}


def typed(datatype: str, data: Any, shape: Any = None) -> dict[str, Any]:
    """An input of the model `types`."""
    return one(f"IN_{datatype}", datatype, [len(data)] if shape is None else shape, data)


def infer(model: str, *inputs: Any, blob: bytes | None = None, **members: Any) -> bytes:
    """An HTTP request; with a blob its JSON part has a length."""
    text = orjson.dumps({**members, "inputs": inputs})
    if blob is None:
        return raw(model, text)
    return raw(model, text + blob, length=len(text))


def raw(model: str, body: bytes, *, length: int | str | None = None) -> bytes:
    """An HTTP request with this body; `length` is what is said of its JSON part."""
    headers = [] if length is None else [f"Inference-Header-Content-Length: {length}"]
    return request_bytes(f"/v2/models/{model}/infer", body, headers=headers)


def message(
    model: str,
    *inputs: tuple[str, str, Sequence[int], dict[str, Any] | None],
    raws: Sequence[bytes] = (),
    outputs: Sequence[str] = (),
    **parameters: pb.InferParameter,
) -> Any:
    """A ModelInferRequest of inputs (name, datatype, shape, contents)."""
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=raws)
    for name, datatype, shape, contents in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        if contents is not None:
            request.inputs[-1].contents.CopyFrom(pb.InferTensorContents(**contents))
    for name in outputs:
        request.outputs.add(name=name)
    for key, value in parameters.items():
        request.parameters[key].CopyFrom(value)
    return request
