"""What the traces of requests hear of their execution."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.base import Batch
from ..protocol.trace import Trace
from .messages import Infer


def executing(infers: Sequence[Infer]) -> list[Trace]:
    """Return the traces of requests that are about to be executed."""
    traces: list[Trace] = [
        infer.request.trace for infer in infers if infer.request.trace is not None
    ]
    for trace in traces:
        trace.executing()
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
