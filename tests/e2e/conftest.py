"""Model repositories, and one server with the examples for every test that only asks it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificates, write_certificates
from tests.support.server_process import ROOT, ServerProcess, running_server

from .models import EXAMPLES, GATE, copy_example, write_python_model


@pytest.fixture(scope="session")
def weights() -> None:
    """The weights of the example models; skips where they cannot be had."""
    command = [sys.executable, str(ROOT / "scripts" / "fetch_models")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        pytest.skip(f"no weights: {lines[-1] if lines else 'scripts/fetch_models failed'}")


@pytest.fixture(scope="session")
def examples(weights: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with repo_examples; it must end well."""
    with running_server(EXAMPLES, tmp_path_factory.mktemp("examples") / "log") as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the example `identity` alone, which nobody changes."""
    directory = tmp_path_factory.mktemp("models")
    copy_example(directory, "identity")
    return directory


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
def gate(tmp_path: Path, repository: Path) -> Path:
    """A directory: the model `gate` has `started` there, and answers once there is `go`."""
    place = tmp_path / "gate"
    place.mkdir()
    write_python_model(repository, "gate", GATE, place=place)
    return place
