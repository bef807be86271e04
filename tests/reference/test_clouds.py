"""The endpoints of Vertex AI and SageMaker of both servers."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from . import cloud_cases
from .cases import Case, compare
from .http_exchange import Http, exchange
from .servers import (
    ATTEMPT_INTERVAL_S,
    HOST,
    START_ATTEMPTS_MAX,
    Server,
    Servers,
    free_ports,
    need_reference,
    start_ours,
    start_reference,
)

pytestmark = pytest.mark.reference

TENSORS = """
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", i)]) for i in inputs]
"""
GREEDY = """
    def initialize(self, args):
        raise RuntimeError("CUDA out of memory")
"""
STEPS = """
platform: "ensemble"
ensemble_scheduling { step [ {
  model_name: "inner" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" }
} ] }
"""
ENVIRONMENT = {
    "AIP_PREDICT_ROUTE": "/predict",
    "AIP_HEALTH_ROUTE": "/health",
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": cloud_cases.MODEL,
    "PYTHONDONTWRITEBYTECODE": "1",
}
FLAGS = ["--model-control-mode=explicit", f"--load-model={cloud_cases.MODEL}"]


def write_model(directory: Path, code: str = ECHO) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text('backend: "python"' + TENSORS)
    (directory / "1" / "model.py").write_text(code)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories as SageMaker unpacks them."""
    place = tmp_path_factory.mktemp("archives")
    for name in ("one", "other", "two"):
        write_model(place / name / "model")
    write_model(place / "greedy" / "model", ECHO + GREEDY)
    write_model(place / "ensemble" / "inner")
    (place / "ensemble" / "top" / "1").mkdir(parents=True)
    (place / "ensemble" / "top" / "config.pbtxt").write_text(STEPS + TENSORS)
    (place / "none").mkdir()
    return place


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Servers]]:
    """Endpoint -> both servers, as if it were their HTTP port."""
    need_reference()
    directory = tmp_path_factory.mktemp("clouds")
    write_model(directory / "models" / cloud_cases.MODEL)
    started: list[Server] = []
    ports: list[dict[str, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        for name, start in (("reference", start_reference), ("ours", start_ours)):
            vertex_ai, sagemaker, _ = free_ports()
            ports.append({"vertex-ai": vertex_ai, "sagemaker": sagemaker})
            flags = [f"--{cloud}-port={port}" for cloud, port in ports[-1].items()]
            flags += ["--allow-vertex-ai=true", "--allow-sagemaker=true", *FLAGS]
            log = directory / f"{name}.log"
            started.append(start(directory / "models", log, flags=flags))
    try:
        for server, of_server in zip(started, ports, strict=True):
            server.wait_until_ready()
            for port in of_server.values():
                wait_for_port(server, port)
        yield {
            cloud: Servers(
                *(
                    replace(server, ports=server.ports._replace(http=of_server[cloud]))
                    for server, of_server in zip(started, ports, strict=True)
                )
            )
            for cloud in ("vertex-ai", "sagemaker")
        }
    finally:
        statuses = [server.stop() for server in started]
        shutil.rmtree(directory / "models")
    assert statuses[1] == 0, started[1].log_tail()


def wait_for_port(server: Server, port: int) -> None:
    """Wait until a server listens there: the reference opens these ports after its HTTP port."""
    for _ in range(START_ATTEMPTS_MAX):
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            try:
                server.process.wait(ATTEMPT_INTERVAL_S)
            except subprocess.TimeoutExpired:
                continue
        else:
            return
    raise AssertionError(server.log_tail())


@pytest.mark.parametrize("case", cloud_cases.VERTEX, ids=lambda case: case.name)
def test_vertex_ai_agrees(case: Case[Http], clouds: dict[str, Servers]) -> None:
    compare(case, exchange, clouds["vertex-ai"])


@pytest.mark.parametrize("case", cloud_cases.SAGEMAKER, ids=lambda case: case.name)
def test_sagemaker_agrees(case: Case[Http], clouds: dict[str, Servers]) -> None:
    compare(case, exchange, clouds["sagemaker"])


def test_models_that_come_and_go_in_sagemaker_agree(
    clouds: dict[str, Servers], place: Path
) -> None:
    for case in cloud_cases.models(str(place)):
        try:
            compare(case, exchange, clouds["sagemaker"])
        except AssertionError as error:
            error.add_note(f"the step {case.name!r}")
            raise
