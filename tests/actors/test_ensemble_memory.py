"""What the tensors between the steps of ensembles take from the server's byte budget."""

from __future__ import annotations

from functools import partial
from sys import getsizeof
from typing import Final

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support import ensembles
from tests.support.ensembles import (
    CHAIN,
    DIAMOND,
    FUNCTIONS,
    Arrays,
    add,
    ensemble,
    model,
    served,
    step,
    tensor,
)
from tritrio.actors._ensemble_holdings import COUNTED_MIN_BYTES, Holdings
from tritrio.actors._ensemble_run import ITERATIONS_MAX
from tritrio.actors.ensemble import Ensemble
from tritrio.memory.budget import BUDGET_USED_UP, ByteBudget
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.tensors import Tensor

LENGTH: Final = 1000
SIZE_BYTES: Final = 4 * LENGTH
X: Final = {"X": [1] * LENGTH}


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> ByteBudget:
    """Room for two and a half tensors; what the ensembles of `served` charge."""
    made = ByteBudget(SIZE_BYTES * 5 // 2)
    monkeypatch.setattr(ensembles, "Ensemble", partial(Ensemble, budget=made))
    return made


async def test_an_output_is_charged_until_the_step_that_reads_it_has_ended(
    autojump_clock: MockClock, budget: ByteBudget
) -> None:
    async with served(CHAIN, FUNCTIONS, seconds={"double": 1.0, "add": 1.0}) as world:
        reply = world.submit("e", X)
        await trio.sleep(0.5)
        assert budget.used_bytes == 0  # what the client sent is not the ensemble's
        await trio.sleep(1.0)
        assert budget.used_bytes == SIZE_BYTES
        await reply.receive()
        assert (budget.used_bytes, budget.peak_bytes) == (0, SIZE_BYTES)


async def test_a_request_whose_tensors_have_no_room_is_refused_and_others_go_on(
    autojump_clock: MockClock, budget: ByteBudget
) -> None:
    async with served(CHAIN, FUNCTIONS, seconds={"add": 1.0}) as world:
        replies = [world.submit("e", X) for _ in range(3)]
        await trio.sleep(0.5)
        assert budget.used_bytes == 2 * SIZE_BYTES
        responses = [await reply.receive() for reply in replies]
        # Which of them comes last is up to the scheduler.
        (error,) = [response.error for response in responses if response.error is not None]
        assert error.message == BUDGET_USED_UP
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.reason is FailureReason.REJECTED
        assert error.retry_after_s == 1.0
        assert budget.used_bytes == 0


async def test_a_request_that_fails_or_leaves_gives_everything_back_at_once(
    autojump_clock: MockClock, budget: ByteBudget
) -> None:
    async with served(DIAMOND, FUNCTIONS, seconds={"sum": 9.0}) as world:
        first = world.submit("e", X)
        await wait_all_tasks_blocked()
        assert budget.used_bytes == 2 * SIZE_BYTES
        second = await world.ask("e", X)
        assert isinstance(second, RequestError)
        assert budget.used_bytes == 2 * SIZE_BYTES
        first.close()
        assert budget.used_bytes == 0


async def test_a_tensor_is_charged_once_however_many_read_it(
    autojump_clock: MockClock, budget: ByteBudget
) -> None:
    steps = [
        step("double", {"IN": "X"}, {"OUT": "t"}),
        step("sum", {"A": "t", "B": "t"}, {"OUT": "Y"}),
        step("add", {"IN": "t"}, {"OUT": "Z"}),
    ]
    outputs = {"Y": [-1], "Z": [-1], "t": [-1]}
    configs = [*DIAMOND[:3], ensemble("e", steps, outputs=outputs)]
    async with served(configs, FUNCTIONS, seconds={"add": 1.0, "sum": 2.0}) as world:
        reply = world.submit("e", X)
        await trio.sleep(0.5)
        assert budget.used_bytes == SIZE_BYTES
        await trio.sleep(1.0)
        assert budget.used_bytes == 2 * SIZE_BYTES  # with Z
        failed = await reply.receive()
        assert failed.error is not None
        assert failed.error.message == BUDGET_USED_UP  # there is no room for Y
        assert budget.used_bytes == 0


async def test_a_tensor_that_was_read_for_nothing_is_given_back(
    autojump_clock: MockClock, budget: ByteBudget
) -> None:
    steps = [
        step("double", {"IN": "X"}, {"OUT": "t"}),
        step("halves", {"IN": "X"}, {"OUT": "a", "REST": "b"}),
        step("sum", {"A": "t", "B": "b"}, {"OUT": "Z"}),
        step("add", {"IN": "a"}, {"OUT": "Y"}),
    ]
    configs = [
        *DIAMOND[:3],
        model("halves", None, {"OUT": [-1], "REST": [-1]}),
        ensemble("e", steps, outputs={"Y": [-1], "Z": [-1]}),
    ]
    functions = {**FUNCTIONS, "halves": add}  # which gives no REST, so nobody can read t
    async with served(configs, functions, seconds={"add": 1.0}) as world:
        reply = world.submit("e", X)
        await trio.sleep(0.5)
        assert budget.used_bytes == SIZE_BYTES
        assert (await reply.receive()).error is None


async def test_the_steps_of_a_nested_ensemble_charge_the_same_budget(
    autojump_clock: MockClock, budget: ByteBudget
) -> None:
    steps = [step("e", {"X": "X"}, {"Y": "t"}), step("add", {"IN": "t"}, {"OUT": "Y"})]
    async with served([*CHAIN, ensemble("o", steps)], FUNCTIONS, seconds={"add": 1.0}) as world:
        reply = world.submit("o", X)
        for _ in ("inside", "outside"):
            await trio.sleep(0.625)
            assert budget.used_bytes == SIZE_BYTES
        await reply.receive()
        assert (budget.used_bytes, budget.peak_bytes) == (0, SIZE_BYTES)


async def test_answers_that_wait_to_be_received_are_charged(
    autojump_clock: MockClock, budget: ByteBudget
) -> None:
    def parts(inputs: Arrays, _: InferRequest) -> list[Arrays]:
        return [{"OUT": np.zeros(LENGTH, np.int32)}] * inputs["IN"][0]

    budget.limit_bytes = 100 * SIZE_BYTES
    config = ensemble("e", [step("parts", {"IN": "X"}, {"OUT": "Y"})], decoupled=True)
    async with served([model("parts", decoupled=True), config], {"parts": parts}) as world:
        reply = world.submit("e", {"X": [99]})
        for _ in range(3):
            await wait_all_tasks_blocked()
            assert budget.used_bytes == ITERATIONS_MAX * SIZE_BYTES
            await reply.receive()
        reply.close()
        assert budget.used_bytes == 0


async def test_small_tensors_are_not_counted(autojump_clock: MockClock, budget: ByteBudget) -> None:
    length = COUNTED_MIN_BYTES // 4
    async with served(CHAIN, FUNCTIONS) as world:
        await world.ask("e", {"X": [1] * (length - 1)})
        assert budget.peak_bytes == 0
        await world.ask("e", {"X": [1] * length})
        assert budget.peak_bytes == COUNTED_MIN_BYTES


def test_texts_are_counted_as_the_objects_they_are() -> None:
    budget = ByteBudget(100_000)
    holdings = Holdings(budget)
    array = np.array([b"x" * 2000, b"y" * 3000], np.object_)
    texts = Tensor("t", "BYTES", (2,), array=array)
    holdings.take(texts)
    expected = 2 * 8 + getsizeof(array[0]) + getsizeof(array[1])
    assert budget.used_bytes == expected
    assert texts.given_raw is None
    assert len(texts.raw) != expected  # a step may have made it by the time it is given back
    holdings.let_go([texts])
    assert budget.used_bytes == 0


def test_a_response_that_answers_two_steps_is_counted_once() -> None:
    budget = ByteBudget(SIZE_BYTES)
    holdings = Holdings(budget)
    cached = tensor("t", X["X"])
    holdings.take(cached)
    holdings.take(cached)
    holdings.let_go([cached])
    assert budget.used_bytes == SIZE_BYTES
    holdings.let_go([cached])
    assert budget.used_bytes == 0
