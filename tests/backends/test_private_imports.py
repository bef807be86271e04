"""What Python models can import: their own files first, and nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path

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
    instances[0].unload()
    sys.modules.pop("late")  # importlib.import_module knows no private names
    assert value_of(instances[1]) == 62
    instances[1].unload()
    sys.modules.pop("late")


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
