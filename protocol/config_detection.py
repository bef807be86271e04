"""Which backend runs a model, from what its configuration and its files say.

Source: the autofill that Triton's core does in every mode, from the first version directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import deepcopy
from typing import Final, NamedTuple

from .errors import invalid_argument
from .pb.inference import ModelConfig

ENSEMBLE_PLATFORM: Final = "ensemble"
TENSORRT_PLATFORM: Final = "tensorrt_plan"


class ModelFormat(NamedTuple):
    """A kind of model file and who reads it.

    Attributes:
      filename: The entry of a version directory that gives the format away.
      backend: The backend that reads it.
      platform: The platform of such models; empty where the backend has none.
    """

    filename: str
    backend: str
    platform: str


MODEL_FORMATS: Final = (
    ModelFormat("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
    ModelFormat("model.graphdef", "tensorflow", "tensorflow_graphdef"),
    ModelFormat("model.plan", "tensorrt", TENSORRT_PLATFORM),
    ModelFormat("model.onnx", "onnxruntime", "onnxruntime_onnx"),
    ModelFormat("model.xml", "openvino", ""),
    ModelFormat("model.pt", "pytorch", "pytorch_libtorch"),
    ModelFormat("model.pt2", "pytorch", "torch_aoti"),
    ModelFormat("model.py", "python", ""),
)

BACKEND_OF_PLATFORM: Final = {
    **{form.platform: form.backend for form in MODEL_FORMATS if form.platform},
    "libtorch": "pytorch",
}
"""Platform -> its backend; an ensemble has none."""


def detect_backend(
    config: ModelConfig, *, model_name: str, version_files: Collection[str]
) -> ModelConfig:
    """Return the configuration with name, backend, platform and model file filled in.

    What is written is kept, even where it does not fit together: validation says so.

    Args:
      config: As read; is not changed.
      model_name: Name of the model directory.
      version_files: Names of the entries of the first version directory.

    Raises:
      RequestError: INVALID_ARG; the names differ, or nothing tells the backend.
    """
    if config.name not in {"", model_name}:
        raise invalid_argument(
            f"model '{model_name}': expected the name in its configuration to be the name of its "
            f"directory, got '{config.name}'"
        )
    config = deepcopy(config)
    config.name = model_name
    if config.platform == ENSEMBLE_PLATFORM or config.ensemble_scheduling is not None:
        return config
    form = _format_of(config, version_files)
    if form is not None:
        config.backend = config.backend or form.backend
        config.platform = config.platform or form.platform
        config.default_model_filename = config.default_model_filename or form.filename
    elif not (config.backend or config.platform or config.default_model_filename):
        stem, _, backend = model_name.rpartition(".")
        if not stem or not backend:
            raise invalid_argument(
                f"model '{model_name}': no backend could be determined, since its configuration "
                "has neither backend nor platform and its version directory no known model file; "
                "a name of the form '<name>.<backend>' would tell it too"
            )
        config.backend = backend
        config.default_model_filename = f"model.{backend}"
    return config


def _format_of(config: ModelConfig, version_files: Collection[str]) -> ModelFormat | None:
    """Return the format by what is written, in this order, and by the files last."""
    if config.platform:
        backend = BACKEND_OF_PLATFORM.get(config.platform)
        ours = [form for form in MODEL_FORMATS if form.backend == backend]
        exact = [form for form in ours if form.platform == config.platform]
        return next(iter(exact or ours), None)
    if config.backend:
        ours = [form for form in MODEL_FORMATS if form.backend == config.backend]
        filename = config.default_model_filename
        named = {filename} if filename else version_files
        return _present(ours, named) or next(iter(ours), None)
    if config.default_model_filename:
        return _present(MODEL_FORMATS, {config.default_model_filename})
    return _present(MODEL_FORMATS, version_files)


def _present(formats: Iterable[ModelFormat], files: Collection[str]) -> ModelFormat | None:
    return next((form for form in formats if form.filename in files), None)
