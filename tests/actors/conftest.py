"""Fixtures of the actor tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory_server import write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model repository that the whole server serves."""
    return write_models(tmp_path_factory.mktemp("models"))
