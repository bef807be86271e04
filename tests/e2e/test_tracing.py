"""Spans of a real server, as a collector gets them, and the context in and out of it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.support.collector import Collector, Span, collecting
from tests.support.server_process import ServerProcess, running_server, start_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}

CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
LEAF = """
import numpy as np
import triton_python_backend_utils as pb_utils
from opentelemetry import trace


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = request.trace().get_context() or ""
        if request.request_id() == "current":
            span = trace.get_current_span().get_span_context()
            text = f"{span.trace_id:032x}-{span.span_id:016x}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[text]], object))])
"""
OUTER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        call = pb_utils.InferenceRequest(
            model_name="leaf", inputs=request.inputs(), requested_output_names=["OUT"],
            trace=request.trace() if request.request_id() != "alone" else None,
        )
        return pb_utils.InferenceResponse(call.exec().output_tensors())
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "leaf" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }
"""
PROCESS = 'parameters { key: "EXECUTION_MODE" value { string_value: "process" } }'


def flags(address: str) -> list[str]:
    return [
        "--trace-config=mode=opentelemetry",
        f"--trace-config=opentelemetry,url={address}/v1/traces",
        "--trace-config=opentelemetry,bsp_schedule_delay=50",
        "--trace-config=opentelemetry,resource=place=here",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=0",
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    for name, config, code in [
        ("leaf", CONFIG, LEAF),
        ("outer", CONFIG, OUTER),
        ("apart", CONFIG + PROCESS, OUTER),
        ("steps", ENSEMBLE, ""),
    ]:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if code:
            (repository / name / "1" / "model.py").write_text(code)
    return repository


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def server(
    models: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(models, log, *flags(collector.address)) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def ask(
    server: ServerProcess, model: str, request_id: str = "", headers: dict[str, str] = CONTEXT
) -> str:
    """What a model answers over HTTP."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{model}/infer",
        json.dumps({"id": request_id, "inputs": [tensor]}).encode(),
        headers,
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        (text,) = json.load(response)["outputs"][0]["data"]
    return str(text)


def by_name(spans: list[Span]) -> dict[str, Span]:
    """The spans by their names, computing by that of its parent."""
    names = {span.span_id: span.name for span in spans}
    return {
        f"compute of {names[span.parent_id]}" if span.name == "compute" else span.name: span
        for span in spans
    }


def test_a_request_is_three_spans_below_that_of_its_client(
    server: ServerProcess, collector: Collector
) -> None:
    before_ns = time.time_ns()
    context = json.loads(ask(server, "leaf", "r1"))
    spans = by_name(collector.wait_for(3))
    root, model, compute = spans["InferRequest"], spans["leaf"], spans["compute of leaf"]
    assert {span.trace_id for span in spans.values()} == {TRACE}
    assert {span.state for span in spans.values()} == {"vendor=1"}
    assert (root.parent_id, model.parent_id, compute.parent_id) == (
        CALLER,
        root.span_id,
        model.span_id,
    )
    assert root.events == (
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    )
    assert model.events == ("REQUEST_START", "QUEUE_START", "REQUEST_END")
    assert compute.events == (
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    )
    number = model.attributes["triton.trace_id"]
    assert model.attributes == {
        "triton.model_name": "leaf",
        "triton.model_version": 1,
        "triton.trace_id": number,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r1",
    }
    assert context == {
        "traceparent": f"00-{TRACE}-{model.span_id}-01",
        "tracestate": "vendor=1",
    }
    assert before_ns <= root.start_ns <= model.start_ns <= compute.start_ns
    assert compute.end_ns <= model.end_ns <= root.end_ns <= time.time_ns()
    assert collector.resource["service.name"] == "triton-inference-server"
    assert collector.resource["place"] == "here"


def test_the_current_span_inside_of_a_model_is_that_of_its_request(
    server: ServerProcess, collector: Collector
) -> None:
    current = ask(server, "leaf", "current")
    model = by_name(collector.wait_for(3))["leaf"]
    assert current == f"{TRACE}-{model.span_id}"


@pytest.mark.parametrize("outer", ["outer", "apart", "steps"])
def test_calls_and_steps_are_below_who_makes_them(
    outer: str, server: ServerProcess, collector: Collector
) -> None:
    context = json.loads(ask(server, outer, "r2"))
    spans = by_name(collector.wait_for(4 if outer == "steps" else 5))
    assert spans["leaf"].parent_id == spans[outer].span_id
    assert spans[outer].parent_id == spans["InferRequest"].span_id
    assert spans["InferRequest"].parent_id == CALLER
    attributes = spans["leaf"].attributes
    assert attributes["triton.trace_parent_id"] == spans[outer].attributes["triton.trace_id"]
    assert context["traceparent"] == f"00-{TRACE}-{spans['leaf'].span_id}-01"


def test_a_call_without_a_trace_has_no_span(server: ServerProcess, collector: Collector) -> None:
    assert ask(server, "outer", "alone") == ""
    assert sorted(span.name for span in collector.wait_for(3)) == [
        "InferRequest",
        "compute",
        "outer",
    ]


def grpc_ask(server: ServerProcess, request_id: str, **headers: str) -> None:
    tensor = grpcclient.InferInput("IN", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.infer("leaf", [tensor], request_id=request_id, headers=headers)


def test_the_context_comes_in_the_metadata_of_grpc(
    server: ServerProcess, collector: Collector
) -> None:
    grpc_ask(server, "r3", **CONTEXT)
    spans = by_name(collector.wait_for(3))
    assert spans["InferRequest"].parent_id == CALLER
    assert spans["InferRequest"].events == (
        "GRPC_WAITREAD_START",
        "GRPC_WAITREAD_END",
        "INFER_RESPONSE_COMPLETE",
        "GRPC_SEND_START",
        "GRPC_SEND_END",
    )


def test_requests_without_a_context_are_sampled_by_the_rate_alone(
    server: ServerProcess, collector: Collector
) -> None:
    assert ask(server, "leaf", headers={}) == ""
    change(server, {"trace_rate": "1"})
    context = json.loads(ask(server, "leaf", headers={}))
    change(server, {"trace_level": ["OFF"]})
    assert ask(server, "leaf") == ""
    change(server, {"trace_level": None})
    spans = by_name(collector.wait_for(3))
    assert spans["InferRequest"].parent_id == ""
    trace_id = spans["leaf"].trace_id
    assert context == {"traceparent": f"00-{trace_id}-{spans['leaf'].span_id}-01"}
    assert trace_id != TRACE


def change(server: ServerProcess, settings: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/trace/setting", json.dumps(settings).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200


def test_a_refused_request_is_a_span_with_its_error(
    server: ServerProcess, collector: Collector
) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(
            urllib.request.Request(
                f"http://{server.http_url}/v2/models/leaf/infer",
                b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}',
                CONTEXT,
            )
        )
    spans = by_name(collector.wait_for(2))
    assert "input 'X'" in spans["leaf"].error
    assert spans["InferRequest"].error == spans["leaf"].error


def test_a_collector_that_is_gone_harms_neither_requests_nor_the_stop(
    models: Path, tmp_path: Path
) -> None:
    with collecting() as gone:
        address = gone.address
        with running_server(models, tmp_path / "log", *flags(address)) as server:
            ask(server, "leaf", "r1")
            gone.wait_for(3)
            gone.server.shutdown()
            gone.server.server_close()
            assert [json.loads(ask(server, "leaf"))["tracestate"] for _ in range(20)]
            assert server.stop(limit_s=8.0) == 0
            assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("rate=x", "rate must be an integer in 0..2147483647, got 'x'"),
        ("mode=jaeger", "mode must be triton or opentelemetry, got 'jaeger'"),
    ],
)
def test_a_fault_of_the_configuration_ends_the_start(
    flag: str, text: str, models: Path, tmp_path: Path
) -> None:
    server = start_server(models, tmp_path / "log", f"--trace-config={flag}")
    assert server.wait() != 0
    assert text in server.log()
    assert "Traceback" not in server.log()
