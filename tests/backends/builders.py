"""Small builders for backend tests: configurations, requests, model directories, executions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import numpy as np

from tritrio.backends.base import Backend, Batch, InstancePlace, ModelInstance, ModelSource
from tritrio.protocol.dtypes import CONFIG_NUMBERS, datatype_of
from tritrio.protocol.pb.inference import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelParameter,
    ModelTensorReshape,
)
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.tensors import Array, Tensor

Described = tuple[str, str, list[int]]
"""Name, protocol string, dims."""


def config_of(
    inputs: Sequence[Described] = (),
    outputs: Sequence[Described] = (),
    *,
    max_batch_size: int = 0,
    output_reshapes: dict[str, list[int]] | None = None,
    **parameters: str,
) -> ModelConfig:
    reshapes = output_reshapes or {}
    return ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        input=[
            ModelInput(name=name, data_type=DataType(CONFIG_NUMBERS[datatype]), dims=dims)
            for name, datatype, dims in inputs
        ],
        output=[
            ModelOutput(
                name=name,
                data_type=DataType(CONFIG_NUMBERS[datatype]),
                dims=dims,
                reshape=ModelTensorReshape(shape=reshapes[name]) if name in reshapes else None,
            )
            for name, datatype, dims in outputs
        ],
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )


def source_in(directory: Path, *, version: int = 1, name: str = "m") -> ModelSource:
    version_directory = directory / name / str(version)
    version_directory.mkdir(parents=True, exist_ok=True)
    return ModelSource(name, version, directory / name, version_directory)


def write_model(
    directory: Path, code: str, *, name: str = "m", filename: str = "model.py"
) -> ModelSource:
    """Write a Python model; its source."""
    source = source_in(directory, name=name)
    text = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + dedent(code)
    (source.version_directory / filename).write_text(text)
    return source


def loaded(
    backend: Backend, source: ModelSource, config: ModelConfig, *, name: str = "m_0_0"
) -> ModelInstance:
    instance = backend.create_instance(source, config, InstancePlace(name))
    instance.load()
    return instance


def request_of(
    *arrays: Array,
    asked: Sequence[str] = (),
    request_id: str = "",
    batched: bool = True,
    **named: Array,
) -> InferRequest:
    """A request with inputs INPUT0, INPUT1, … and those named."""
    request = InferRequest("m")
    request.id = request_id
    for name, array in {**{f"INPUT{i}": a for i, a in enumerate(arrays)}, **named}.items():
        datatype = datatype_of(array.dtype)
        assert datatype is not None
        if datatype == "BYTES":
            request.inputs[name] = Tensor(name, datatype, array.shape, array=array)
        else:  # as received: read-only bytes
            request.inputs[name] = Tensor(name, datatype, array.shape, raw=array.tobytes())
        request.batch_size = len(array) if batched else 1
    request.outputs = tuple([RequestedOutput(name) for name in asked])
    return request


def execute(instance: ModelInstance, *requests: InferRequest) -> list[InferResponse]:
    """Execute one batch; all its responses."""
    batch = Batch(requests)
    instance.execute(batch)
    stamps = [
        batch.compute_start_ns,
        batch.infer_start_ns,
        batch.infer_end_ns,
        batch.compute_end_ns,
    ]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0
    responses = [response for response in batch.responses if response is not None]
    assert len(responses) == len(requests)
    assert all(response.final for response in responses)
    return responses


def outputs_of(response: InferResponse) -> dict[str, Array]:
    """The arrays of a response, whose shapes and data types fit what it says of them."""
    assert response.error is None, response.error
    for tensor in response.outputs:
        assert tensor.array.shape == tensor.shape
        assert datatype_of(tensor.array.dtype) == tensor.datatype
    return {tensor.name: tensor.array for tensor in response.outputs}


def error_of(response: InferResponse) -> str:
    """The code and message of an error response."""
    assert response.error is not None
    assert response.outputs == []
    return f"{response.error.code.name}: {response.error.message}"


def floats(*values: float) -> Array:
    """One row of FP32."""
    return np.array([values], np.float32)
