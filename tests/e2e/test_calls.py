"""Models that call each other, and their own metrics, on a real server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.support.calling import CONFIG
from tests.support.server_process import ServerProcess, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CALLER = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily("calls", "Calls made", pb_utils.MetricFamily.COUNTER)
        self.calls = family.Metric({"model": args["model_name"]})

    async def execute(self, requests):
        return await asyncio.gather(*[self.answer(request) for request in requests])

    async def answer(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
        self.calls.increment(1)
        call = pb_utils.InferenceRequest(
            model_name=name, inputs=request.inputs(), requested_output_names=["OUT"]
        )
        response = await call.async_exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse(response.output_tensors())
"""
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each)]) for each in tensors]
"""


def ask(server: ServerProcess, text: str) -> tuple[int, str]:
    """Status, and the text or error, of what the model "caller" answers."""
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [text]}
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/caller/infer",
        json.dumps({"inputs": [tensor]}).encode(),
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


def test_calls_and_their_errors_and_metrics_are_seen_from_outside(
    repository: Path, tmp_path: Path
) -> None:
    for name, code in {"caller": CALLER, "echo": ECHO}.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        (repository / name / "config.pbtxt").write_text(CONFIG)
    with running_server(repository, tmp_path / "log") as server:
        assert ask(server, "echo") == (200, "echo")
        status, message = ask(server, "caller")
        assert status == 503
        assert "this call of model 'caller' would wait for itself" in message
        assert ask(server, "nobody")[0] == 404
        url = f"http://127.0.0.1:{server.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            text = response.read().decode()
        assert '# TYPE calls counter\ncalls{model="caller"} 3.0\n' in text
        assert server.stop() == 0
        assert "Traceback" not in server.log()
