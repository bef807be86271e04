"""Loading of Python models: what `initialize` gets, isolation, and every way to fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.backends.builders import (
    config_of,
    execute,
    floats,
    loaded,
    outputs_of,
    request_of,
    source_in,
    write_model,
)
from tritrio.backends.base import InstancePlace
from tritrio.backends.registry import get_backend
from tritrio.protocol.errors import ErrorCode, RequestError

PYTHON = get_backend("python")
CONFIG = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], max_batch_size=8)
ANSWER = """
    def execute(self, requests):
        value = np.array([[self.value]], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]) for _ in requests]
"""


def load_error(directory: Path, code: str) -> str:
    with pytest.raises(RequestError) as caught:
        loaded(PYTHON, write_model(directory, code), CONFIG)
    return f"{caught.value.code.name}: {caught.value.message}"


def value_of(instance: object) -> float:
    (response,) = execute(instance, request_of(floats(0)))  # type: ignore[arg-type]
    return float(outputs_of(response)["OUTPUT0"][0, 0])


def test_initialize_gets_every_argument_as_text(tmp_path: Path) -> None:
    source = write_model(
        tmp_path,
        """
        import json, pathlib
        class TritonPythonModel:
            def initialize(self, args):
                path = pathlib.Path(args["model_repository"]) / "seen.json"
                path.write_text(json.dumps(args))
            def execute(self, requests): ...
        """,
        name="with blank",
    )
    place = InstancePlace("with blank_0_1", kind="CPU", device_id=0)
    PYTHON.create_instance(source, CONFIG, place).load()
    seen = json.loads((source.model_directory / "seen.json").read_text())
    config = json.loads(seen.pop("model_config"))
    assert config["max_batch_size"] == 8
    assert config["input"][0] == {**config["input"][0], "name": "INPUT0", "data_type": "TYPE_FP32"}
    assert seen == {
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_instance_name": "with blank_0_1",
        "model_name": "with blank",
        "model_repository": str(tmp_path / "with blank"),
        "model_version": "1",
    }


def test_another_filename_may_be_configured(tmp_path: Path) -> None:
    source = write_model(
        tmp_path, f"class TritonPythonModel:\n    value = 5\n{ANSWER}", filename="other.py"
    )
    config = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], max_batch_size=8)
    config.default_model_filename = "other.py"
    assert value_of(loaded(PYTHON, source, config)) == 5


def test_nothing_is_written_into_the_repository(tmp_path: Path) -> None:
    source = write_model(
        tmp_path, f"import utils\nclass TritonPythonModel:\n    value = 1\n{ANSWER}"
    )
    (source.version_directory / "utils.py").write_text("")
    loaded(PYTHON, source, CONFIG).unload()
    files = sorted(path.name for path in tmp_path.rglob("*"))
    assert files == ["1", "m", "model.py", "utils.py"]


def test_a_model_changed_within_the_same_second_is_read_anew(tmp_path: Path) -> None:
    for value in (1, 2):
        code = f"class TritonPythonModel:\n    value = {value}\n{ANSWER}"
        assert value_of(loaded(PYTHON, write_model(tmp_path, code), CONFIG)) == value


def test_finalize_runs_once_at_unload_and_its_fault_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_model(
        tmp_path,
        """
        class TritonPythonModel:
            def execute(self, requests): ...
            def finalize(self):
                raise OSError("disk is full")
        """,
    )
    loaded(PYTHON, source, CONFIG).unload()
    assert [record.message for record in caplog.records] == [
        "model 'm' version 1: finalize raised OSError: disk is full (at 1/model.py:7 in finalize)"
    ]


def test_finalize_does_not_run_after_a_failed_initialize(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_model(
        tmp_path,
        """
        class TritonPythonModel:
            def initialize(self, args):
                raise ValueError
            def execute(self, requests): ...
            def finalize(self):
                raise OSError
        """,
    )
    instance = PYTHON.create_instance(source, CONFIG, InstancePlace("m_0_0"))
    with pytest.raises(RequestError):
        instance.load()
    instance.unload()
    assert caplog.records == []
    assert not any(str(tmp_path) in entry for entry in sys.path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def broken(:",
            (
                "INTERNAL: model 'm' version 1: importing model.py raised "
                "SyntaxError: invalid syntax (at 1/model.py:3)"
            ),
        ),
        (
            "import no_such_module_5170",
            (
                "INTERNAL: model 'm' version 1: importing model.py raised ModuleNotFoundError: "
                "No module named 'no_such_module_5170' (at 1/model.py:3 in <module>)"
            ),
        ),
        (
            "raise SystemExit(3)",
            (
                "INTERNAL: model 'm' version 1: importing model.py raised SystemExit: 3 "
                "(at 1/model.py:3 in <module>)"
            ),
        ),
        (
            "class Other: ...",
            (
                "INVALID_ARG: model 'm' version 1: expected a class TritonPythonModel in model.py, "
                "got none"
            ),
        ),
        (
            "TritonPythonModel = 1",
            (
                "INVALID_ARG: model 'm' version 1: expected a class TritonPythonModel in model.py, "
                "got none"
            ),
        ),
        (
            "class TritonPythonModel: ...",
            "INTERNAL: model 'm': expected a method 'execute' in TritonPythonModel, got none",
        ),
        (
            (
                "class TritonPythonModel:\n"
                "    def execute(self, requests): ...\n"
                "    def initialize(self, args):\n"
                "        self.first()\n"
                "    def first(self):\n"
                "        self.second()\n"
                "    def second(self):\n"
                "        self.third()\n"
                "    def third(self):\n"
                "        exit('no weights')"
            ),
            "INTERNAL: model 'm' version 1: initialize raised SystemExit: no weights (at ",
        ),
        (
            (
                "class TritonPythonModel:\n"
                "    def execute(self, requests): ...\n"
                "    def __init__(self):\n"
                "        raise ValueError('x' * 5000)"
            ),
            "INTERNAL: model 'm' version 1: TritonPythonModel() raised ValueError: "
            + "x" * 988
            + "… (5012 characters) (at 1/model.py:6 in __init__)",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_says_what_failed_and_where(
    tmp_path: Path, code: str, message: str
) -> None:
    assert load_error(tmp_path, code).startswith(message)


def test_the_last_three_frames_are_shown(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    (source.version_directory / "helper.py").write_text("def third(): raise ValueError('no')\n")
    code = """
import helper
class TritonPythonModel:
    def execute(self, requests): ...
    def initialize(self, args):
        self.first()
    def first(self):
        self.second()
    def second(self):
        helper.third()
"""
    assert load_error(tmp_path, code) == (
        "INTERNAL: model 'm' version 1: initialize raised ValueError: no "
        "(at 1/model.py:10 in first, 1/model.py:12 in second, 1/helper.py:1 in third)"
    )


def test_a_missing_file_is_an_immediate_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        loaded(PYTHON, source_in(tmp_path), CONFIG)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "model 'm' version 1: expected the model's code in its version directory, "
        "which has no file model.py"
    )


@pytest.mark.parametrize(
    "filename",
    [
        "../../other/1/model.py",
        "..",
        "{tmp}/other/1/model.py",
        "a/../../model.py",
        "a\0b",
    ],
)
def test_a_filename_that_leads_out_of_the_version_directory_is_refused(
    tmp_path: Path, filename: str
) -> None:
    write_model(tmp_path, f"class TritonPythonModel:\n    value = 1\n{ANSWER}", name="other")
    source = source_in(tmp_path)
    config = config_of()
    config.default_model_filename = filename.format(tmp=tmp_path)
    with pytest.raises(RequestError) as caught:
        loaded(PYTHON, source, config)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "model 'm' version 1: expected a file inside its version directory, got "
        f"default_model_filename '{config.default_model_filename}', which leads out of it"
    )


def test_links_are_followed_wherever_they_lead(tmp_path: Path) -> None:
    source = write_model(
        tmp_path, f"class TritonPythonModel:\n    value = 5\n{ANSWER}", filename="real.py"
    )
    kept = (source.version_directory / "real.py").rename(tmp_path / "kept.py")
    (source.version_directory / "model.py").symlink_to(kept)
    moved = source.version_directory.rename(tmp_path / "elsewhere")
    source.version_directory.symlink_to(moved)
    assert value_of(loaded(PYTHON, source, CONFIG)) == 5


@pytest.mark.parametrize("filename", ["x" * 5000, "loop", "."])
def test_a_filename_that_no_file_can_have_is_an_immediate_error(
    tmp_path: Path, filename: str
) -> None:
    source = source_in(tmp_path)
    (source.version_directory / "loop").symlink_to("loop")
    config = config_of()
    config.default_model_filename = filename
    with pytest.raises(RequestError) as caught:
        loaded(PYTHON, source, config)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert len(caught.value.message) < 300


def test_a_model_that_failed_to_load_leaves_no_trace_for_the_next(tmp_path: Path) -> None:
    (source_in(tmp_path).version_directory / "utils.py").write_text("raise ValueError('bad')\n")
    assert "ValueError: bad (at 1/model.py:3 in <module>, 1/utils.py:1" in load_error(
        tmp_path, "import utils"
    )
    good = write_model(
        tmp_path,
        f"import utils\nclass TritonPythonModel:\n    value = utils.v\n{ANSWER}",
        name="good",
    )
    (good.version_directory / "utils.py").write_text("v = 4\n")
    assert value_of(loaded(PYTHON, good, CONFIG)) == 4


def test_auto_complete_config_fills_the_configuration_in(tmp_path: Path) -> None:
    source = write_model(
        tmp_path,
        """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4]})
                config.set_max_batch_size(16)
                config.set_dynamic_batching()
                return config
        """,
    )
    written = config_of()
    completed = PYTHON.complete_config(source, written)
    assert [(tensor.name, tensor.dims) for tensor in completed.input] == [("X", [4])]
    assert completed.max_batch_size == 16
    assert completed.dynamic_batching is not None
    assert (written.input, written.max_batch_size) == ([], 0)
    assert not any(str(tmp_path) in entry for entry in sys.path)


def test_a_model_without_auto_complete_config_keeps_its_configuration(tmp_path: Path) -> None:
    source = write_model(tmp_path, "class TritonPythonModel: ...")
    assert PYTHON.complete_config(source, CONFIG) is CONFIG


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "pass",
            (
                "model 'm': auto_complete_config must return the pb_utils.ModelConfig "
                "it was given, got NoneType"
            ),
        ),
        (
            "return type(config)({})",
            (
                "model 'm': auto_complete_config must return the pb_utils.ModelConfig "
                "it was given, got another one"
            ),
        ),
        (
            "config.set_max_batch_size(2)",
            (
                "model 'm' version 1: auto_complete_config raised ValueError: max_batch_size is 8, "
                "cannot be lowered to 2 (at 1/model.py:7 in auto_complete_config)"
            ),
        ),
    ],
)
def test_an_auto_complete_config_that_breaks_its_rules_fails_the_load(
    tmp_path: Path, body: str, message: str
) -> None:
    code = f"""
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {body}
"""
    with pytest.raises(RequestError) as caught:
        PYTHON.complete_config(write_model(tmp_path, code), CONFIG)
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == message


def test_the_unchecked_outputs_parameter_is_yes_or_no(tmp_path: Path) -> None:
    config = config_of(UNCHECKED_OUTPUTS="maybe")
    with pytest.raises(RequestError) as caught:
        loaded(PYTHON, write_model(tmp_path, "class TritonPythonModel: ..."), config)
    assert caught.value.message == (
        "model 'm': parameter 'UNCHECKED_OUTPUTS' must be 'yes' or 'no', got 'maybe'"
    )
