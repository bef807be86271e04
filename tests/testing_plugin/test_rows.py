"""Whatever is sent when, each request of a function gets its own rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from tests.testing_plugin.models import double, wide
from tritrio.testing import ServedModels, serve_models

Sent = tuple[int, int]
"""When, in units of 1/1024 s, and how many rows."""


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(1, 4)), min_size=1, max_size=12),
    st.sampled_from([double, wide]),
    st.sampled_from([0.0, 1 / 128, 1 / 16]),
    st.random_module(),
)
def test_each_request_gets_its_own_rows(
    sent: list[Sent], model: Callable[..., Any], execution_s: float, seed: object
) -> None:
    async def run() -> None:
        async with serve_models(model, execution_s=execution_s) as served:
            await check(served, sent, 2 if model is double else 1)

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def check(served: ServedModels, sent: list[Sent], factor: int) -> None:
    calls = []
    for number, (at, rows) in enumerate(sent):
        x = np.arange(rows, dtype=np.float32).reshape(rows, 1) + 10 * number
        calls.append((served.at(at / 1024, {"x": x}), x))
    for call, x in calls:
        assert np.array_equal((await call)["y"], factor * x)
    assert all(batch.rows <= 4 for batch in served.batches)
    ids = [int(name) for batch in served.batches for name in batch.ids]
    due = {number + 1: at for number, (at, _) in enumerate(sent)}
    assert ids == sorted(due, key=lambda number: (due[number], number))
