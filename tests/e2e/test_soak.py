"""Thousands of requests whose clients leave at any moment, on a real server: no trace is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "scripts" / "soak"


@pytest.mark.e2e
@pytest.mark.slow
def test_soak_leaves_no_trace() -> None:
    command = [sys.executable, str(SOAK), "--requests", "10000", "--seconds", "30"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
