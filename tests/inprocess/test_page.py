"""What docs/in-process.md shows is what comes out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import write_files

LIMIT_S = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["script.py", "program.py"])
def test_each_program_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    output = write_files("in-process.md", tmp_path)[name]
    done = subprocess.run(
        [sys.executable, name],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.stdout, done.returncode) == (output, 0), done.stderr
