"""Fixtures of the actor tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory_server import write_models
from tests.support.talking import write_talking_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model repository that the whole server serves."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def talking(tmp_path: Path) -> Path:
    """A repository with `talk`, `small` that has fewer inputs, and `plain`, which does not talk."""
    repository = write_models(tmp_path / "models", only=("plain",))
    write_talking_model(repository, "talk", ("tool_call_parser", "hermes"))
    write_talking_model(
        repository, "small", without=("input_ids", "return_logprobs", "exclude_input_in_output")
    )
    return repository
