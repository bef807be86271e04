"""Ensembles of models that are functions: what is answered, and what runs for it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from trio.testing import MockClock

from tests.support.ensembles import (
    CHAIN,
    DIAMOND,
    FUNCTIONS,
    Arrays,
    Function,
    double,
    ensemble,
    model,
    served,
    step,
    total,
)
from tests.support.fake_device import INFER_NS, INPUT_NS, OUTPUT_NS
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest


async def test_a_tensor_goes_from_step_to_step(autojump_clock: MockClock) -> None:
    async with served(CHAIN, FUNCTIONS) as world:
        assert await world.ask("e", {"X": [1, 5]}) == {"Y": [3, 11]}
        assert world.backend.ran() == ["double", "add"]


async def test_independent_steps_run_side_by_side(autojump_clock: MockClock) -> None:
    seconds = {"double": 2.0, "add": 3.0, "sum": 4.0}
    async with served(DIAMOND, FUNCTIONS, seconds=seconds) as world:
        assert await world.ask("e", {"X": [1, 5]}) == {"Y": [4, 16], "t": [2, 10]}
        assert world.elapsed_s() == 7.0
        assert [(end_s, name) for end_s, name, _ in world.backend.executed] == [
            (2.0, "double"),
            (3.0, "add"),
            (7.0, "sum"),
        ]


async def test_only_the_steps_for_the_outputs_asked_for_run(autojump_clock: MockClock) -> None:
    async with served(DIAMOND, FUNCTIONS) as world:
        assert await world.ask("e", {"X": [3]}, ["t"]) == {"t": [6]}
        assert world.backend.ran() == ["double"]


SPLIT = [
    model("split", None, {name: [-1] for name in "ABCD"}),
    ensemble(
        "e",
        [step("split", {"IN": "X"}, {name: name for name in "ABCD"})],
        outputs={name: [-1] for name in "ABCD"},
    ),
]


@pytest.mark.parametrize("given", ["ABCD", "B"])
async def test_one_of_four_outputs_can_be_asked_for(autojump_clock: MockClock, given: str) -> None:
    asked: list[list[str]] = []

    def split(inputs: Arrays, request: InferRequest) -> Arrays:
        asked.append([output.name for output in request.outputs])
        return dict.fromkeys(given, inputs["IN"])

    async with served(SPLIT, {"split": split}) as world:
        assert await world.ask("e", {"X": [3]}, ["B"]) == {"B": [3]}
        assert asked == [["B"]]


async def test_outputs_that_nobody_asked_for_by_name_may_be_missing(
    autojump_clock: MockClock,
) -> None:
    def split(inputs: Arrays, _: InferRequest) -> Arrays:
        return dict.fromkeys("CA", inputs["IN"])

    async with served(SPLIT, {"split": split}) as world:
        assert await world.ask("e", {"X": [3]}) == {"A": [3], "C": [3]}


async def test_an_output_asked_for_that_is_not_made_is_named(autojump_clock: MockClock) -> None:
    def split(inputs: Arrays, _: InferRequest) -> Arrays:
        return {"A": inputs["IN"]}

    async with served(SPLIT, {"split": split}) as world:
        error = await world.ask("e", {"X": [3]}, ["A", "B"])
        assert isinstance(error, RequestError)
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message == (
            "ensemble 'e': output 'B' of request 'r' can no longer be produced: step 0 (model "
            "'split') did not give its output 'B'"
        )


OPTIONAL = [
    model("sum", {"A": [-1], "B": [-1]}, optional=["B"]),
    ensemble(
        "e",
        [step("sum", {"A": "X", "B": "X2"}, {"OUT": "Y"})],
        inputs={"X": [-1], "X2": [-1]},
        optional=["X2", "X"],
    ),
]


async def test_an_absent_input_of_the_ensemble_is_absent_in_its_steps(
    autojump_clock: MockClock,
) -> None:
    def first(inputs: Arrays, _: InferRequest) -> Arrays:
        return {"OUT": inputs["A"] + 10 * len(inputs)}

    async with served(OPTIONAL, {"sum": first}) as world:
        assert await world.ask("e", {"X": [3]}) == {"Y": [13]}
        assert await world.ask("e", {"X": [3], "X2": [1]}) == {"Y": [23]}
        error = await world.ask("e", {"X2": [1]})
        assert isinstance(error, RequestError)
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message == (
            "ensemble 'e': output 'Y' of request 'r' can no longer be produced: step 0 (model "
            "'sum') needs its input 'A', but the request has no input 'X'"
        )


async def test_what_a_step_leaves_out_is_absent_for_optional_inputs(
    autojump_clock: MockClock,
) -> None:
    configs = [
        model("split", None, {"A": [-1], "B": [-1]}),
        model("sum", {"A": [-1], "B": [-1]}, optional=["B"]),
        ensemble(
            "e",
            [
                step("split", {"IN": "X"}, {"A": "a", "B": "b"}),
                step("sum", {"A": "a", "B": "b"}, {"OUT": "Y"}),
            ],
        ),
    ]
    functions = {
        "split": lambda inputs, _: {"A": inputs["IN"]},
        "sum": lambda inputs, _: {"OUT": inputs["A"] + 10 * len(inputs)},
    }
    async with served(configs, functions) as world:
        assert await world.ask("e", {"X": [1]}) == {"Y": [11]}


async def test_the_header_of_a_request_goes_to_every_step(autojump_clock: MockClock) -> None:
    seen: list[tuple[object, ...]] = []

    def note(inputs: Arrays, request: InferRequest) -> Arrays:
        seen.append(
            (
                request.model_name,
                request.id,
                request.sequence_id,
                request.sequence_start,
                request.sequence_end,
                request.priority,
                request.timeout_us,
                request.parameters,
            )
        )
        return {"OUT": inputs["IN"]}

    header: dict[str, Any] = {
        "id": "h",
        "sequence_id": 7,
        "sequence_start": True,
        "priority": 3,
        "timeout_us": 9,
        "parameters": {"p": "v"},
    }
    async with served(CHAIN, {"double": note, "add": note}) as world:
        await world.ask("e", {"X": [1]}, **header)
    rest = ("h", 7, True, False, 3, 9, {"p": "v"})
    assert seen == [("double", *rest), ("add", *rest)]


async def test_a_step_may_change_the_sequence_of_the_steps_behind_it(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[object, ...]] = []
    override = {"sequence_id": "new", "sequence_start": False, "sequence_end": True, "other": 1}

    def change(inputs: Arrays, _: InferRequest) -> Arrays:
        return {"OUT": inputs["IN"], "parameters": override}

    def note(inputs: Arrays, request: InferRequest) -> Arrays:
        seen.append((request.sequence_id, request.sequence_start, request.sequence_end))
        return {"OUT": inputs["IN"]}

    async with served(CHAIN, {"double": change, "add": note}) as world:
        reply = world.submit("e", {"X": [1]}, sequence_id=7, sequence_start=True)
        (response,) = await world.responses(reply)
        assert seen == [("new", False, True)]
        assert response.parameters == {
            "sequence_id": "new",
            "sequence_start": False,
            "sequence_end": True,
        }
        assert (await world.responses(world.submit("double", {"IN": [1]})))[0].parameters == (
            override
        )


async def test_changes_of_a_sequence_by_several_steps_add_up(autojump_clock: MockClock) -> None:
    functions: dict[str, Function] = {
        "double": lambda *_: {"OUT": [1], "parameters": {"sequence_id": 8}},
        "add": lambda *_: {"OUT": [1], "parameters": {"sequence_end": True, "sequence_start": 1}},
    }
    async with served(CHAIN, functions) as world:
        (response,) = await world.responses(world.submit("e", {"X": [1]}, sequence_id=7))
        assert response.parameters == {"sequence_id": 8, "sequence_end": True}


async def test_an_answer_has_no_parameters_that_no_model_set(autojump_clock: MockClock) -> None:
    async with served(CHAIN, FUNCTIONS) as world:
        (response,) = await world.responses(world.submit("e", {"X": [1]}, sequence_id=7))
        assert (response.model_name, response.model_version, response.id) == ("e", "1", "r")
        assert response.parameters == {}


async def test_models_that_batch_and_models_that_do_not_mix(autojump_clock: MockClock) -> None:
    shapes: list[tuple[int, ...]] = []

    def note(inputs: Arrays, _: InferRequest) -> Arrays:
        shapes.append(inputs["IN"].shape)
        return {"OUT": inputs["IN"] + 1}

    configs = [
        model("batching", {"IN": [2]}, {"OUT": [2]}, max_batch_size=8),
        model("plain", {"IN": [-1, 2]}, {"OUT": [-1, 2]}),
        ensemble(
            "e",
            [
                step("batching", {"IN": "X"}, {"OUT": "t"}),
                step("plain", {"IN": "t"}, {"OUT": "u"}),
                step("batching", {"IN": "u"}, {"OUT": "Y"}),
            ],
            inputs={"X": [2]},
            outputs={"Y": [2]},
            max_batch_size=4,
        ),
    ]
    async with served(configs, {"batching": note, "plain": note}) as world:
        assert await world.ask("e", {"X": [[1, 2], [3, 4], [5, 6]]}) == {
            "Y": [[4, 5], [6, 7], [8, 9]]
        }
        assert shapes == [(3, 2)] * 3
        statistics = world.versions["e"].statistics
        assert (statistics.inference_count, statistics.execution_count) == (3, 1)
        assert list(statistics.batches) == [3]


async def test_the_steps_see_inputs_and_outputs_of_the_ensemble_reshaped(
    autojump_clock: MockClock,
) -> None:
    config = ensemble(
        "e", [step("m", {"IN": "X"}, {"OUT": "Y"})], inputs={"X": [4]}, outputs={"Y": [4]}
    )
    config.input[0].reshape = pb.ModelTensorReshape(shape=[2, 2])
    config.output[0].reshape = pb.ModelTensorReshape(shape=[2, 2])
    async with served(
        [model("m", {"IN": [2, 2]}, {"OUT": [2, 2]}), config], {"m": double}
    ) as world:
        assert await world.ask("e", {"X": [1, 2, 3, 4]}) == {"Y": [2, 4, 6, 8]}


async def test_ensembles_are_steps_of_ensembles(autojump_clock: MockClock) -> None:
    outer = ensemble(
        "outer",
        [step("e", {"X": "X"}, {"Y": "t"}), step("e", {"X": "t"}, {"Y": "Y"})],
    )
    async with served([*CHAIN, outer], FUNCTIONS) as world:
        assert await world.ask("outer", {"X": [1]}) == {"Y": [7]}
        counts = {name: each.statistics.success.count for name, each in world.versions.items()}
        assert counts == {"double": 2, "add": 2, "e": 2, "outer": 1}


async def test_compute_times_are_the_sums_of_the_steps(autojump_clock: MockClock) -> None:
    async with served(CHAIN, FUNCTIONS, seconds={"double": 1.0, "add": 2.0}) as world:
        await world.ask("e", {"X": [1]})
        statistics = world.versions["e"].statistics
        assert (statistics.success.count, statistics.success.ns) == (1, 3_000_000_000)
        assert (statistics.queue.count, statistics.queue.ns) == (1, 0)
        assert (statistics.inference_count, statistics.execution_count) == (1, 1)
        computed = [statistics.compute_input, statistics.compute_infer, statistics.compute_output]
        assert [each.ns for each in computed] == [2 * INPUT_NS, 2 * INFER_NS, 2 * OUTPUT_NS]
        batch = statistics.batches[1]
        executed = [batch.compute_input, batch.compute_infer, batch.compute_output]
        assert [each.ns for each in executed] == [each.ns for each in computed]


async def test_a_model_cannot_change_what_its_siblings_see(autojump_clock: MockClock) -> None:
    def spoil(inputs: Arrays, _: InferRequest) -> Arrays:
        with pytest.raises(ValueError, match="read-only"):
            inputs["IN"] += 1
        return {"OUT": inputs["IN"]}

    async with served(DIAMOND, {"double": spoil, "add": spoil, "sum": total}) as world:
        assert await world.ask("e", {"X": [4]}) == {"Y": [8], "t": [4]}


async def test_a_tensor_that_no_step_needs_any_more_is_let_go(autojump_clock: MockClock) -> None:
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def note(inputs: Arrays, _: InferRequest) -> Arrays:
        gc.collect()
        alive.append(sum(each() is not None for each in made))
        output = np.zeros(len(inputs["IN"]), np.int32)
        made.append(weakref.ref(output))
        return {"OUT": output}

    steps = [step("m", {"IN": f"t{n}"}, {"OUT": f"t{n + 1}"}) for n in range(4)]
    config = ensemble("e", steps, inputs={"t0": [-1]}, outputs={"t4": [-1]})
    async with served([model("m", instances=1), config], {"m": note}) as world:
        assert await world.ask("e", {"t0": [1]}) == {"t4": [0]}
        assert alive == [0, 1, 1, 1]  # what the step reads, and nothing from before
