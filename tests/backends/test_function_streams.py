"""Generators, ragged batches and sequences of the function backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from math import inf
from typing import Any

import numpy as np
import pytest
import trio

from tests.backends.builders import error_of, execute, floats, outputs_of, request_of
from tritrio import model
from tritrio.backends.base import Batch, ModelInstance
from tritrio.protocol.requests import InferResponse

Load = Callable[..., ModelInstance]

ROWS: dict[str, Any] = {
    "inputs": {"x": "FP32[-1]"},
    "outputs": {"y": "FP32[-1]"},
    "max_batch_size": 8,
}
PREFIX = "INTERNAL: model 'm' version 1: f "


def streamed(instance: ModelInstance, *requests: Any) -> list[tuple[int, InferResponse]]:
    """What a decoupled model posts for one batch."""
    posted: list[tuple[int, InferResponse]] = []
    instance.execute(Batch(requests, lambda index, response: posted.append((index, response))))
    return posted


def counted(answers: list[tuple[int, InferResponse]]) -> list[tuple[int, Any, bool]]:
    return [
        (index, [t.array.tolist() for t in answer.outputs] or answer.empty, answer.final)
        for index, answer in answers
    ]


def test_each_thing_a_generator_yields_is_a_response(load: Load) -> None:
    @model("m", **ROWS)
    def f(x: Any) -> Iterator[Any]:
        for _ in range(int(x[0, 0])):
            yield {"y": x}

    answers = streamed(load(f), request_of(x=floats(2)), request_of(x=floats(0)))
    assert counted(answers) == [
        (0, [[[2]]], False),
        (0, [[[2]]], False),
        (0, True, True),
        (1, True, True),
    ]


def test_each_thing_an_async_generator_yields_is_a_response(load: Load) -> None:
    @model("m", **ROWS)
    async def f(x: Any) -> AsyncIterator[Any]:
        yield x
        await trio.lowlevel.checkpoint()
        yield x + 1

    answers = streamed(load(f), request_of(x=floats(1)))
    assert counted(answers) == [(0, [[[1]]], False), (0, [[[2]]], False), (0, True, True)]


def test_an_async_generator_that_waits_is_cut_off_when_its_client_leaves(load: Load) -> None:
    events: list[str] = []
    request = request_of(x=floats(1))

    @model("m", **ROWS)
    async def f(x: Any) -> AsyncIterator[Any]:
        try:
            yield x
            request.cancelled = True
            await trio.sleep_forever()
        finally:
            events.append("closed")

    answers = streamed(load(f), request)
    assert events == ["closed"]
    assert answers[-1][1].final


def test_an_async_function_is_cut_off_when_nobody_waits_for_it(load: Load) -> None:
    request = request_of(x=floats(1))

    @model("m", **ROWS)
    async def f(x: Any) -> Any:
        request.cancelled = True
        await trio.sleep(inf)
        return x

    (response,) = execute(load(f), request)
    assert error_of(response).startswith("CANCELLED: ")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_whose_client_left_is_closed(load: Load, is_async: bool) -> None:
    events: list[str] = []
    request = request_of(x=floats(1))

    def plain(x: Any) -> Iterator[Any]:
        try:
            while True:
                events.append("yield")
                yield x
                request.cancelled = True
        finally:
            events.append("closed")

    async def awaiting(x: Any) -> AsyncIterator[Any]:
        for value in plain(x):
            yield value

    f = model("m", **ROWS)(awaiting if is_async else plain)
    answers = streamed(load(f), request)
    assert [answer.final for _, answer in answers] == [False, True]
    assert events == ["yield", "yield", "closed"]


def test_a_generator_that_fails_midway_ends_with_the_error(load: Load) -> None:
    @model("m", **ROWS)
    def f(x: Any) -> Iterator[Any]:
        yield x
        yield x[:, :0].astype(np.int32)
        raise AssertionError("nobody asks for more after a fault")

    (_, first), (_, last) = streamed(load(f), request_of(x=floats(1)))
    assert outputs_of(first)["y"].tolist() == [[1]]
    assert error_of(last) == f"{PREFIX}must return output 'y' as FP32, got INT32"
    assert (first.final, last.final) == (False, True)


def test_ragged_inputs_come_end_to_end_with_their_batch_input(load: Load) -> None:
    @model(
        "m",
        outputs={"y": "FP32[1]"},
        max_batch_size=4,
        config={
            "input": [
                {"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}
            ],
            "batch_input": [
                {
                    "kind": "BATCH_ELEMENT_COUNT",
                    "target_name": ["sizes"],
                    "data_type": "TYPE_FP32",
                    "source_input": ["x"],
                }
            ],
        },
    )
    def f(x: Any, sizes: Any) -> Any:
        ends = np.cumsum(sizes.astype(int))
        return np.array([[part.sum()] for part in np.split(x, ends[:-1])], np.float32)

    answers = execute(load(f), request_of(x=floats(1, 2)), request_of(x=floats(3, 4, 5)))
    assert [outputs_of(answer)["y"].tolist() for answer in answers] == [[[3]], [[12]]]


def test_states_and_controls_of_a_sequence_come_and_go_by_name(load: Load) -> None:
    @model(
        "m",
        **ROWS,
        config={
            "sequence_batching": {
                "control_input": [
                    {
                        "name": "START",
                        "control": [
                            {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]},
                        ],
                    }
                ],
                "state": [
                    {
                        "input_name": "sum",
                        "output_name": "new_sum",
                        "data_type": "TYPE_FP32",
                        "dims": [1],
                    }
                ],
            }
        },
    )
    def f(x: Any, START: Any, **others: Any) -> Any:  # noqa: N803
        total = np.where(START == 1, 0, others["sum"]) + x
        return {"y": total, "new_sum": total}

    (answer,) = execute(load(f), request_of(x=floats(2), START=floats(0), sum=floats(5)))
    assert list(outputs_of(answer)) == ["y"]
    assert outputs_of(answer)["y"].tolist() == [[7]]
    assert answer.states is not None
    assert answer.states["new_sum"].array.tolist() == [[7]]


def test_the_states_that_a_generator_yields_leave_with_its_end(load: Load) -> None:
    state = {"input_name": "s", "output_name": "t", "data_type": "TYPE_FP32", "dims": [1]}

    @model("m", **ROWS, config={"sequence_batching": {"state": [state]}})
    def f(x: Any, s: Any) -> Iterator[Any]:
        for number in (1, 2):
            yield {"y": x, "t": s + number}

    answers = streamed(load(f), request_of(x=floats(1), s=floats(5)))
    assert [answer.states is None for _, answer in answers] == [True, True, False]
    kept = answers[-1][1].states
    assert kept is not None
    assert kept["t"].array.tolist() == [[7]]
