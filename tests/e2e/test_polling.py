"""A server that follows its repository, while files are copied into it, edited and removed."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path

import pytest

from tests.support.server_process import POLL_S, ServerProcess, running_server

from .models import write_python_model

LIMIT_S = 20.0
WRITES, WRITE_S = 25, 0.1
"""The copy takes longer than two looks at whatever lies there, which are a second apart."""
CODE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("{text}")) for _ in requests]
"""


def index(server: ServerProcess) -> list[str]:
    url = f"http://{server.http_url}/v2/repository/index"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as answer:
        entries = json.load(answer)
    return [f"{each['name']}/{each.get('version', '-')} {each.get('state')}" for each in entries]


def wait_for(server: ServerProcess, wanted: list[str]) -> None:
    for _ in range(round(LIMIT_S / POLL_S)):
        if index(server) == wanted:
            return
        assert not server.has_ended(POLL_S), server.log()
    pytest.fail(f"expected {wanted}, got {index(server)}:\n{server.log()}")


@pytest.mark.e2e
def test_a_file_that_is_copied_slowly_is_loaded_once_it_is_whole(
    repository: Path, tmp_path: Path
) -> None:
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    write_python_model(repository, "a", CODE.format(text="first"))
    with running_server(repository, tmp_path / "log", *flags) as server:
        write_python_model(repository, "b", "")
        with (repository / "b" / "1" / "model.py").open("w") as file:
            for number in range(WRITES):
                file.write(f"VALUE{number} = (\n{number})\n")
                file.flush()
                assert index(server) == ["a/1 READY"]
                assert not server.has_ended(WRITE_S)
            file.write(CODE.format(text="whole"))
        wait_for(server, ["a/1 READY", "b/1 READY"])
        shutil.rmtree(repository / "a")
        wait_for(server, ["b/1 READY"])
        assert server.stop() == 0
        assert "Traceback" not in server.log()
        assert "failed to load" not in server.log()
