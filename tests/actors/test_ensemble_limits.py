"""`max_inflight_requests`: what it bounds, who gets a turn, and that nobody waits for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pytest
import trio
from hypothesis import HealthCheck, given, settings, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.ensembles import (
    CHAIN,
    DIAMOND,
    FUNCTIONS,
    Arrays,
    Function,
    World,
    arrays_of,
    ensemble,
    model,
    served,
    step,
)
from tests.support.schedules import run_virtually
from tritrio.actors._ensemble_request import PATIENCE_S
from tritrio.actors._ensemble_run import ITERATIONS_MAX
from tritrio.protocol.config_ensemble import steps_of
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest

MANY: Final = 3 * ITERATIONS_MAX
TICK_S: Final = 1 / 64


def count(inputs: Arrays, _: InferRequest) -> list[Arrays]:
    return [{"OUT": [number]} for number in range(inputs["IN"][0])]


ALL: Final[Mapping[str, Function]] = {**FUNCTIONS, "count": count}
COUNT: Final = model("count", decoupled=True)
STREAM_STEPS: Final = [
    step("count", {"IN": "X"}, {"OUT": "t"}),
    step("add", {"IN": "t"}, {"OUT": "Y"}),
]
TWO_COUNTS: Final = [
    step("count", {"IN": "X"}, {"OUT": "t"}),
    step("count", {"IN": "t"}, {"OUT": "u"}),
    step("add", {"IN": "u"}, {"OUT": "Y"}),
]


def stream(inflight_max: int, steps: Sequence[pb.ModelEnsemblingStep]) -> list[pb.ModelConfig]:
    return [COUNT, CHAIN[1], ensemble("e", steps, decoupled=True, inflight_max=inflight_max)]


async def values(world: World, number: int) -> list[int]:
    """The values of Y in a stream, once all of it was received."""
    responses = await world.responses(world.submit("e", {"X": [number]}))
    assert all(response.error is None for response in responses)
    return [value for each in responses for value in arrays_of(each).get("Y", [])]


async def test_a_fast_step_does_not_pile_up_tensors_in_front_of_a_slow_one(
    autojump_clock: MockClock,
) -> None:
    config = ensemble("e", steps_of(CHAIN[2]), inflight_max=2)
    async with served([*CHAIN[:2], config], FUNCTIONS, seconds={"add": 1.0}) as world:
        replies = [world.submit("e", {"X": [number]}) for number in range(40)]
        await trio.sleep(0.5)
        for second in range(5):
            assert world.backend.ran().count("add") == 2 * second
            assert world.backend.ran().count("double") == 2 * second + 4  # 2 for each step
            await trio.sleep(1.0)
        for number, reply in enumerate(replies):
            assert arrays_of((await world.responses(reply))[0]) == {"Y": [2 * number + 1]}
        assert world.elapsed_s() == 20.0  # both turns of the slow step were taken all the time


async def test_tensors_that_wait_for_others_do_not_pile_up(autojump_clock: MockClock) -> None:
    config = ensemble("e", steps_of(DIAMOND[3]), inflight_max=1)
    async with served([*DIAMOND[:3], config], FUNCTIONS, seconds={"add": 1.0}) as world:
        replies = [world.submit("e", {"X": [number]}) for number in range(20)]
        await trio.sleep(0.5)
        assert world.backend.ran().count("double") == 3  # as many as there are steps
        for number, reply in enumerate(replies):
            assert arrays_of((await world.responses(reply))[0]) == {"Y": [3 * number + 1]}


async def test_a_request_that_waits_for_a_place_may_leave(autojump_clock: MockClock) -> None:
    config = ensemble("e", [step("add", {"IN": "X"}, {"OUT": "Y"})], inflight_max=1)
    async with served([CHAIN[1], config], FUNCTIONS, seconds={"add": 1.0}) as world:
        first, second, third = [world.submit("e", {"X": [number]}) for number in range(3)]
        await trio.sleep(0.5)
        second.close()
        await world.responses(first)
        assert arrays_of((await world.responses(third))[0]) == {"Y": [3]}
        assert world.elapsed_s() == 2.0
        assert len(world.backend.executed) == 2


@pytest.mark.parametrize(
    ("steps", "inflight_max", "waits"),
    [(STREAM_STEPS, 1, 1), (STREAM_STEPS, 3, 1), (TWO_COUNTS, 1, 1), (TWO_COUNTS, 2, 2)],
)
async def test_others_wait_only_a_moment_for_each_client_that_does_not_read(
    autojump_clock: MockClock,
    steps: list[pb.ModelEnsemblingStep],
    inflight_max: int,
    waits: int,  # the second client may get its first turn when the first one steps aside
) -> None:
    async with served(stream(inflight_max, steps), ALL) as world:
        stalled = [world.submit("e", {"X": [MANY]}) for _ in range(inflight_max)]
        await wait_all_tasks_blocked()
        for _ in range(2):
            assert len(await values(world, 3)) == 3
            assert world.elapsed_s() == waits * PATIENCE_S
        for reply in stalled:
            reply.close()


async def test_a_client_that_does_not_read_costs_no_more_than_its_own_bound(
    autojump_clock: MockClock,
) -> None:
    async with served(stream(1, STREAM_STEPS), ALL) as world:
        stalled = [world.submit("e", {"X": [MANY]}) for _ in range(5)]
        await trio.sleep(20.0)
        assert world.backend.ran().count("add") == 5 * ITERATIONS_MAX
        for reply in stalled:
            reply.close()


async def test_a_client_that_goes_on_to_read_gets_the_rest(autojump_clock: MockClock) -> None:
    async with served(stream(1, STREAM_STEPS), ALL) as world:
        slow = world.submit("e", {"X": [MANY]})
        await trio.sleep(5.0)
        other = world.submit("e", {"X": [MANY]})  # has the turn, and does not read
        await wait_all_tasks_blocked()
        responses = await world.responses(slow)
        found = sorted(value for each in responses for value in arrays_of(each).get("Y", []))
        assert found == list(range(1, MANY + 1))
        assert world.elapsed_s() == 5.0
        other.close()


async def test_a_client_that_reads_slowly_keeps_its_turn(autojump_clock: MockClock) -> None:
    async with served(stream(1, STREAM_STEPS), ALL) as world:
        slow = world.submit("e", {"X": [MANY]})
        others = [world.submit("e", {"X": [1]}) for _ in range(2)]
        for _ in range(MANY - ITERATIONS_MAX):
            await trio.sleep(PATIENCE_S * 3 / 4)
            await slow.receive()
            assert world.backend.ran().count("count") == 1
        for other in others:
            assert arrays_of(await other.receive()) == {"Y": [1]}
            other.close()
        slow.close()


class Shape(NamedTuple):
    """An ensemble "e", and what it answers: the values of Y, in no order."""

    configs: list[pb.ModelConfig]
    expected: list[list[int]]  # by X


def shapes(inflight_max: int) -> dict[str, Shape]:
    """Ensembles that wait for themselves in different ways."""

    def limited(
        name: str, steps: Sequence[pb.ModelEnsemblingStep], *, decoupled: bool = False
    ) -> pb.ModelConfig:
        return ensemble(name, steps, inflight_max=inflight_max, decoupled=decoupled)

    uneven = [
        step("double", {"IN": "X"}, {"OUT": "a"}),
        step("add", {"IN": "X"}, {"OUT": "b"}),
        step("add", {"IN": "b"}, {"OUT": "c"}),
        step("sum", {"A": "c", "B": "a"}, {"OUT": "d"}),
        step("sum", {"A": "d", "B": "a"}, {"OUT": "Y"}),
    ]
    mixed = [
        step("count", {"IN": "X"}, {"OUT": "a"}),
        step("double", {"IN": "X"}, {"OUT": "b"}),
        step("sum", {"A": "a", "B": "b"}, {"OUT": "c"}),
        step("sum", {"A": "c", "B": "a"}, {"OUT": "Y"}),
    ]
    nested = [
        step("inner", {"X": "X"}, {"Y": "t"}),
        step("inner", {"X": "t"}, {"Y": "u"}),
        step("add", {"IN": "u"}, {"OUT": "Y"}),
    ]
    models = [*DIAMOND[:3], COUNT]
    inputs = range(ITERATIONS_MAX + 5)
    return {
        "uneven": Shape([*models, limited("e", uneven)], [[5 * x + 2] for x in inputs]),
        "mixed": Shape(
            [*models, limited("e", mixed, decoupled=True)],
            [[2 * low + 2 * x for low in range(x)] for x in inputs],
        ),
        "counts": Shape(
            [*models, limited("e", TWO_COUNTS, decoupled=True)],
            [[low + 1 for high in range(x) for low in range(high)] for x in inputs],
        ),
        "nested": Shape(
            [
                *models,
                limited("inner", STREAM_STEPS, decoupled=True),
                limited("e", nested, decoupled=True),
            ],
            [[low + 2 for high in range(x) for low in range(high + 1)] for x in inputs],
        ),
    }


class Client(NamedTuple):
    value: int
    at_s: float
    pause_s: float  # before each answer
    leaves_after: int  # this many answers; then it stops to read, and closes much later


@st.composite
def clients(draw: st.DrawFn) -> list[Client]:
    ticks = st.integers(0, 4).map(lambda number: number * TICK_S)
    return [
        Client(
            value=draw(st.integers(0, ITERATIONS_MAX + 4)),
            at_s=draw(ticks),
            pause_s=draw(ticks | st.just(2 * PATIENCE_S)),
            leaves_after=draw(st.just(10_000) | st.integers(0, 40)),
        )
        for _ in range(draw(st.integers(2, 6)))
    ]


@given(
    name=st.sampled_from(["uneven", "mixed", "counts", "nested"]),
    inflight_max=st.integers(1, 3),
    group=clients(),
    ticks=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    random=st.random_module(),
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_client_that_reads_gets_all_of_its_answer(
    name: str, inflight_max: int, group: list[Client], ticks: list[int], random: object
) -> None:
    del random
    shape = shapes(inflight_max)[name]
    seconds = dict(zip(ALL, (tick * TICK_S for tick in ticks), strict=True))

    all_have_read = trio.Event()
    reading = set(range(len(group)))

    async def play(world: World, index: int, client: Client) -> None:
        await trio.sleep(client.at_s)
        reply = world.submit("e", {"X": [client.value]})
        found: list[int] = []
        for _ in range(client.leaves_after):
            await trio.sleep(client.pause_s)
            response = await reply.receive()
            assert response.error is None
            found += arrays_of(response).get("Y", [])
            if response.final:
                assert sorted(found) == sorted(shape.expected[client.value])
                break
        reading.remove(index)
        if not reading:
            all_have_read.set()
        await all_have_read.wait()  # it stays, and reads nothing
        reply.close()

    async def scenario() -> None:
        async with served(shape.configs, ALL, seconds=seconds) as world:
            async with trio.open_nursery() as nursery:
                for index, client in enumerate(group):
                    nursery.start_soon(play, world, index, client)
            assert sorted(await values(world, 4)) == sorted(shape.expected[4])

    run_virtually(scenario)
