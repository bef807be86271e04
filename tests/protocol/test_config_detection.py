"""Name, backend, platform and model file follow from what is written and from the files."""

from __future__ import annotations

import pytest

from tritrio.protocol.config_detection import MODEL_FORMATS, detect_backend
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb import inference as pb


def detected(
    config: pb.ModelConfig, *files: str, model_name: str = "m"
) -> tuple[str, str, str, str]:
    before = bytes(config)
    done = detect_backend(config, model_name=model_name, version_files=files)
    assert bytes(config) == before
    return done.name, done.backend, done.platform, done.default_model_filename


@pytest.mark.parametrize(
    ("filename", "backend", "platform"),
    [
        ("model.savedmodel", "tensorflow", "tensorflow_savedmodel"),
        ("model.graphdef", "tensorflow", "tensorflow_graphdef"),
        ("model.plan", "tensorrt", "tensorrt_plan"),
        ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
        ("model.xml", "openvino", ""),
        ("model.pt", "pytorch", "pytorch_libtorch"),
        ("model.pt2", "pytorch", "torch_aoti"),
        ("model.py", "python", ""),
    ],
)
def test_a_known_file_tells_the_rest(filename: str, backend: str, platform: str) -> None:
    expected = ("m", backend, platform, filename)
    assert detected(pb.ModelConfig(), "notes.txt", filename) == expected
    assert detected(pb.ModelConfig(default_model_filename=filename)) == expected
    assert detected(pb.ModelConfig(backend=backend), filename) == expected
    if platform:
        assert detected(pb.ModelConfig(platform=platform)) == expected


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        (pb.ModelConfig(backend="onnxruntime"), (), ("onnxruntime", "onnxruntime_onnx",
                                                     "model.onnx")),
        (pb.ModelConfig(backend="pytorch"), (), ("pytorch", "pytorch_libtorch", "model.pt")),
        (pb.ModelConfig(backend="pytorch", default_model_filename="model.pt2"), ("model.pt",),
         ("pytorch", "torch_aoti", "model.pt2")),
        (pb.ModelConfig(platform="libtorch"), (), ("pytorch", "libtorch", "model.pt")),
        (pb.ModelConfig(backend="python", default_model_filename="my.py"), ("model.onnx",),
         ("python", "", "my.py")),
        (pb.ModelConfig(backend="onnxruntime", default_model_filename="big.onnx"), (),
         ("onnxruntime", "onnxruntime_onnx", "big.onnx")),
        (pb.ModelConfig(backend="identity"), ("model.onnx",), ("identity", "", "")),
        (pb.ModelConfig(platform="odd"), ("model.onnx",), ("", "odd", "")),
        (pb.ModelConfig(platform="onnxruntime_onnx", backend="python"), (),
         ("python", "onnxruntime_onnx", "model.onnx")),
        (pb.ModelConfig(default_model_filename="x.bin"), ("model.onnx",), ("", "", "x.bin")),
        (pb.ModelConfig(platform="ensemble"), ("model.onnx",), ("", "ensemble", "")),
        (pb.ModelConfig(ensemble_scheduling=pb.ModelEnsembling()), (), ("", "", "")),
    ],
)  # fmt: skip
def test_what_is_written_wins_over_the_files(
    config: pb.ModelConfig, files: tuple[str, ...], expected: tuple[str, str, str]
) -> None:
    assert detected(config, *files) == ("m", *expected)


def test_the_name_tells_the_backend_when_nothing_else_does() -> None:
    name = "resnet.v1.identity"
    expected = (name, "identity", "", "model.identity")
    assert detected(pb.ModelConfig(), "weights", model_name=name) == expected


@pytest.mark.parametrize("name", ["resnet", "resnet.", ".identity"])
def test_without_any_sign_of_a_backend_the_error_says_which_name_would_help(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        detected(pb.ModelConfig(), model_name=name)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        f"model '{name}': no backend could be determined, since its configuration has neither "
        "backend nor platform and its version directory no known model file; a name of the form "
        "'<name>.<backend>' would tell it too"
    )


def test_a_name_that_differs_from_the_directory_is_refused() -> None:
    assert detected(pb.ModelConfig(name="m"), "model.py")[0] == "m"
    with pytest.raises(RequestError) as caught:
        detected(pb.ModelConfig(name="other"), "model.py")
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "model 'm': expected the name in its configuration to be the name of its directory, "
        "got 'other'"
    )


def test_every_format_is_found_by_its_own_file_only() -> None:
    assert len({form.filename for form in MODEL_FORMATS}) == len(MODEL_FORMATS)
