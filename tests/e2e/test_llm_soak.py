"""A thousand generated texts whose clients leave at any moment: a real server is rid of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "scripts" / "soak-llm"
SLACK_MS = 2000
"""For a machine that is busy with other tests."""


@pytest.mark.e2e
@pytest.mark.slow
def test_cancelled_texts_leave_no_trace() -> None:
    bounds = ["--seconds", "12", "--slack-ms", str(SLACK_MS)]
    command = [sys.executable, str(SOAK), "--requests", "1000", *bounds]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
