"""What the traces of requests hear of their execution."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.base import Batch
from ..protocol.trace import Trace
from .messages import Infer


def executing(infers: Sequence[Infer]) -> list[Trace]:
    """Return the traces of requests that are about to be executed."""
    traces: list[Trace] = []
    for infer in infers:  # no comprehension, which is a call of its own
        trace = infer.request.trace
        if trace is not None:
            trace.executing()
            traces.append(trace)
    return traces


def executed(traces: Sequence[Trace], batch: Batch) -> None:
    """Tell traces of the execution, once it is over."""
    for trace in traces:
        trace.executed(
            batch.compute_start_ns,
            batch.infer_start_ns,
            batch.infer_end_ns,
            batch.compute_end_ns,
        )
