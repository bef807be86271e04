"""The plugin as pytest users meet it: another process, with nothing of this project's conftest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.calling import CONFIG
from tests.support.pages import write_files
from tests.support.server_process import ROOT

pytestmark = pytest.mark.slow

MODEL = """
import pytest
import tritrio

@tritrio.model(inputs={"x": "FP32[1]"}, outputs={"y": "FP32[1]"})
def same(x):
    return x
"""


def run_pytest(directory: Path) -> tuple[dict[str, int], str]:
    """Run all tests there; how many had each outcome, and what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tritrio.pytest_plugin", "-p", "no:cacheprovider"],
        cwd=directory,
        env={"PYTHONPATH": f"{ROOT}:{directory}"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stdout.strip().splitlines()[-1]
    counts = {
        what: int(number) for number, what in re.findall(r"(\d+) (\w+)", last.split(" in ")[0])
    }
    return counts, done.stdout


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    write_files("decorators.md", tmp_path)
    written = write_files("testing.md", tmp_path)
    assert list(written) == ["test_app.py", "test_more.py"]
    counts, output = run_pytest(tmp_path)
    assert counts == {"passed": 6}, output


def test_a_decoupled_model_is_tested_as_its_page_says(tmp_path: Path) -> None:
    (code,) = re.findall(
        r"^```python\n# letters/1/model\.py\n(.*?)^```$",
        (ROOT / "docs" / "python-models.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    (tmp_path / "letters" / "1").mkdir(parents=True)
    (tmp_path / "letters" / "1" / "model.py").write_text(code)
    (tmp_path / "letters" / "config.pbtxt").write_text(
        CONFIG + "model_transaction_policy { decoupled: true }\n"
    )
    assert list(write_files("python-models.md", tmp_path)) == ["test_letters.py"]
    counts, output = run_pytest(tmp_path)
    assert counts == {"passed": 1}, output


def test_failures_are_told_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "test_failures.py").write_text(
        MODEL
        + """
async def test_wrong(serve_models):
    async with serve_models(same) as served:
        assert (await served.at(0.0, {"x": [1]}))["y"].tolist() == [2]

async def test_skipped(serve_models):
    async with serve_models(same) as served:
        pytest.skip("not today")

async def test_deadlock(serve_models):
    import trio
    async with serve_models(same) as served:
        await trio.sleep_forever()
"""
    )
    counts, output = run_pytest(tmp_path)
    assert counts == {"failed": 2, "skipped": 1}, output
    assert "assert [1.0] == [2]" in output
    assert "the test waits for what never comes: 86400 virtual seconds have passed" in output
    assert "ExceptionGroup" not in output


def test_other_tests_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        """
import inspect
import pytest

@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj().close()
        return True
"""
    )
    (tmp_path / "test_others.py").write_text(
        MODEL
        + """
async def test_of_another_plugin():
    raise AssertionError

@pytest.fixture
def number():
    return 5

class TestClass:
    @pytest.mark.parametrize("more", [1, 2])
    async def test_method(self, serve_models, number, more, default=3):
        async with serve_models(same) as served:
            answer = await served.at(0.0, {"x": [number + more + default]})
            assert answer["y"].tolist() == [8 + more]

def test_sync(serve_models):
    assert callable(serve_models)
"""
    )
    counts, output = run_pytest(tmp_path)
    assert counts == {"passed": 4}, output


def test_it_imports_nothing_of_the_server_before_a_test_asks_for_it() -> None:
    program = (
        "import sys, tritrio.pytest_plugin\n"
        "assert not {'trio', 'numpy', 'tritrio.server'} & sys.modules.keys()\n"
        "import tritrio\n"
        "assert 'trio' not in sys.modules\n"
        "tritrio.serve\n"
        "assert 'tritrio.server' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, check=True)
