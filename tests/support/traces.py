"""Traces without a server."""

from __future__ import annotations

from itertools import count

import numpy as np

from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.tensors import Array, Tensor
from tritrio.protocol.trace import Trace
from tritrio.protocol.trace_config import parse_trace_config
from tritrio.protocol.trace_settings import TraceSetting, TraceSettings

SPEC = ModelSpec.from_config(pb.ModelConfig(name="model"), 3)


def setting(*texts: str) -> TraceSetting:
    """The setting of `--trace-config`, with times of every request in a file by default."""
    config = parse_trace_config(["level=on", "rate=1", "triton,file=f", *texts], {})
    return TraceSettings(config).of("")


class Traces:
    """Makes traces, and keeps those that have ended.

    Attributes:
      open: Traces that were begun and have not ended.
      ended: Those that have, in order.
    """

    def __init__(self, under: TraceSetting) -> None:
        self._setting = under
        self._numbers = count(1)
        self.open: list[Trace] = []
        self.ended: list[Trace] = []

    def new(self, parent: Trace | None = None) -> Trace:
        return Trace(self, next(self._numbers), self._setting, parent=parent)

    def child(self, parent: Trace) -> Trace:
        return self.new(parent)

    def begun(self, trace: Trace) -> None:
        self.open.append(trace)

    def finished(self, trace: Trace) -> None:
        self.open.remove(trace)
        self.ended.append(trace)


def tensor(name: str, array: Array, datatype: str = "") -> Tensor:
    return Tensor(name, datatype or f"INT{array.itemsize * 8}", array.shape, array=array)


def request(**inputs: Tensor) -> InferRequest:
    """A request to `SPEC`."""
    made = InferRequest("model")
    made.id = "a"
    made.inputs = inputs or {"X": tensor("X", np.array([[1, 2]], np.int32))}
    return made
