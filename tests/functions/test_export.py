"""An exported function is a model directory that loads without the process it came from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import tritrio
from tests.support.server_process import ROOT
from tritrio.protocol.config_text import parse_model_config
from tritrio.server import StartError
from tritrio.serving import export, function_repository
from tritrio.testing import ServedModels

Serve = Callable[..., AbstractAsyncContextManager[ServedModels]]

APP = """
import tritrio

FACTOR = 3


@tritrio.model("scale", inputs={"x": "FP32[-1]"}, outputs={"y": "FP32[-1]"}, max_batch_size=4)
def times(x):
    return FACTOR * x


if __name__ == "__main__":
    print(tritrio.export(times, "models"))
"""


def run(program: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, program],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


async def test_a_script_exports_a_directory_that_stands_alone(
    tmp_path: Path, serve_models: Serve
) -> None:
    script = tmp_path / "my-app.py"
    script.write_text(APP)
    assert run("my-app.py", tmp_path) == "models/scale\n"
    script.unlink()
    version = tmp_path / "models" / "scale" / "1"
    assert (version / "model.py").read_text() == (
        "from function_source import times as model  # noqa: F401\n"
    )
    assert (version / "function_source.py").read_text() == APP
    async with serve_models(tmp_path / "models") as served:
        answer = await served.at(0.0, {"x": [[1, 2]]})
        assert answer["y"].tolist() == [[3, 6]]


async def test_what_is_edited_in_the_exported_configuration_holds(
    tmp_path: Path, serve_models: Serve
) -> None:
    (tmp_path / "app.py").write_text(APP)
    run("app.py", tmp_path)
    config = tmp_path / "models" / "scale" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "x"', 'name: "other"'))
    with pytest.raises(StartError, match="expected a parameter for each input, got none for"):
        async with serve_models(tmp_path / "models"):
            pass


def test_a_later_export_replaces_the_code_and_keeps_an_edited_configuration(
    tmp_path: Path,
) -> None:
    script = tmp_path / "app.py"
    script.write_text(APP)
    assert "is kept" not in run("app.py", tmp_path)
    config = tmp_path / "models" / "scale" / "config.pbtxt"
    assert "is kept" not in run("app.py", tmp_path)
    edited = config.read_text() + "# mine\n"
    config.write_text(edited)
    script.write_text(APP.replace("FACTOR = 3", "FACTOR = 4"))
    assert (
        "models/scale/config.pbtxt is kept, which is not what the decorator says; delete it to "
        "have it written again\n"
    ) in run("app.py", tmp_path)
    assert config.read_text() == edited
    assert "FACTOR = 4" in (config.parent / "1" / "function_source.py").read_text()


def test_a_function_of_a_package_is_imported_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "prices.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    from shop.prices import times  # type: ignore[import-not-found]

    directory = export(times, tmp_path / "models")
    assert directory == tmp_path / "models" / "scale"
    assert (directory / "1" / "model.py").read_text() == (
        "from shop.prices import times as model  # noqa: F401\n"
    )
    assert [path.name for path in (directory / "1").iterdir()] == ["model.py"]
    text = (directory / "config.pbtxt").read_text()
    assert parse_model_config(text, file="") == times.__tritrio_model__.config


@tritrio.model(inputs={"x": "FP32[1]"}, outputs={"y": "FP32[1]"})
def same(x: Any) -> Any:
    return x


def test_a_function_inside_another_cannot_be_exported(tmp_path: Path) -> None:
    @tritrio.model(inputs={"x": "FP32[1]"}, outputs={"y": "FP32[1]"})
    def inner(x: Any) -> Any:
        return x

    with pytest.raises(ValueError, match="that its module has under its own name"):
        export(inner, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_function_without_the_decorator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"with the decorator tritrio\.model, got '<function run"):
        export(run, tmp_path)


def test_two_functions_of_one_name_are_refused() -> None:
    with (
        pytest.raises(ValueError, match="expected models of different names, got two 'same'"),
        function_repository(same, same),
    ):
        pass


def test_the_directory_of_served_functions_goes_with_the_server() -> None:
    with function_repository(same) as repository:
        assert (repository / "same" / "config.pbtxt").is_file()
    assert not repository.exists()
