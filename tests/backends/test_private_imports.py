"""What Python models can import: their own files first, and nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.backends.builders import loaded, source_in, write_model
from tests.backends.test_python_load import ANSWER, CONFIG, PYTHON, load_error, value_of


def test_models_and_instances_do_not_see_each_others_modules(tmp_path: Path) -> None:
    code = f"""
import utils
from helpers.deep import DEPTH
class TritonPythonModel:
    def initialize(self, args):
        import late
        utils.count += 1
        self.value = utils.base + utils.count + DEPTH + late.extra
{ANSWER}
"""
    before, finders_before = set(sys.modules), list(sys.meta_path)
    instances = []
    for name, base in (("a", 100), ("b", 200)):
        source = write_model(tmp_path, code, name=name)
        (source.version_directory / "utils.py").write_text(f"base = {base}\ncount = 0\n")
        (source.model_directory / "late.py").write_text(f"extra = {base * 10}\n")
        package = source.model_directory / "helpers"
        package.mkdir()
        (package / "deep.py").write_text("DEPTH = 0\n")  # a namespace package
        instances += [loaded(PYTHON, source, CONFIG) for _ in range(2)]
    assert [value_of(instance) for instance in instances] == [1101, 1101, 2201, 2201]
    new = {name for name in set(sys.modules) - before if not name.startswith("tritrio_model_")}
    assert new == set()
    for instance in instances:
        instance.unload()
    assert not any(str(tmp_path) in entry for entry in sys.path)
    assert set(sys.modules) == before
    assert sys.meta_path == finders_before


def test_a_function_body_may_import_the_models_files_later(tmp_path: Path) -> None:
    code = f"""
class TritonPythonModel:
    @property
    def value(self):
        import importlib, late, late.deep as d
        from late.deep import NUMBER
        from late import deep
        assert deep is d is late.deep
        assert importlib.import_module("late").VALUE == late.VALUE
        return late.VALUE + NUMBER + deep.TWICE
{ANSWER}
"""
    instances = []
    for name, value in (("a", 1), ("b", 2)):
        source = write_model(tmp_path, code, name=name)
        package = source.version_directory / "late"
        package.mkdir()
        (package / "__init__.py").write_text(f"VALUE = {value}\n")
        (package / "deep.py").write_text(
            "import other\nfrom . import VALUE\nfrom .same import VALUE as same\n"
            "assert same == VALUE\nNUMBER = VALUE * 10\nTWICE = other.twice(NUMBER)\n"
        )
        (package / "same.py").write_text(f"VALUE = {value}\n")
        (source.model_directory / "same.py").write_text("VALUE = 'of the top level'\n")
        (source.model_directory / "other.py").write_text("def twice(x): return 2 * x\n")
        instances.append(loaded(PYTHON, source, CONFIG))
    assert value_of(instances[0]) == 31
    assert value_of(instances[1]) == 62
    assert "late" not in sys.modules
    for instance in instances:
        instance.unload()


def test_import_module_finds_a_models_own_file_and_nobody_elses(tmp_path: Path) -> None:
    code = f"""
import importlib, importlib.util
from importlib import import_module, util
import importlib as again
class TritonPythonModel:
    @property
    def value(self):
        assert again is importlib and importlib.util is util
        assert import_module("json") is __import__("json")
        helper = import_module("helper")
        deep = importlib.import_module("package.deep")
        assert deep is import_module(".deep", "package") is import_module(".deep", deep.__package__)
        assert import_module(".helper", __package__) is helper
        for name, error in (("no_such_module_5170", ImportError), (".deep", TypeError)):
            try:
                import_module(name)
            except error:
                continue
            raise AssertionError(name)
        return helper.VALUE + deep.VALUE
{ANSWER}
"""
    before = set(sys.modules)
    instances = []
    for name, value in (("a", 1), ("b", 2)):
        source = write_model(tmp_path, code, name=name)
        (source.version_directory / "helper.py").write_text(f"VALUE = {value}\n")
        (source.version_directory / "package").mkdir()
        (source.version_directory / "package" / "__init__.py").write_text("")
        (source.version_directory / "package" / "deep.py").write_text(
            "import importlib\nVALUE = 10 * importlib.import_module('helper').VALUE\n"
        )
        instances.append(loaded(PYTHON, source, CONFIG))
    assert [value_of(instance) for instance in instances] == [11, 22]
    for instance in instances:
        instance.unload()
    assert {name for name in set(sys.modules) - before if "helper" in name} == set()


@pytest.mark.parametrize(
    "edit",
    [
        "sys.path[:] = [entry for entry in sys.path if {own!r} not in entry]",
        "sys.path.insert(0, sys.path.pop())",
        "sys.meta_path[:] = sys.meta_path[1:]",
    ],
)
def test_a_model_that_edits_the_import_paths_breaks_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    code = f"""
import sys
import helper
{edit.format(own=str(tmp_path))}
class TritonPythonModel:
    value = helper.VALUE
{ANSWER}
"""
    instances = []
    for name, value in (("a", 1), ("b", 2)):
        source = write_model(tmp_path, code, name=name)
        (source.version_directory / "helper.py").write_text(f"VALUE = {value}\n")
        assert PYTHON.complete_config(source, CONFIG) is CONFIG
        instances.append(loaded(PYTHON, source, CONFIG))
    assert [value_of(instance) for instance in instances] == [1, 2]
    for instance in instances:
        instance.unload()
    assert not any(str(tmp_path) in entry for entry in sys.path)


def test_a_directory_of_data_does_not_hide_an_installed_package(tmp_path: Path) -> None:
    code = f"""
import json, onnx
class TritonPythonModel:
    value = len(json.dumps([1])) + bool(onnx.__version__)
{ANSWER}
"""
    source = write_model(tmp_path, code)
    for name in ("json", "onnx", "numpy"):
        (source.model_directory / name).mkdir()
    assert value_of(loaded(PYTHON, source, CONFIG)) == 4


def test_an_error_does_not_show_the_private_name_of_a_module(tmp_path: Path) -> None:
    (source_in(tmp_path).version_directory / "utils.py").write_text("")
    assert load_error(tmp_path, "from utils import nothing").startswith(
        "INTERNAL: model 'm' version 1: importing model.py raised ImportError: cannot import name "
        "'nothing' from 'utils' ("
    )
    assert load_error(tmp_path, "import utils.more").endswith(
        "ModuleNotFoundError: No module named 'utils.more'; 'utils' is not a package "
        "(at 1/model.py:3 in <module>)"
    )
