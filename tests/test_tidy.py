"""Rules about the source itself that no other tool checks."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("actors", "backends", "memory", "protocol")
LINES_MAX = 420
"""A file that outgrows this holds two things."""
COLUMNS_MAX = 100
"""ruff checks *.py; this is for the scripts that have no suffix."""
GENERATED = "protocol/pb/"
THREAD_OWNER = "backends/device_thread.py"
THREAD_STARTERS = {
    "threading": {"Thread", "Timer"},
    "_thread": {"start_new_thread"},
    "concurrent.futures": {"ThreadPoolExecutor"},
}
# Split, so that this file passes its own test.
FOREIGN_TEXTS = (
    "py" + "pi.org",
    "python" + "hosted.org",
    "pypi." + "nvidia.com",
    "/wor" + "k/",
    "/opt/" + "wheels",
    "/opt/" + "pypi",
    "/ro" + "ot/",
    "/ho" + "me/",
)


def tracked() -> list[Path]:
    """Every file that is in the repository or would be, relative to its root."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = sorted(filter(None, listed.stdout.split("\0")))
    return [Path(name) for name in names if (ROOT / name).is_file()]


def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def is_program(path: Path) -> bool:
    """Whether people write it: Python or a script, and not generated."""
    if path.as_posix().startswith(GENERATED):
        return False
    return path.suffix == ".py" or path.parts[0] in {"scripts", ".ci"}


def threads_started(source: str) -> list[str]:
    """The names in this Python source that start a thread, as MODULE.NAME."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            starters = THREAD_STARTERS.get(node.module or "", set())
            found += [f"{node.module}.{name.name}" for name in node.names if name.name in starters]
        elif isinstance(node, ast.Attribute):
            module = ast.unparse(node.value)
            if node.attr in THREAD_STARTERS.get(module, set()):
                found.append(f"{module}.{node.attr}")
    return found


@pytest.mark.parametrize("floor", FLOORS)
def test_each_floor_is_a_link_inside_the_package(floor: str) -> None:
    link = ROOT / "tritrio" / floor
    assert link.is_symlink()
    assert os.readlink(link) == f"../{floor}"
    assert (link / "__init__.py").is_file()


def test_no_program_is_longer_than_one_thing_needs() -> None:
    lengths = {path: len(text(path).splitlines()) for path in tracked() if is_program(path)}
    assert lengths
    assert {path: lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


def test_no_script_is_wider_than_ruff_allows_python() -> None:
    wide = [
        f"{path}:{number}"
        for path in tracked()
        if is_program(path) and path.suffix != ".py"
        for number, line in enumerate(text(path).splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    assert wide == []


def test_only_the_device_thread_starts_threads() -> None:
    product = {*FLOORS, "tritrio"}
    starters = {
        path.as_posix(): found
        for path in tracked()
        if path.suffix == ".py" and path.parts[0] in product and is_program(path)
        if (found := threads_started(text(path)))
    }
    starters.pop(THREAD_OWNER, None)
    assert starters == {}


@pytest.mark.parametrize(
    "source",
    [
        "import threading\nthreading.Thread(target=f).start()",
        "from threading import Thread as T",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()",
        "import _thread\n_thread.start_new_thread(f, ())",
    ],
)
def test_the_thread_rule_sees_each_way_to_start_one(source: str) -> None:
    assert len(threads_started(source)) == 1


def test_every_example_has_a_config_and_says_what_it_does() -> None:
    examples = [path for path in (ROOT / "repo_examples").iterdir() if path.is_dir()]
    assert examples
    for example in examples:
        assert (example / "config.pbtxt").is_file(), example.name
        assert (example / "README.md").is_file(), example.name
        assert (example / "1").is_dir(), example.name


def test_nothing_tracked_names_one_persons_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        content = (ROOT / path).read_bytes()
        found += [f"{path}: {text}" for text in FOREIGN_TEXTS if text.encode() in content]
    assert found == []


def test_every_script_can_be_run() -> None:
    scripts = [path for path in tracked() if path.parts[0] in {"scripts", ".ci"}]
    programs = [path for path in scripts if text(path).startswith("#!")]
    assert programs
    assert [path for path in programs if not os.access(ROOT / path, os.X_OK)] == []
