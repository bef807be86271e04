"""The span that a model's own spans are below, in the terms of OpenTelemetry's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from ..protocol.trace_context import TraceContext
from .base import Batch

_NOTHING: Final = nullcontext()


def span_scope(batch: Batch) -> AbstractContextManager[None]:
    """Return a context in which the span of a batch's request is OpenTelemetry's current one.

    Of a batch of several requests none is: its work is done for all of them.
    """
    requests = batch.requests
    trace = requests[0].trace
    if trace is None or trace.context is None or len(requests) > 1:
        return _NOTHING
    return _current(trace.context)


@contextmanager
def _current(span: TraceContext) -> Iterator[None]:
    try:
        from opentelemetry import context  # noqa: PLC0415 - an extra
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )
    except ImportError:  # in a process with an environment of its own
        yield
        return
    token = context.attach(TraceContextTextMapPropagator().extract(span.headers()))
    try:
        yield
    finally:
        context.detach(token)
