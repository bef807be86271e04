"""Models that these tests run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

import tritrio
from tritrio.testing import ServedModels

Serve = Callable[..., AbstractAsyncContextManager[ServedModels]]

ROW: dict[str, Any] = {"inputs": {"x": "FP32[1]"}, "outputs": {"y": "FP32[1]"}}
DELAY_S = 1 / 64
BATCHED: dict[str, Any] = {
    **ROW,
    "max_batch_size": 4,
    "dynamic_batching": {"max_queue_delay_microseconds": 15_625},
}


@tritrio.model(**BATCHED)
def double(x: Any) -> Any:
    return {"y": 2 * x}


@tritrio.model(**BATCHED, instances=2)
def wide(x: Any) -> Any:
    return x


@tritrio.model(**ROW, max_batch_size=4)
def repeat(x: Any) -> Iterator[Any]:
    for _ in range(int(x[0, 0])):
        yield x


@tritrio.model(**ROW, max_batch_size=4)
async def sleepy(x: Any) -> Any:
    await trio.sleep(3600)
    return x + 1


@tritrio.model(**ROW, max_batch_size=4)
async def sleepy_repeat(x: Any) -> AsyncIterator[Any]:
    for _ in range(int(x[0, 0])):
        await trio.sleep(3600)
        yield x


@tritrio.model(**BATCHED, response_cache=True)
def kept(x: Any) -> Any:
    return x


@tritrio.model(**ROW, max_batch_size=1, config={"sequence_batching": {}})
def steps(x: Any) -> Any:
    return x
