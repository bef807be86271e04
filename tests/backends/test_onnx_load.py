"""Loading of ONNX models: every way to fail, and how often a file is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

from tests.backends.builders import config_of, execute, outputs_of, request_of
from tests.backends.onnx_files import FLOAT, node, write_identity, write_onnx
from tests.backends.test_onnx_model import completed, floats, loaded
from tritrio.backends import onnx_model
from tritrio.backends.base import InstancePlace, ModelSource
from tritrio.backends.onnx_model import OnnxBackend
from tritrio.backends.onnx_session import open_session
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import ModelConfig


def load_error(source: ModelSource, config: ModelConfig, place: InstancePlace | None = None) -> str:
    instance = OnnxBackend().create_instance(source, config, place or InstancePlace("m_0_0"))
    with pytest.raises(RequestError) as caught:
        instance.load()
    instance.unload()
    return f"{caught.value.code.name}: {caught.value.message}"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (config_of([("Z", "FP32", [2])], [("Y", "FP32", [2])], max_batch_size=4), "'Z'"),
        (config_of([("X", "FP32", [2])], [("Z", "FP32", [2])], max_batch_size=4), "'Z'"),
        (
            config_of([("X", "INT32", [2])], [("Y", "FP32", [2])], max_batch_size=4),
            "the datatype in the model is FP32, got INT32",
        ),
        (
            config_of([("X", "FP32", [3])], [("Y", "FP32", [2])], max_batch_size=4),
            "the model has 2 dims",
        ),
    ],
)
def test_a_configuration_that_contradicts_the_model_cannot_be_loaded(
    tmp_path: Path, config: ModelConfig, text: str
) -> None:
    message = load_error(write_identity(tmp_path), config)
    assert message.startswith("INVALID_ARG: ")
    assert text in message


def test_a_gpu_instance_cannot_be_loaded(tmp_path: Path) -> None:
    place = InstancePlace("m_0_0", kind="GPU")
    assert load_error(write_identity(tmp_path), config_of(), place) == (
        "UNSUPPORTED: model 'm': instance 'm_0_0' is for a GPU, but this ONNX Runtime executes on "
        "the CPU only; expected KIND_CPU"
    )


def test_a_file_that_is_missing_or_no_model_says_so(tmp_path: Path) -> None:
    source = write_identity(tmp_path)
    path = source.version_directory / "model.onnx"
    path.write_bytes(b"not a model")
    message = load_error(source, config_of())
    assert message.startswith("INTERNAL: model 'm': ONNX Runtime cannot load it: ")
    path.unlink()
    assert load_error(source, config_of()) == (
        "INVALID_ARG: model 'm': expected an ONNX model in version 1, file model.onnx, "
        "which cannot be read: No such file or directory"
    )


def test_a_directory_without_a_model_file_in_it_says_which_is_missing(tmp_path: Path) -> None:
    source = write_identity(tmp_path)
    path = source.version_directory / "model.onnx"
    path.unlink()
    path.mkdir()
    expected = (
        "INVALID_ARG: model 'm': expected an ONNX model in version 1, file model.onnx/model.onnx, "
        "which cannot be read: "
    )
    assert load_error(source, config_of()) == f"{expected}No such file or directory"
    (path / "model.onnx").mkdir()
    assert load_error(source, config_of()) == f"{expected}it is no regular file"


@pytest.mark.parametrize(
    "filename", ["../../other/1/model.onnx", "{tmp}/other/1/model.onnx", "a\0b"]
)
def test_a_filename_that_leads_out_of_the_version_directory_is_refused(
    tmp_path: Path, filename: str
) -> None:
    write_identity(tmp_path, name="other")
    source = write_identity(tmp_path)
    config = config_of()
    config.default_model_filename = filename.format(tmp=tmp_path)
    shown = config.default_model_filename
    assert load_error(source, config) == (
        "INVALID_ARG: model 'm' version 1: expected a file inside its version directory, got "
        f"default_model_filename '{shown}', which leads out of it"
    )


def test_a_filename_no_file_can_have_is_an_immediate_error(tmp_path: Path) -> None:
    config = config_of()
    config.default_model_filename = "x" * 5000
    message = load_error(write_identity(tmp_path), config)
    assert message.startswith("INVALID_ARG: ")
    assert message.endswith("which cannot be read: File name too long")
    assert len(message) < 300


def test_an_input_of_unknown_rank_is_no_scalar(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        completed(write_identity(tmp_path, shape=None))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert caught.value.message == (
        "model 'm': expected inputs with a number of dimensions in the model, "
        "got input 'X' without a shape"
    )
    scalar = completed(write_identity(tmp_path, shape=()))
    (response,) = execute(scalar, request_of(X=np.array([3], np.float32), batched=False))
    assert outputs_of(response)["Y"].tolist() == [3]


def test_a_model_with_a_tensor_of_a_type_not_served_says_so(tmp_path: Path) -> None:
    source = write_identity(tmp_path, TensorProto.FLOAT8E4M3FN)
    with pytest.raises(RequestError, match=r"tensor\(float8e4m3fn\)"):
        completed(source)


@pytest.mark.parametrize("filename", ["model.onnx/model.onnx", "other.onnx"])
def test_the_model_may_be_a_directory_or_have_another_name(tmp_path: Path, filename: str) -> None:
    source = write_identity(tmp_path, filename=filename)
    config = config_of()
    config.default_model_filename = filename.partition("/")[0]
    (response,) = execute(completed(source, config), request_of(X=floats([1, 2])))
    assert outputs_of(response)["Y"].tolist() == [[1, 2]]


class CountedSessions:
    """Counts how often a model file is loaded."""

    def __init__(self) -> None:
        self.count = 0
        self._open = open_session

    def __call__(self, settings: Any, model_name: str) -> ort.InferenceSession:
        self.count += 1
        return self._open(settings, model_name)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> CountedSessions:
    counted = CountedSessions()
    monkeypatch.setattr(onnx_model, "open_session", counted)
    monkeypatch.setattr(onnx_model, "usable_cpus", lambda: 2.0)
    return counted


def test_completing_and_loading_the_first_instance_loads_the_file_once(
    tmp_path: Path, sessions: CountedSessions
) -> None:
    source = write_identity(tmp_path)
    backend = OnnxBackend()
    config = backend.complete_config(source, config_of())
    assert sessions.count == 1
    loaded(source, config, backend)
    assert sessions.count == 1
    loaded(source, config, backend)
    assert sessions.count == 2


def test_a_file_replaced_in_between_is_loaded_anew(
    tmp_path: Path, sessions: CountedSessions
) -> None:
    source = write_identity(tmp_path)
    backend = OnnxBackend()
    config = backend.complete_config(source, config_of())
    write_onnx(
        tmp_path,
        [node("Neg", ["X"], ["T"]), node("Neg", ["T"], ["U"]), node("Neg", ["U"], ["Y"])],
        [("X", FLOAT, ("N", 2))],
        [("Y", FLOAT, ("N", 2))],
    )
    (response,) = execute(loaded(source, config, backend), request_of(X=floats([1, 2])))
    assert outputs_of(response)["Y"].tolist() == [[-1, -2]]


def test_few_sessions_wait_for_an_instance(tmp_path: Path, sessions: CountedSessions) -> None:
    backend = OnnxBackend()
    write_identity(tmp_path, name="m0")
    sources = []
    for number in range(6):
        if number:
            shutil.copytree(tmp_path / "m0", tmp_path / f"m{number}")
        directory = tmp_path / f"m{number}"
        sources.append(ModelSource(f"m{number}", 1, directory, directory / "1"))
    configs = [backend.complete_config(source, config_of()) for source in sources]
    assert sessions.count == 6
    for source, config in zip(sources, configs, strict=True):
        loaded(source, config, backend)
    assert sessions.count == 6 + 2


def test_errors_keep_their_code_on_the_way(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        completed(write_identity(tmp_path), config_of([("Z", "FP32", [2])]))
    assert caught.value.code is ErrorCode.INVALID_ARG
