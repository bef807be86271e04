"""Which Python a model runs in, and the environments that are made for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.backends.builders import (
    config_of,
    error_of,
    execute,
    outputs_of,
    request_of,
    source_in,
    write_model,
)
from tests.backends.processes import children_of
from tritrio.backends import python_env
from tritrio.backends.base import InstancePlace, ModelSource
from tritrio.backends.python_env import interpreter_for, wants_process
from tritrio.backends.python_model import PythonBackend, PythonModelInstance
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import ModelConfig, ModelParameter

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import sys
import extra
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("OUTPUT0", np.array([extra.NUMBER], np.float32))])
            for _ in requests]
    def finalize(self):
        pb_utils.Logger.log_error(sys.prefix)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without pip, which has the module `extra` and nothing else."""
    place = tmp_path_factory.mktemp("environment") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "extra.py").write_text("NUMBER = 41\n")
    return place


def config(**parameters: str) -> ModelConfig:
    made = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])])
    for key, value in parameters.items():
        made.parameters[key] = ModelParameter(string_value=value)
    return made


def answer(source: ModelSource, made: ModelConfig) -> float:
    instance = PythonBackend().create_instance(source, made, InstancePlace("m_0_0"))
    try:
        instance.load()
        (response,) = execute(instance, request_of(np.array([1], np.float32)))
        return float(outputs_of(response)["OUTPUT0"][0])
    finally:
        instance.unload()
        assert children_of(os.getpid()) == []


@pytest.mark.parametrize(
    ("parameters", "settings", "wanted"),
    [
        ({}, {}, False),
        ({"EXECUTION_MODE": "thread"}, {}, False),
        ({"EXECUTION_MODE": "process"}, {}, True),
        ({}, {"execution-mode": "process"}, True),
        ({"EXECUTION_MODE": "thread"}, {"execution-mode": "process"}, False),
        ({"EXECUTION_ENV_PATH": "/env"}, {}, True),
        ({"EXECUTION_ENV_PATH": ""}, {}, False),
        ({"EXECUTION_ENV_PATH": "/env"}, {"execution-mode": "thread"}, True),
    ],
)
def test_the_model_and_then_the_server_say_where_it_runs(
    tmp_path: Path, parameters: dict[str, str], settings: dict[str, str], wanted: bool
) -> None:
    source = replace(source_in(tmp_path), backend_settings=settings)
    assert wants_process(source, config(**parameters)) is wanted


def test_requirements_mean_a_process(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    (source.version_directory / "requirements.txt").touch()
    assert wants_process(source, config())
    with pytest.raises(RequestError) as raised:
        wants_process(source, config(EXECUTION_MODE="thread"))
    assert raised.value.message == (
        "model 'm': parameter 'EXECUTION_MODE' is 'thread', but its requirements.txt needs a "
        "process"
    )


@pytest.mark.parametrize(
    ("parameters", "settings", "message"),
    [
        (
            {"EXECUTION_MODE": "fork"},
            {},
            "model 'm': parameter 'EXECUTION_MODE' must be 'process' or 'thread', got 'fork'",
        ),
        (
            {},
            {"execution-mode": "yes"},
            "backend setting 'execution-mode' must be 'process' or 'thread', got 'yes'",
        ),
        (
            {"EXECUTION_MODE": "thread", "EXECUTION_ENV_PATH": "/env"},
            {},
            (
                "model 'm': parameter 'EXECUTION_MODE' is 'thread', but its parameter "
                "'EXECUTION_ENV_PATH' needs a process"
            ),
        ),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    tmp_path: Path, parameters: dict[str, str], settings: dict[str, str], message: str
) -> None:
    source = replace(source_in(tmp_path), backend_settings=settings)
    with pytest.raises(RequestError) as raised:
        PythonBackend().create_instance(source, config(**parameters), InstancePlace("m_0_0"))
    assert (raised.value.code, raised.value.message) == (ErrorCode.INVALID_ARG, message)


def test_a_model_without_settings_runs_in_the_server(tmp_path: Path) -> None:
    source = write_model(tmp_path, MODEL)
    instance = PythonBackend().create_instance(source, config(), InstancePlace("m_0_0"))
    assert isinstance(instance, PythonModelInstance)
    assert interpreter_for(source, config()) == Path(sys.executable)


@pytest.mark.parametrize("how", ["absolute", "placeholder", "relative"])
def test_a_model_runs_in_the_environment_that_it_names(
    tmp_path: Path, environment: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    source = write_model(tmp_path, MODEL)
    path = str(environment)
    if how != "absolute":
        (source.model_directory / "env").symlink_to(environment)
        path = "env" if how == "relative" else "$$TRITON_MODEL_DIRECTORY/env"
    assert answer(source, config(EXECUTION_ENV_PATH=path)) == 41
    assert len(caplog.messages) == 1
    assert Path(caplog.messages[0]).resolve() == environment


INSTALLED = """
import sys
from pathlib import Path

packages, model, environment = sys.argv[1:]
sys.path.insert(0, packages)

import numpy as np

from tritrio.backends.base import Batch, InstancePlace, ModelSource
from tritrio.backends.python_model import PythonBackend
from tritrio.protocol.pb.inference import ModelConfig, ModelInput, ModelOutput, ModelParameter
from tritrio.protocol.requests import InferRequest

path = Path(model)
config = ModelConfig(name="m", output=[ModelOutput(name="OUTPUT0", data_type=11, dims=[1])])
config.parameters["EXECUTION_ENV_PATH"] = ModelParameter(string_value=environment)
source = ModelSource("m", 1, path, path / "1")
instance = PythonBackend().create_instance(source, config, InstancePlace("m_0_0"))
instance.load()
batch = Batch([InferRequest("m")])
instance.execute(batch)
print(batch.responses[0].outputs[0].array)
instance.unload()
"""


def test_an_installed_server_runs_a_model_in_an_environment_that_has_no_server(
    tmp_path: Path, environment: Path
) -> None:
    packages = tmp_path / "installed" / "site-packages"
    shutil.copytree(  # as it is installed: without links
        ROOT / "tritrio", packages / "tritrio", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "triton_python_backend_utils.py", packages)
    source = write_model(tmp_path, MODEL)
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-c", INSTALLED, str(packages)),
            *(str(source.model_directory), str(environment)),
        ],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[41.]\n", done.stderr


def test_a_packed_environment_is_unpacked_once(
    tmp_path: Path, environment: Path, cache: Path
) -> None:
    source = write_model(tmp_path, MODEL)
    with tarfile.open(source.model_directory / "env.tar.gz", "w:gz") as archive:
        for entry in environment.iterdir():
            if entry.name != "lib64":
                archive.add(entry, entry.name, filter=dereferenced)
    made = config(EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    interpreter = interpreter_for(source, made)
    assert interpreter.is_relative_to(cache)
    (interpreter.parent.parent / "seen").touch()
    assert interpreter_for(source, made) == interpreter
    assert (interpreter.parent.parent / "seen").exists()


def dereferenced(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """An archive of an environment has its interpreter in it, not a link out of it."""
    if member.issym() and member.linkname.startswith("/"):
        member.type, member.linkname = tarfile.REGTYPE, ""
    return member


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "expected a directory with bin/python, or a tar.gz of one"),
        (b"no archive", "file could not be opened successfully"),
    ],
)
def test_what_is_no_environment_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    source = write_model(tmp_path, MODEL)
    path = tmp_path / "env"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RequestError) as raised:
        interpreter_for(source, config(EXECUTION_ENV_PATH=str(path)))
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert raised.value.message.startswith(
        f"model 'm': parameter 'EXECUTION_ENV_PATH' names '{path}', which is no environment: {why}"
    )


@pytest.mark.parametrize(
    ("name", "why"), [("\0", "embedded null byte"), ("x" * 300, "[Errno 36] File name too long")]
)
def test_a_path_that_no_environment_can_have_is_refused(
    tmp_path: Path, name: str, why: str
) -> None:
    source = write_model(tmp_path, MODEL)
    with pytest.raises(RequestError) as raised:
        interpreter_for(source, config(EXECUTION_ENV_PATH=name))
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert f", which is no environment: {why}" in raised.value.message


def test_an_interpreter_that_cannot_run_the_server_says_so(tmp_path: Path) -> None:
    source = write_model(tmp_path, MODEL)
    binaries = tmp_path / "env" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(
        f"#!/bin/sh\nshift 2\nprogram=$1\nshift\nexec {sys.executable} -c "
        '"import sys; sys.version_info = (3, 9); sys.version = \'3.9.1\'\n$program" "$@"\n'
    )
    (binaries / "python").chmod(0o755)
    with pytest.raises(RequestError) as raised:
        answer(source, config(EXECUTION_ENV_PATH=str(binaries.parent)))
    assert raised.value.message == (
        "loading model instance 'm_0_0' failed: its process cannot run it: "
        "expected Python 3.11 or newer, got 3.9.1"
    )


def test_a_program_that_is_no_interpreter_says_so(tmp_path: Path) -> None:
    source = write_model(tmp_path, MODEL)
    binaries = tmp_path / "env" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text("no program")
    (binaries / "python").chmod(0o755)
    with pytest.raises(RequestError, match=r"model instance 'm_0_0': cannot start .*/bin/python: "):
        answer(source, config(EXECUTION_ENV_PATH=str(binaries.parent)))


def wheel(directory: Path, number: int) -> Path:
    """A distribution of the module `extra`."""
    path = directory / f"extra-{number}-py3-none-any.whl"
    about = f"extra-{number}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("extra.py", f"NUMBER = {number}\n")
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: extra\nVersion: {number}\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that were taken to make environments."""
    taken: list[str] = []
    run = python_env._run

    def noted(source: ModelSource, what: str, command: list[str], directory: Path) -> None:
        taken.append(what)
        run(source, what, command, directory)

    monkeypatch.setattr(python_env, "_run", noted)
    return taken


@pytest.mark.slow
def test_requirements_are_installed_once_for_each_content(tmp_path: Path, steps: list[str]) -> None:
    source = write_model(tmp_path, MODEL)
    requirements = source.version_directory / "requirements.txt"
    for number in (5, 6):
        wheel(source.version_directory, number)
        requirements.write_text(f"./extra-{number}-py3-none-any.whl\n")
        assert [answer(source, config()) for _ in range(2)] == [number, number]
    assert steps == 2 * ["python -m venv", "pip install"]


@pytest.mark.slow
def test_requirements_that_cannot_be_installed_fail_the_load_and_are_tried_again(
    tmp_path: Path, steps: list[str], environment: Path
) -> None:
    source = write_model(tmp_path, MODEL)
    (source.version_directory / "requirements.txt").write_text("./extra-7-py3-none-any.whl\n")
    with pytest.raises(RequestError) as raised:
        interpreter_for(source, config())
    assert raised.value.code is ErrorCode.INTERNAL
    assert raised.value.message.startswith(
        "model 'm': cannot make its environment, pip install failed: "
    )
    assert "extra-7-py3-none-any.whl" in raised.value.message
    wheel(source.version_directory, 7)
    assert answer(source, config()) == 7
    assert steps == 2 * ["python -m venv", "pip install"]


def test_an_environment_without_what_the_model_needs_fails_its_load(
    tmp_path: Path, environment: Path
) -> None:
    source = write_model(tmp_path, "import no_such_thing\n" + MODEL)
    with pytest.raises(RequestError, match="No module named 'no_such_thing'"):
        answer(source, config(EXECUTION_ENV_PATH=str(environment)))


def test_the_environment_has_precedence_over_what_the_server_has(
    tmp_path: Path, environment: Path
) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError(__import__("orjson").NAME)
    """
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "orjson.py").write_text("NAME = 'of the environment'\n")
    source = write_model(tmp_path, code)
    instance = PythonBackend().create_instance(
        source, config(EXECUTION_ENV_PATH=str(environment)), InstancePlace("m_0_0")
    )
    instance.load()
    (response,) = execute(instance, request_of(np.array([1], np.float32)))
    assert "ValueError: of the environment" in error_of(response)
    instance.unload()
