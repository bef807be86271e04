"""Random ensembles under random schedules give what evaluating them step by step gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from tests.support.ensembles import (
    Arrays,
    Function,
    World,
    arrays_of,
    ensemble,
    graph_of,
    model,
    served,
    step,
)
from tests.support.schedules import run_virtually
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse

MODULUS = 1009
TICK_S = 1 / 64


def mixed(inputs: Arrays, _: InferRequest) -> Arrays:
    """Something that tells its inputs apart; one value in eleven is too much for it."""
    value = (inputs["A"] + 3 * inputs["B"] + 1) % MODULUS
    if value[0] % 11 == 0:
        raise RequestError(ErrorCode.INTERNAL, "eleven")
    return {"OUT": value}


def several(inputs: Arrays, _: InferRequest) -> list[Arrays]:
    value = int(inputs["IN"][0])
    return [{"OUT": [(value + number) % MODULUS]} for number in range(value % 4)]


FUNCTIONS: dict[str, Function] = {"mixed": mixed, "several": several}
MODELS = [
    model("mixed", {"A": [-1], "B": [-1]}, instances=3),
    model("several", decoupled=True, instances=2),
]


@dataclass(frozen=True)
class Graph:
    """An ensemble, with its steps in an order in which they can be evaluated.

    What runs once a request comes before what depends on decoupled steps, whose responses it does
    not depend on: it may fail even where there are none.
    """

    config: pb.ModelConfig
    steps: list[pb.ModelEnsemblingStep]

    def evaluate(self, value: int, wanted: list[str]) -> list[Arrays]:
        """The outputs of each response, by running all that is needed for each combination."""
        needed = set(wanted)
        for each in reversed(self.steps):
            if not needed.isdisjoint(each.output_map.values()):
                needed.update(each.input_map.values())
        found: list[Arrays] = [{"X": np.array([value])}]
        for each in self.steps:
            if needed.isdisjoint(each.output_map.values()):
                continue
            (written,) = each.output_map.values()
            found = [
                tensors | {written: np.asarray(result["OUT"])}
                for tensors in found
                for result in _results(each, tensors)
            ]
        return [{name: tensors[name].tolist() for name in wanted} for tensors in found]


def _results(each: pb.ModelEnsemblingStep, tensors: Arrays) -> list[Arrays]:
    inputs = {name: tensors[tensor] for name, tensor in each.input_map.items()}
    results: Any = FUNCTIONS[each.model_name](inputs, InferRequest(each.model_name))
    return results if isinstance(results, list) else [results]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """An ensemble of up to eight steps; what nobody reads is an output."""
    count = draw(st.integers(1, 8))
    steps: list[pb.ModelEnsemblingStep] = []
    tensors = ["X"]
    for number in range(count):
        source = st.sampled_from(tensors)
        name = f"t{number}"
        if draw(st.integers(0, 3)) == 0:
            steps.append(step("several", {"IN": draw(source)}, {"OUT": name}))
        else:
            steps.append(step("mixed", {"A": draw(source), "B": draw(source)}, {"OUT": name}))
        tensors.append(name)
    read = {tensor for each in steps for tensor in each.input_map.values()}
    assume("X" in read)
    outputs = [name for name in tensors[1:] if name not in read or draw(st.booleans())]
    config = ensemble(
        "e",
        draw(st.permutations(steps)),
        outputs={name: [-1] for name in outputs},
        decoupled=True,
        inflight_max=draw(st.integers(0, 2)),
    )
    try:
        graph_of(config, *MODELS)
    except RequestError as error:
        assume("different decoupled models" not in error.message)
        raise
    depths = {"X": 0}
    ranks: list[tuple[int, bool]] = []
    for each in steps:
        decoupled = each.model_name == "several"
        depth = max(depths[tensor] for tensor in each.input_map.values())
        ranks.append((depth, decoupled))
        (written,) = each.output_map.values()
        depths[written] = depth + decoupled
    return Graph(config, [steps[index] for index in sorted(range(count), key=ranks.__getitem__)])


@dataclass(frozen=True)
class Ask:
    value: int
    outputs: list[str]
    at_s: float
    leaves_after_s: float | None


@st.composite
def asks(draw: st.DrawFn, graph: Graph) -> list[Ask]:
    names = [output.name for output in graph.config.output]
    ticks = st.integers(0, 8).map(lambda number: number * TICK_S)
    return [
        Ask(
            value=draw(st.integers(0, 99)),
            outputs=sorted(draw(st.sets(st.sampled_from(names)))),
            at_s=draw(ticks),
            leaves_after_s=draw(st.none() | ticks),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


async def play(world: World, graph: Graph, each: Ask) -> None:
    """Ask, and compare what comes; or leave."""
    await trio.sleep(each.at_s)
    reply = world.submit("e", {"X": [each.value]}, each.outputs)
    if each.leaves_after_s is not None:
        await trio.sleep(each.leaves_after_s)
        reply.close()
        return
    responses = await world.responses(reply)
    assert not any(response.final for response in responses[:-1])
    wanted = each.outputs or [output.name for output in graph.config.output]
    error = responses[-1].error
    if error is not None:
        with pytest.raises(RequestError, match="eleven"):
            graph.evaluate(each.value, wanted)
        assert error.message.endswith("(model 'mixed'): eleven")
        return
    expected = graph.evaluate(each.value, wanted)
    given = [arrays_of(response) for response in _answers(responses)]
    assert sorted(map(repr, given)) == sorted(map(repr, _in_order(expected, graph)))


def _answers(responses: list[InferResponse]) -> Iterator[InferResponse]:
    for response in responses:
        assert response.error is None
        if not response.empty:
            yield response


def _in_order(expected: list[Arrays], graph: Graph) -> list[Arrays]:
    """The same with the outputs in the order of the configuration."""
    names = [output.name for output in graph.config.output]
    return [{name: each[name] for name in names if name in each} for each in expected]


@given(data=st.data(), graph=graphs(), random=st.random_module())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_request_is_answered_once_and_right(
    data: st.DataObject, graph: Graph, random: object
) -> None:
    del random
    requests = data.draw(asks(graph))
    ticks = st.integers(0, 3).map(lambda number: number * TICK_S)
    seconds = {name: data.draw(ticks) for name in FUNCTIONS}

    async def scenario() -> None:
        async with served([*MODELS, graph.config], FUNCTIONS, seconds=seconds) as world:
            async with trio.open_nursery() as nursery:
                for each in requests:
                    nursery.start_soon(play, world, graph, each)
            await play(world, graph, Ask(1, [], 0.0, None))  # nothing holds it up
            statistics = world.versions["e"].statistics
            assert statistics.success.count + statistics.fail.count == len(requests) + 1
            assert statistics.failures[FailureReason.CANCELED] <= sum(
                each.leaves_after_s is not None for each in requests
            )

    run_virtually(scenario)
