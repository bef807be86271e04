"""Traces as the JSON objects of a trace file.

The file is one array. A trace is several of its objects: which request it is of, each time, and
each tensor.
Source: the format of Triton's trace files, which its `trace_summary.py` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .dtypes import BYTES
from .tensors import Tensor
from .trace import Began, Event, Stamp, Trace


def trace_objects(traces: Iterable[Trace]) -> bytes:
    """Return the objects of some traces as JSON, with commas between and no brackets."""
    return b",".join(
        json.dumps(_object(trace, event), separators=(",", ":")).encode()
        for trace in traces
        for event in trace.events
    )


def _object(trace: Trace, event: Event) -> dict[str, Any]:
    number = trace.number
    if isinstance(event, Stamp):
        return {"id": number, "timestamps": [{"name": event.name, "ns": event.ns}]}
    if isinstance(event, Began):
        began: dict[str, Any] = {
            "id": number,
            "model_name": event.model_name,
            "model_version": int(event.model_version),
        }
        if event.request_id:
            began["request_id"] = event.request_id
        if trace.parent is not None:
            began["parent_id"] = trace.parent.number
        return began
    tensor = event.tensor
    return {
        "id": number,
        "activity": event.activity,
        "tensor": {
            "name": tensor.name,
            "data": ",".join(_elements(tensor)),
            "shape": ",".join(map(str, tensor.shape)),
            "dtype": tensor.datatype,
        },
    }


def _elements(tensor: Tensor) -> Iterable[str]:
    """Return the elements as text: six digits of what is not whole, and BYTES as JSON strings."""
    elements = tensor.array.ravel().tolist()
    if tensor.datatype == BYTES:
        texts = (element.decode(errors="backslashreplace") for element in elements)
        return (json.dumps(text, ensure_ascii=False) for text in texts)
    if tensor.datatype == "BOOL":
        return map(str, map(int, elements))
    return (
        f"{element:.6g}" if isinstance(element, float) else str(element) for element in elements
    )
