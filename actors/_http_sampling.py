"""Which inferences over HTTP are traced."""

from __future__ import annotations

from time import perf_counter_ns

from ..protocol.http_request import HttpRequest
from ..protocol.requests import InferRequest
from ..protocol.trace import HTTP
from ..protocol.trace_context import parse_trace_context
from .tracing import Tracing


def sample_request(tracing: Tracing, request: HttpRequest, infer: InferRequest) -> None:
    """Trace an inference, if it is sampled; its trace is on the HTTP request as well."""
    headers = request.headers
    caller = parse_trace_context(
        headers.get(b"traceparent", b"").decode("latin-1"),
        headers.get(b"tracestate", b"").decode("latin-1"),
    )
    started_ns = request.received_ns or perf_counter_ns()
    request.trace = tracing.sample(infer, HTTP, started_ns, caller)
