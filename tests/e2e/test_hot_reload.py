"""A model that is replaced under load, on a real server: every request is answered."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HOT_RELOAD = Path(__file__).resolve().parents[2] / "scripts" / "hot-reload"


@pytest.mark.e2e
@pytest.mark.parametrize("flags", [["--reloads=5"], ["--reloads=3", "--poll"]])
def test_no_request_fails_while_a_model_is_replaced(flags: list[str]) -> None:
    command = [sys.executable, str(HOT_RELOAD), "--rate", "300", *flags]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"sent (\d+), answered (\d+), failed 0, reloads [35]\n", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) == int(found[2]) > 100
