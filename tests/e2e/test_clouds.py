"""The endpoints of SageMaker and Vertex AI as their platforms start and ask them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server_process import HOST, ServerProcess, start_server

from .test_tools import curl

pytestmark = pytest.mark.e2e

CONFIG = """
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
INPUT = {"name": "INPUT0", "shape": [1, 2], "datatype": "INT32"}
GOOD = json.dumps({"inputs": [{**INPUT, "data": [1, 2]}]})


def write_model(directory: Path) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(CONFIG)


@contextmanager
def serving(directory: Path, environment: dict[str, str], *flags: str) -> Iterator[str]:
    """A server with one of the endpoints alone, on a free port; where that is."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        server: ServerProcess = start_server(
            directory / "models", directory / "log", "--allow-metrics=false", *flags
        )
    try:
        server.wait_for_log(" is served on ")
        (port,) = re.findall(r"is served on 127\.0\.0\.1:(\d+)", server.log())
        yield f"{HOST}:{port}"
        assert server.stop() == 0
        assert "Traceback" not in server.log()
    finally:
        if not server.has_ended():
            server.process.kill()
            server.process.wait()


def test_vertex_ai_starts_the_server_with_its_environment_alone(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m")
    environment = {
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": "0",
        "AIP_HEALTH_ROUTE": "/v1/endpoints/1",
        "AIP_PREDICT_ROUTE": "/v1/endpoints/1:predict",
    }
    with serving(tmp_path, environment) as url:
        assert curl(f"{url}/v1/endpoints/1") == b""
        predict = f"{url}/v1/endpoints/1:predict"
        assert json.loads(curl(predict, "-d", GOOD))["outputs"][0]["data"] == [1, 2]
        header = "X-Vertex-Ai-Triton-Redirect: v2/models/m/stats"
        (statistics,) = json.loads(curl(predict, "-X", "POST", "-H", header))["model_stats"]
        assert statistics["inference_count"] == 1
        header = "X-Vertex-Ai-Triton-Redirect: metrics"
        assert b"nv_inference_count" in curl(predict, "-X", "POST", "-H", header)


def test_sagemaker_has_one_model_and_others_that_come_and_go(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m")
    write_model(tmp_path / "archive" / "inner")
    flags = [
        "--allow-sagemaker=true",
        "--allow-http=false",
        "--allow-grpc=false",
        "--sagemaker-port=0",
        "--model-control-mode=explicit",
        "--load-model=m",
    ]
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "m"}
    with serving(tmp_path, environment, *flags) as url:
        assert curl(f"{url}/ping") == b""
        assert json.loads(curl(f"{url}/invocations", "-d", GOOD))["model_name"] == "m"
        kind = "Content-Type: application/vnd.sagemaker-triton.binary+json;json-header-size=0"
        raw = curl(f"{url}/invocations", "-i", "-H", kind, "--data-binary", "AAAABBBB")
        head, _, body = raw.partition(b"\r\n\r\n")
        size = int(head.partition(b"json-header-size=")[2].split(b"\r\n")[0])
        assert body[size:] == b"AAAABBBB"
        load = json.dumps({"model_name": "hash", "url": str(tmp_path / "archive")})
        assert curl(f"{url}/models", "-d", load) == b""
        answer = json.loads(curl(f"{url}/models/hash/invoke", "-d", GOOD))
        assert answer["model_name"] == "hash"
        assert curl(f"{url}/models/hash", "-X", "DELETE") == b""
        assert json.loads(curl(f"{url}/models")) == {"models": []}
