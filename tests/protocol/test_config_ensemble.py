"""What makes the steps of an ensemble no graph; each fault names the step and the tensor."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.protocol.config_faults import checked, fault_of
from tritrio.protocol.config_ensemble import composing_models, sources_of
from tritrio.protocol.config_text import parse_model_config


def step(model: str, reads: Mapping[str, str], writes: Mapping[str, str], *, more: str = "") -> str:
    """One step in text format; maps go from names of the model to tensors."""
    fields = [f'model_name: "{model}"'] if model else []
    fields += [f'input_map {{ key: "{name}" value: "{tensor}" }}' for name, tensor in reads.items()]
    fields += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in writes.items()]
    return f"step {{ {' '.join(fields)} {more} }}"


def ensemble(
    *steps: str, inputs: tuple[str, ...] = ("X",), outputs: tuple[str, ...] = ("Y",)
) -> str:
    tensors = [f'input {{ name: "{name}" data_type: TYPE_INT32 dims: 1 }}' for name in inputs]
    tensors += [f'output {{ name: "{name}" data_type: TYPE_INT32 dims: 1 }}' for name in outputs]
    scheduling = f"ensemble_scheduling {{ {' '.join(steps)} }}"
    return f'name: "m" platform: "ensemble" {" ".join(tensors)} {scheduling}'


A = step("a", {"IN": "X"}, {"OUT": "t"})
B = step("b", {"IN": "t"}, {"OUT": "Y"})


@pytest.mark.parametrize(
    "text",
    [
        ensemble(A, B),
        ensemble(B, A),
        ensemble(step("a", {"IN": "X", "IN2": "X"}, {"OUT": "Y"})),
        ensemble(A, B, step("a", {"IN": "X"}, {"OUT": "Z"}), outputs=("Y", "Z", "t")),
        ensemble(step("a", {"IN": "X"}, {"OUT": "Y"}, more="model_version: 0")),
    ],
)
def test_steps_that_make_a_graph_pass(text: str) -> None:
    checked(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ensemble(), "ensemble_scheduling needs at least one step, got none"),
        (
            ensemble(A, step("", {"IN": "t"}, {"OUT": "Y"})),
            "step 1 (model '') needs model_name, got none",
        ),
        (ensemble(step("a", {}, {"OUT": "Y"})), "step 0 (model 'a') needs input_map, got none"),
        (ensemble(step("a", {"IN": "X"}, {})), "step 0 (model 'a') needs output_map, got none"),
        (
            ensemble(A, step("m", {"IN": "t"}, {"OUT": "Y"})),
            "step 1 (model 'm') uses the ensemble itself",
        ),
        (
            ensemble(step("a", {"IN": "X"}, {"OUT": "Y"}, more="model_version: -2")),
            "step 0 (model 'a'): model_version must be a version or -1 for the latest, got -2",
        ),
        (
            ensemble(step("a", {"IN": ""}, {"OUT": "Y"})),
            "step 0 (model 'a'): input_map has an empty name: key 'IN' value ''",
        ),
        (
            ensemble(step("a", {"IN": "X"}, {"": "Y"})),
            "step 0 (model 'a'): output_map has an empty name: key '' value 'Y'",
        ),
        (
            ensemble(A, step("b", {"IN": "X"}, {"OUT": "t"}), B),
            (
                "step 1 (model 'b'): output 'OUT' writes tensor 't', which step 0 (model 'a') "
                "writes already"
            ),
        ),
        (
            ensemble(step("a", {"IN": "X"}, {"OUT": "Y", "OUT2": "Y"})),
            (
                "step 0 (model 'a'): output 'OUT2' writes tensor 'Y', which step 0 (model 'a') "
                "writes already"
            ),
        ),
        (
            ensemble(A, step("b", {"IN": "t"}, {"OUT": "Y", "OUT2": "X"})),
            (
                "step 1 (model 'b'): output 'OUT2' writes tensor 'X', which is an input of the "
                "ensemble"
            ),
        ),
        (
            ensemble(A, step("b", {"IN": "u"}, {"OUT": "Y"})),
            (
                "step 1 (model 'b'): input 'IN' reads tensor 'u', which is neither an input of the "
                "ensemble nor written by a step"
            ),
        ),
        (ensemble(A, B, inputs=("X", "X2")), "no step uses the ensemble's input 'X2'"),
        (ensemble(A, B, outputs=("Y", "Z")), "no step writes the ensemble's output 'Z'"),
        (ensemble(A, B, outputs=("Y", "X")), "no step writes the ensemble's output 'X'"),
        (
            ensemble(A, B, step("c", {"IN": "t"}, {"OUT": "u"})),
            (
                "tensor 'u', which step 2 (model 'c') writes, is unused: no step reads it and it "
                "is no output of the ensemble"
            ),
        ),
        (
            ensemble(step("a", {"IN": "X", "IN2": "v"}, {"OUT": "Y", "OUT2": "v"})),
            "its steps wait for each other in a circle: step 0 (model 'a') -> step 0 (model 'a')",
        ),
    ],
)
def test_a_fault_of_the_steps_is_named(text: str, expected: str) -> None:
    assert fault_of(text) == expected


def test_steps_in_a_circle_are_named_in_the_order_of_the_data() -> None:
    text = ensemble(
        step("a", {"IN": "X", "IN2": "v"}, {"OUT": "t"}),
        step("b", {"IN": "t"}, {"OUT": "u"}),
        step("c", {"IN": "u"}, {"OUT": "v", "OUT2": "Y"}),
    )
    circle = fault_of(text).removeprefix("its steps wait for each other in a circle: ")
    names = [f"step {index} (model '{name}')" for index, name in enumerate("abc")]
    *steps, last = circle.split(" -> ")
    assert last == steps[0]
    start = steps.index(names[0])
    assert steps[start:] + steps[:start] == names


def test_composing_models_are_listed_once_and_steps_know_their_sources() -> None:
    config = parse_model_config(
        ensemble(A, step("a", {"IN": "t", "IN2": "X"}, {"OUT": "u"}), B), file="config.pbtxt"
    )
    assert composing_models(config) == ["a", "b"]
    assert sources_of(config, {"t": 0, "u": 1}) == {0: set(), 1: {0}, 2: {0}}
    assert composing_models(parse_model_config('name: "plain"', file="config.pbtxt")) == []
