"""When a trace is over, and what is left out of a long one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.traces import SPEC, Traces, request, setting, tensor
from tritrio.protocol import trace as module
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.trace import Stamp, Trace


def names(trace: Trace) -> list[str]:
    return [event.name for event in trace.events if isinstance(event, Stamp)]


def begun(traces: Traces, parent: Trace | None = None) -> Trace:
    trace = traces.new(parent)
    trace.begin(request(), SPEC, 10)
    return trace


def test_a_clients_trace_ends_with_the_last_of_request_execution_and_sending() -> None:
    traces = Traces(setting())
    trace = begun(traces)
    trace.executing()
    trace.respond(InferResponse("model", "3"), 20)
    trace.sent("HTTP_SEND_END", 30)
    assert not traces.ended
    trace.executed(11, 12, 13, 14)
    assert traces.ended == [trace]
    assert names(trace)[-5:] == [
        "HTTP_SEND_END",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]


def test_nothing_is_noted_twice_or_after_the_end() -> None:
    traces = Traces(setting())
    trace = begun(traces)
    trace.executing()
    for _ in range(2):
        trace.executed(11, 12, 13, 14)
        trace.respond(InferResponse("model", "3"), 20)
        trace.abandon(21)
        trace.sent("HTTP_SEND_END", 30)
        trace.release()
        trace.executing()
    assert traces.ended == [trace]
    assert len(names(trace)) == len(set(names(trace)))
    assert trace.error == ""


def test_a_child_ends_with_its_request_and_tells_of_no_frontend() -> None:
    traces = Traces(setting())
    parent = begun(traces)
    child = begun(traces, parent)
    child.respond(InferResponse("model", "3"), 20)
    assert traces.ended == [child]
    assert names(child) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_an_empty_response_completes_nothing() -> None:
    trace = begun(Traces(setting()))
    response = InferResponse("model", "3")
    response.empty = True
    trace.respond(response, 20)
    assert "INFER_RESPONSE_COMPLETE" not in names(trace)


def test_times_that_are_not_known_are_left_out() -> None:
    trace = begun(Traces(setting()))
    trace.executing()
    trace.executed(11, 0, 0, 14)
    assert names(trace)[2:] == ["COMPUTE_START", "COMPUTE_END"]


def test_an_abandoned_trace_says_so() -> None:
    traces = Traces(setting())
    trace = begun(traces)
    trace.release()
    trace.abandon(20)
    assert trace.error == "the request was cancelled before it was answered"
    assert traces.ended == [trace]


def test_a_long_trace_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 5)
    trace = begun(Traces(setting()))
    for number in range(9):
        trace.stamp("GRPC_SEND_START", number)
    trace.respond(InferResponse("model", "3"), 20)
    assert names(trace) == [
        "REQUEST_START",
        "QUEUE_START",
        "GRPC_SEND_START",
        "GRPC_SEND_START",
        "REQUEST_END",
    ]


def test_tensors_beyond_the_bound_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENSOR_BYTES_MAX", 8)
    trace = Traces(setting("level=TENSORS")).new()
    small, large = np.zeros(1, np.int32), np.zeros(2, np.int32)
    trace.begin(request(A=tensor("A", small), B=tensor("B", large)), SPEC, 10)
    seen = [event.tensor.name for event in trace.events if isinstance(event, module.TensorSeen)]
    assert seen == ["A"]


def test_a_noted_tensor_does_not_change_with_the_requests() -> None:
    array = np.array([1, 2], np.int32)
    trace = Traces(setting("level=TENSORS")).new()
    trace.begin(request(A=tensor("A", array)), SPEC, 10)
    array[:] = 0
    (seen,) = [event for event in trace.events if isinstance(event, module.TensorSeen)]
    assert seen.tensor.array.tolist() == [1, 2]
