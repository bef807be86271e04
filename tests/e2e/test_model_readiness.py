"""What a Python model says of its readiness is what clients are told."""

from __future__ import annotations

from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.server_process import running_server

from .models import write_python_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SAYING = """
import pathlib

PLACE = pathlib.Path({place!r})


class TritonPythonModel:
    async def is_ready(self):
        return (PLACE / "ready").exists()

    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_model_is_ready_when_it_says_so(repository: Path, tmp_path: Path, mode: str) -> None:
    write_python_model(repository, "saying", SAYING, place=tmp_path)
    setting = f"--backend-config=python,execution-mode={mode}"
    with running_server(repository, tmp_path / "log", setting) as server:
        http = triton_http.InferenceServerClient(server.http_url)
        grpc = triton_grpc.InferenceServerClient(server.grpc_url)
        for ready in (False, True):
            if ready:
                (tmp_path / "ready").touch()
            assert http.is_model_ready("saying") is ready
            assert grpc.is_model_ready("saying") is ready
            assert grpc.is_model_ready("saying", "1") is ready
        http.close()
        grpc.close()
        assert server.stop() == 0
