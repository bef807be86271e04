"""Models of these tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

import tritrio

begun = threading.Event()
"""Set when the model `wait` executes."""
let_go = threading.Event()
"""The model `wait` answers once it is set."""


@tritrio.model(
    inputs={"x": "FP32[-1]"},
    outputs={"y": "FP32[-1]"},
    max_batch_size=8,
)
def double(x: Any) -> Any:
    return {"y": 2 * x}


@tritrio.model(inputs={"text": "BYTES[-1]"}, outputs={"loud": "BYTES[-1]"})
def shout(text: Any) -> Any:
    return {"loud": [each.decode().upper() for each in text]}


@tritrio.model(inputs={"n": "INT32[1]"}, outputs={"i": "INT32[1]"})
def count(n: Any) -> Iterator[Any]:
    for i in range(n[0]):
        if i == 1_000_000:
            raise ValueError("nobody counts so far")
        yield {"i": [i]}


@tritrio.model(inputs={"x": "INT32[1]"}, outputs={"y": "INT32[1]"})
def wait(x: Any) -> Any:
    begun.set()
    let_go.wait()
    return {"y": np.asarray(x)}


@tritrio.model(inputs={"x": "INT32[1]"}, outputs={"y": "INT32[1]"})
class SlowStart:
    """Loads once `let_go` is set."""

    def __init__(self) -> None:
        begun.set()
        let_go.wait()

    def __call__(self, x: Any) -> Any:
        return {"y": np.asarray(x)}
