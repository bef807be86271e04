"""What people have at hand besides the client libraries: curl, and perf_analyzer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.server_process import ROOT, ServerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMIT_S = 60
BODY = '{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}'


def curl(*arguments: str) -> bytes:
    """What curl prints; it has to succeed."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    command = [program, "-sS", "--fail-with-body", "--max-time", str(LIMIT_S), *arguments]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return done.stdout


def test_curl_infers_with_json(examples: ServerProcess) -> None:
    answer = json.loads(curl(f"{examples.http_url}/v2/models/identity/infer", "-d", BODY))
    assert answer["outputs"] == [
        {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
    ]


@pytest.mark.parametrize("size_bytes", [64, 32 * 1024**2])
def test_curl_sends_raw_bytes(examples: ServerProcess, tmp_path: Path, size_bytes: int) -> None:
    values = np.arange(size_bytes // 4, dtype=np.float32)
    (tmp_path / "input").write_bytes(values.tobytes())
    answer = curl(
        f"{examples.http_url}/v2/models/identity/infer",
        "-H",
        "Inference-Header-Content-Length: 0",
        "--data-binary",
        f"@{tmp_path / 'input'}",
    )
    assert answer.endswith(values.tobytes())
    header = json.loads(answer[: len(answer) - size_bytes])
    assert header["outputs"][0]["shape"] == [1, len(values)]


def test_curl_reads_metadata_statistics_and_metrics(examples: ServerProcess) -> None:
    url = examples.http_url
    assert json.loads(curl(f"{url}/v2"))["name"] == "triton"
    assert json.loads(curl(f"{url}/v2/models/magika"))["inputs"] == [
        {"name": "bytes", "datatype": "INT32", "shape": [-1, 2048]}
    ]
    assert curl(f"{url}/v2/health/ready") == b""
    curl(f"{url}/v2/models/identity/infer", "-d", BODY)
    (stats,) = json.loads(curl(f"{url}/v2/models/identity/stats"))["model_stats"]
    successes = stats["inference_stats"]["success"]["count"]
    assert successes >= 1
    metrics = curl(f"127.0.0.1:{examples.metrics_port}/metrics").decode()
    line = 'nv_inference_request_success{model="identity",version="1"} '
    (value,) = (row.removeprefix(line) for row in metrics.splitlines() if row.startswith(line))
    assert float(value) == successes


@pytest.mark.reference
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_completes(examples: ServerProcess, protocol: str) -> None:
    if reason := os.environ.get("TRITRIO_NO_REFERENCE"):
        pytest.skip(f"no perf_analyzer: {reason}")
    url = examples.http_url if protocol == "http" else examples.grpc_url
    command = [sys.executable, str(ROOT / "scripts" / "perf-analyzer"), "-m", "identity"]
    command += ["-u", url, "-i", protocol, "--shape", "INPUT0:16", "--concurrency-range", "4"]
    command += ["-p", "500", "-r", "3", "-s", "999"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0 and done.stderr.startswith("error: "):
        pytest.skip(f"no perf_analyzer: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Throughput:" in done.stdout
    assert "Failed" not in done.stdout
