"""Ensembles with decoupled steps: how many responses there are, when, and what holds them back."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.ensembles import (
    Arrays,
    Function,
    World,
    add,
    arrays_of,
    ensemble,
    model,
    served,
    step,
    total,
)
from tritrio.actors._device_link import DeviceLink
from tritrio.actors._ensemble_run import ITERATIONS_MAX
from tritrio.actors._response_gate import RESPONSES_WAITING_MAX
from tritrio.actors.reply import Reply
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.requests import InferRequest

PATIENCE_S = 30.0
BLOCKED_S = 0.1
"""How long a thread must stay where it is to count as blocked."""

FLOOD = 3 * RESPONSES_WAITING_MAX


def count(inputs: Arrays, _: InferRequest) -> list[Arrays]:
    """Responses 0, 1, … up to the first element."""
    return [{"OUT": [number]} for number in range(inputs["IN"][0])]


FUNCTIONS: dict[str, Function] = {"count": count, "add": add, "sum": total}
STEPS = [step("count", {"IN": "X"}, {"OUT": "t"}), step("add", {"IN": "t"}, {"OUT": "Y"})]
STREAM = [
    model("count", decoupled=True),
    model("add"),
    ensemble("e", STEPS, decoupled=True),
]
SINGLE = [*STREAM[:2], ensemble("e", STEPS)]


async def stream(world: World, number: int, **options: Any) -> list[list[int]]:
    """The values of Y in each response, checked to end with the only final one."""
    responses = await world.responses(world.submit("e", {"X": [number]}, **options))
    assert [response.final for response in responses] == [False] * (len(responses) - 1) + [True]
    assert all(response.error is None for response in responses)
    if responses[-1].empty:
        responses.pop()
    return [arrays_of(response)["Y"] for response in responses]


@pytest.mark.parametrize("number", [0, 1, 2, 5, ITERATIONS_MAX * 3])
async def test_each_response_of_a_decoupled_step_becomes_one_of_the_ensemble(
    autojump_clock: MockClock, number: int
) -> None:
    async with served(STREAM, FUNCTIONS) as world:
        assert sorted(await stream(world, number)) == [[each + 1] for each in range(number)]
        statistics = world.versions["e"].statistics
        assert (statistics.success.count, statistics.execution_count) == (1, 1)
        assert world.versions["add"].statistics.success.count == number


async def test_responses_multiply_along_a_chain_of_decoupled_steps(
    autojump_clock: MockClock,
) -> None:
    chain = ensemble(
        "e",
        [step("count", {"IN": "X"}, {"OUT": "t"}), step("count", {"IN": "t"}, {"OUT": "Y"})],
        decoupled=True,
    )
    async with served([*STREAM[:2], chain], FUNCTIONS) as world:
        number = 2 * ITERATIONS_MAX  # more than may be open of either step
        expected = sorted([low] for high in range(number) for low in range(high))
        assert sorted(await stream(world, number)) == expected


async def test_each_iteration_waits_for_the_steps_outside_of_it(
    autojump_clock: MockClock,
) -> None:
    config = ensemble(
        "e",
        [
            step("count", {"IN": "X"}, {"OUT": "t"}),
            step("add", {"IN": "X"}, {"OUT": "u"}),
            step("sum", {"A": "t", "B": "u"}, {"OUT": "Y"}),
        ],
        decoupled=True,
    )
    configs = [*STREAM[:2], model("sum", {"A": [-1], "B": [-1]}), config]
    async with served(configs, FUNCTIONS, seconds={"add": 4.0, "sum": 1.0}) as world:
        assert sorted(await stream(world, 3)) == [[4], [5], [6]]
        assert world.elapsed_s() == 5.0
        assert world.backend.ran().count("add") == 1


async def test_answers_that_waited_for_the_same_tensor_end_with_a_final_one(
    autojump_clock: MockClock,
) -> None:
    steps = [step("count", {"IN": "X"}, {"OUT": "Y"}), step("add", {"IN": "X"}, {"OUT": "Z"})]
    config = ensemble("e", steps, outputs={"Y": [-1], "Z": [-1]}, decoupled=True)
    async with served([*STREAM[:2], config], FUNCTIONS, seconds={"add": 1.0}) as world:
        responses = await world.responses(world.submit("e", {"X": [3]}))
        assert sorted(map(str, map(arrays_of, responses))) == [
            str({"Y": [number], "Z": [4]}) for number in range(3)
        ]
        assert [response.final for response in responses] == [False, False, True]


async def test_an_ensemble_that_is_not_decoupled_gives_one_response(
    autojump_clock: MockClock,
) -> None:
    async with served(SINGLE, FUNCTIONS) as world:
        (only,) = await world.responses(world.submit("e", {"X": [1]}))
        assert arrays_of(only) == {"Y": [1]}
        none = await world.ask("e", {"X": [0]})
        assert isinstance(none, RequestError)
        assert none.code is ErrorCode.INVALID_ARG
        assert none.message == (
            "ensemble 'e': output 'Y' of request 'r' can no longer be produced: step 0 (model "
            "'count') gave no response"
        )
        several = await world.ask("e", {"X": [2]})
        assert isinstance(several, RequestError)
        assert several.code is ErrorCode.UNSUPPORTED
        assert several.message == (
            "ensemble 'e' gives one response a request, but step 0 (model 'count') gave several; "
            "model_transaction_policy { decoupled: true } of the ensemble allows that"
        )


async def test_a_sole_answer_waits_until_it_is_known_to_be_the_only_one(
    autojump_clock: MockClock,
) -> None:
    config = ensemble("e", [step("count", {"IN": "X"}, {"OUT": "Y"})])
    async with served([STREAM[0], config], FUNCTIONS) as world:
        (only,) = await world.responses(world.submit("e", {"X": [1]}))
        assert arrays_of(only) == {"Y": [0]}
        (error,) = await world.responses(world.submit("e", {"X": [2]}))
        assert error.error is not None


async def test_a_decoupled_ensemble_of_ordinary_models_gives_one_final_response(
    autojump_clock: MockClock,
) -> None:
    config = ensemble("e", [step("add", {"IN": "X"}, {"OUT": "Y"})], decoupled=True)
    async with served([STREAM[1], config], FUNCTIONS) as world:
        (response,) = await world.responses(world.submit("e", {"X": [4]}))
        assert arrays_of(response) == {"Y": [5]}
        assert not response.empty


async def test_decoupled_ensembles_are_decoupled_steps(autojump_clock: MockClock) -> None:
    outer = ensemble("outer", [step("e", {"X": "X"}, {"Y": "Y"})], decoupled=True)
    async with served([*STREAM, outer], FUNCTIONS) as world:
        number = 3 * ITERATIONS_MAX
        reply = world.submit("outer", {"X": [number]})
        values = [arrays_of(each)["Y"] for each in await world.responses(reply) if not each.empty]
        assert sorted(values) == [[each + 1] for each in range(number)]


async def test_few_iterations_run_at_a_time_however_many_responses_wait(
    autojump_clock: MockClock,
) -> None:
    configs = [STREAM[0], model("add", instances=200), STREAM[2]]
    async with served(configs, FUNCTIONS, seconds={"add": 1.0}) as world:
        assert len(await stream(world, 3 * ITERATIONS_MAX)) == 3 * ITERATIONS_MAX
        ends = [end_s for end_s, name, _ in world.backend.executed if name == "add"]
        assert ends == [second for second in (1.0, 2.0, 3.0) for _ in range(ITERATIONS_MAX)]


async def test_an_answer_that_waits_to_be_received_holds_its_place(
    autojump_clock: MockClock,
) -> None:
    async with served(STREAM, FUNCTIONS) as world:
        reply = world.submit("e", {"X": [100]})
        await wait_all_tasks_blocked()
        assert world.backend.ran().count("add") == ITERATIONS_MAX
        await reply.receive()
        await wait_all_tasks_blocked()
        assert world.backend.ran().count("add") == ITERATIONS_MAX + 1
        reply.close()


async def test_steps_in_flight_are_limited_over_all_requests(autojump_clock: MockClock) -> None:
    config = ensemble("e", STEPS, decoupled=True, inflight_max=3)
    configs = [STREAM[0], model("add", instances=50), config]
    async with served(configs, FUNCTIONS, seconds={"add": 1.0}) as world:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(stream, world, 6)
        ends = [end_s for end_s, name, _ in world.backend.executed if name == "add"]
        assert ends == [second for second in (1.0, 2.0, 3.0, 4.0) for _ in range(3)]


async def test_a_request_that_leaves_gives_its_turns_to_others(autojump_clock: MockClock) -> None:
    config = ensemble("e", STEPS, decoupled=True, inflight_max=1)
    async with served([*STREAM[:2], config], FUNCTIONS, seconds={"add": 1.0}) as world:
        leaving = world.submit("e", {"X": [9]})
        await trio.sleep(0.5)
        waiting = [world.submit("e", {"X": [9]}), world.submit("e", {"X": [2]})]
        await trio.sleep(0.25)
        waiting[0].close()
        leaving.close()
        responses = await world.responses(waiting[1])
        assert [arrays_of(each) for each in responses if not each.empty] == [{"Y": [1]}, {"Y": [2]}]
        assert world.versions["e"].statistics.failures[FailureReason.CANCELED] == 2


async def test_a_turn_that_comes_as_its_request_leaves_goes_on(autojump_clock: MockClock) -> None:
    config = ensemble("e", [step("add", {"IN": "X"}, {"OUT": "Y"})], inflight_max=1)
    async with served([STREAM[1], config], FUNCTIONS, seconds={"add": 1.0}) as world:
        first, second, third = [world.submit("e", {"X": [number]}) for number in range(3)]
        first.notify = second.close  # its turn has come by then, and its task did not run yet
        assert arrays_of((await world.responses(third))[0]) == {"Y": [3]}
        assert world.elapsed_s() == 2.0
        assert first.has_response


async def test_a_client_that_leaves_as_it_is_answered_is_counted_once(
    autojump_clock: MockClock,
) -> None:
    steps = [step("count", {"IN": "X"}, {"OUT": "Y"}), step("add", {"IN": "X"}, {"OUT": "Z"})]
    config = ensemble("e", steps, outputs={"Y": [-1], "Z": [-1]}, decoupled=True)
    async with served([*STREAM[:2], config], FUNCTIONS, seconds={"add": 1.0}) as world:
        reply = world.submit("e", {"X": [3]})
        reply.notify = reply.close
        await trio.sleep(2.0)
        statistics = world.versions["e"].statistics
        assert (statistics.success.count, statistics.fail.count) == (0, 1)
        assert statistics.failures[FailureReason.CANCELED] == 1


async def test_a_step_that_cannot_start_keeps_no_turn(autojump_clock: MockClock) -> None:
    config = ensemble("e", [step("add", {"IN": "X"}, {"OUT": "Y"})], inflight_max=1)
    async with served([STREAM[1], config], FUNCTIONS) as world:
        gone = world.versions.pop("add")
        assert isinstance(await world.ask("e", {"X": [1]}), RequestError)
        world.versions["add"] = gone
        assert await world.ask("e", {"X": [1]}) == {"Y": [2]}


async def test_a_model_that_became_decoupled_is_not_mistaken(autojump_clock: MockClock) -> None:
    configs = [*STREAM[:2], ensemble("e", [step("add", {"IN": "X"}, {"OUT": "Y"})])]
    async with served(configs, FUNCTIONS) as world:
        ordinary, world.versions["add"] = world.versions["add"], world.versions["count"]
        error = await world.ask("e", {"X": [3]})
        assert isinstance(error, RequestError)
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message == (
            "ensemble 'e': step 0 (model 'add'): the model gave several responses, which it could "
            "not when the ensemble was loaded; load the ensemble again"
        )
        world.versions["add"] = ordinary


async def test_an_error_ends_a_stream(autojump_clock: MockClock) -> None:
    def third(inputs: Arrays, _: InferRequest) -> Arrays:
        if inputs["IN"][0] == 2:
            raise RequestError(ErrorCode.INTERNAL, "the third one")
        return {"OUT": inputs["IN"]}

    async with served(STREAM, {"count": count, "add": third}) as world:
        responses = await world.responses(world.submit("e", {"X": [9]}))
        assert responses[-1].error is not None
        assert responses[-1].error.message == "ensemble 'e': step 1 (model 'add'): the third one"
        assert all(response.error is None for response in responses[:-1])
        assert (world.versions["e"].statistics.fail.count) == 1


async def test_a_response_without_the_outputs_of_an_iteration_is_an_error(
    autojump_clock: MockClock,
) -> None:
    functions: dict[str, Function] = {"count": lambda *_: [{"OUT": [1]}, {}], "add": add}
    async with served(STREAM, functions) as world:
        error = await world.ask("e", {"X": [1]})
        assert isinstance(error, RequestError)
        assert error.message.endswith(
            "step 1 (model 'add') needs its input 'IN', but step 0 (model 'count') did not give "
            "its output 'OUT'"
        )


class Flood:
    """A decoupled model on a real thread that notes how far it came."""

    def __init__(self) -> None:
        self.produced = 0
        self.ended = threading.Event()
        self.arrays: list[weakref.ref[Any]] = []

    def __call__(self, inputs: Arrays, _: InferRequest) -> Any:
        def parts() -> Any:
            for _ in range(inputs["IN"][0]):
                array = np.zeros(1024, np.int32)
                self.arrays.append(weakref.ref(array))
                self.produced += 1
                yield {"OUT": array}
            self.ended.set()

        return parts()

    def alive(self) -> int:
        gc.collect()
        return sum(each() is not None for each in self.arrays)


async def take(reply: Reply, number: int) -> None:
    for _ in range(number):
        await reply.receive()


@pytest.mark.parametrize("inflight_max", [0, 4])
async def test_a_fast_producer_waits_for_a_slow_client(inflight_max: int) -> None:
    flood = Flood()
    direct = ensemble(
        "e", [step("count", {"IN": "X"}, {"OUT": "Y"})], decoupled=True, inflight_max=inflight_max
    )
    bound = RESPONSES_WAITING_MAX + ITERATIONS_MAX + 1  # and one that its thread holds
    async with served([STREAM[0], direct], {"count": flood}, devices=DeviceLink) as world:
        reply = world.submit("e", {"X": [FLOOD]})
        for received in (0, 10, 10):
            await take(reply, received)
            assert not await trio.to_thread.run_sync(flood.ended.wait, BLOCKED_S)
            assert flood.alive() <= bound + 1  # and the one that was received last
        assert flood.produced == bound + 20
        with trio.fail_after(PATIENCE_S):
            responses = await world.responses(reply)
        assert len(responses) == FLOOD - 20 + 1
        assert flood.ended.is_set()


async def test_a_fast_producer_waits_for_a_slow_step_and_ends_with_its_client() -> None:
    flood, hold = Flood(), threading.Event()

    def slow(inputs: Arrays, _: InferRequest) -> Arrays:
        assert hold.wait(PATIENCE_S)
        return {"OUT": inputs["IN"]}

    configs = [STREAM[0], model("add", instances=1), STREAM[2]]
    async with served(configs, {"count": flood, "add": slow}, devices=DeviceLink) as world:
        reply = world.submit("e", {"X": [FLOOD]})
        assert not await trio.to_thread.run_sync(flood.ended.wait, BLOCKED_S)
        assert flood.produced == RESPONSES_WAITING_MAX + ITERATIONS_MAX + 1
        assert world.versions["add"].statistics.success.count == 0
        reply.close()
        assert await trio.to_thread.run_sync(flood.ended.wait, PATIENCE_S)
        hold.set()
