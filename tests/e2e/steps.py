"""The example models without a server: each alone on its backend, ensembles step by step."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from tests.backends.builders import execute, outputs_of
from tritrio.backends.base import InstancePlace, ModelInstance, ModelSource
from tritrio.backends.registry import get_backend
from tritrio.protocol.config_rules import ConfigContext, normalise
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_validation import validate
from tritrio.protocol.dtypes import datatype_of
from tritrio.protocol.pb.inference import ModelConfig
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Array, Tensor

from .models import EXAMPLES

Arrays = dict[str, Array]


@functools.cache
def config(name: str) -> ModelConfig:
    """The example's configuration as it is written."""
    return parse_model_config((EXAMPLES / name / "config.pbtxt").read_bytes(), file=name)


@functools.cache
def instance(name: str) -> ModelInstance:
    """The example, loaded; skips where its weights are missing."""
    directory = EXAMPLES / name
    source = ModelSource(name, 1, directory, directory / "1")
    backend = get_backend(config(name).backend)
    if backend.name == "onnxruntime":
        needs_weights(directory / "1" / "model.onnx")
    context = ConfigContext(preferred_count=1)
    complete = normalise(backend.complete_config(source, config(name)), context=context)
    validate(complete, context=context)
    loaded = backend.create_instance(source, complete, InstancePlace(f"{name}_0"))
    loaded.load()
    return loaded


def needs_weights(path: Path) -> None:
    """Skip unless this file of an example was fetched."""
    if not path.exists():
        pytest.skip(f"{path.relative_to(EXAMPLES)} is missing: run scripts/fetch_models")


def respond(name: str, inputs: Arrays) -> InferResponse:
    """What one model answers to one request."""
    request = InferRequest(name)
    for own, array in inputs.items():
        datatype = datatype_of(array.dtype)
        assert datatype is not None
        request.inputs[own] = Tensor(own, datatype, array.shape, array=array)
        request.batch_size = len(array) if config(name).max_batch_size > 0 else 1
    (response,) = execute(instance(name), request)
    return response


def answer(name: str, inputs: Arrays) -> Arrays:
    """The outputs of one model, whose shapes are those of its configuration."""
    outputs = outputs_of(respond(name, inputs))
    batch = [-1] if config(name).max_batch_size > 0 else []
    for tensor in config(name).output:
        found = outputs[tensor.name].shape
        dims = [*batch, *tensor.dims]
        expected = [-1 if dim == -1 else size for dim, size in zip(dims, found, strict=True)]
        assert dims == expected, f"{name}: expected {tensor.name} {dims}, got {found}"
    return outputs


def answer_of_ensemble(name: str, inputs: Arrays) -> Arrays:
    """The outputs of an ensemble whose steps stand in an order in which they can run."""
    scheduling = config(name).ensemble_scheduling
    assert scheduling is not None
    tensors = dict(inputs)
    for step in scheduling.step:
        given = {own: tensors[shared] for own, shared in step.input_map.items()}
        outputs = answer(step.model_name, given)
        tensors.update({shared: outputs[own] for own, shared in step.output_map.items()})
    return {tensor.name: tensors[tensor.name] for tensor in config(name).output}


def image_of(content: bytes) -> Arrays:
    """The input of the ensemble ocr."""
    return {"IMAGE": np.frombuffer(content, np.uint8)}
