"""Whether an ensemble fits its composing models; each fault names the ensemble and both sides."""

from __future__ import annotations

import pytest

from tests.support.ensembles import ensemble, graph_of, model, step
from tritrio.actors._ensemble_graph import ROOT
from tritrio.actors._ensemble_validation import make_graph
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb import inference as pb

A = step("a", {"IN": "X"}, {"OUT": "t"})
B = step("b", {"IN": "t"}, {"OUT": "Y"})
PAIR = ensemble("e", [A, B])


def fault_of(config: pb.ModelConfig, *models: pb.ModelConfig) -> str:
    with pytest.raises(RequestError) as caught:
        graph_of(config, *models)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith("ensemble 'e': ")
    return caught.value.message.removeprefix("ensemble 'e': ")


def typed(config: pb.ModelConfig, data_type: pb.DataType) -> pb.ModelConfig:
    """The same with inputs of another data type."""
    for tensor in config.input:
        tensor.data_type = data_type
    return config


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (
            [model("a")],
            (
                "step 1 (model 'b') needs any version of model 'b', which is not loaded: no b "
                "version at all"
            ),
        ),
        (
            [model("a", {"OTHER": [-1]}), model("b")],
            (
                "step 0 (model 'a'): tensor 'X' is mapped to input 'IN', which the model does not "
                "have; it has ['OTHER']"
            ),
        ),
        (
            [model("a"), model("b", None, {"O1": [1], "O2": [1]})],
            (
                "step 1 (model 'b'): tensor 'Y' is mapped to output 'OUT', which the model does "
                "not have; it has ['O1', 'O2']"
            ),
        ),
        (
            [model("a"), model("b", {"IN": [-1], "IN2": [-1]})],
            "step 1 (model 'b'): its required input 'IN2' is not in input_map",
        ),
        (
            [model("a"), typed(model("b"), pb.DataType.TYPE_FP32)],
            (
                "tensor 't' has data type INT32 as output 'OUT' of step 0 (model 'a'), but FP32 as "
                "input 'IN' of step 1 (model 'b')"
            ),
        ),
        (
            [typed(model("a"), pb.DataType.TYPE_STRING), model("b")],
            (
                "tensor 'X' has data type INT32 as input 'X' of the ensemble, but BYTES as input "
                "'IN' of step 0 (model 'a')"
            ),
        ),
        (
            [model("a", None, {"OUT": [2, 3]}), model("b", {"IN": [2, 4]})],
            (
                "tensor 't' has shape [2,3] as output 'OUT' of step 0 (model 'a'), but [2,4] as "
                "input 'IN' of step 1 (model 'b'); where a model batches, the batch dimension in "
                "front counts"
            ),
        ),
        (
            [model("a"), model("b", None, {"OUT": [-1]}, max_batch_size=4)],
            (
                "tensor 't' has shape [-1] as output 'OUT' of step 0 (model 'a'), but [-1,-1] as "
                "input 'IN' of step 1 (model 'b'); where a model batches, the batch dimension in "
                "front counts"
            ),
        ),
        (
            [model("a"), model("b", None, {"OUT": [-1, 2]})],
            (
                "tensor 'Y' has shape [-1,2] as output 'OUT' of step 1 (model 'b'), but [-1] as "
                "output 'Y' of the ensemble; where a model batches, the batch dimension in front "
                "counts"
            ),
        ),
    ],
)
def test_a_fault_names_step_model_and_tensor(models: list[pb.ModelConfig], expected: str) -> None:
    assert fault_of(PAIR, *models) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (7, "step 0 (model 'a') needs version 7 of model 'a', which is not loaded: no a version 7"),
        (
            0,
            (
                "step 0 (model 'a') needs version 0 of model 'a', which is not loaded: no a "
                "version 0; an absent model_version reads as 0, -1 asks for the latest"
            ),
        ),
    ],
)
def test_a_version_that_is_not_loaded_is_named(version: int, expected: str) -> None:
    config = ensemble("e", [step("a", {"IN": "X"}, {"OUT": "Y"}, version=version)])
    assert fault_of(config, model("a")) == expected


def test_steps_ask_for_the_version_they_name() -> None:
    steps = [
        step("a", {"IN": "X"}, {"OUT": "t"}, version=1),
        step("b", {"IN": "t"}, {"OUT": "Y"}, version=-1),
    ]
    assert [
        each.version for each in graph_of(ensemble("e", steps), model("a"), model("b")).steps
    ] == [
        "1",
        "",
    ]


@pytest.mark.parametrize(("size", "fits"), [(3, False), (4, True), (8, True)])
def test_a_composing_model_takes_the_batches_of_the_ensemble(size: int, *, fits: bool) -> None:
    config = ensemble("e", [step("a", {"IN": "X"}, {"OUT": "Y"})], max_batch_size=4)
    composing = model("a", max_batch_size=size)
    if fits:
        graph_of(config, composing)
    else:
        assert fault_of(config, composing) == (
            "step 0 (model 'a'): the max_batch_size of the model must be 0 or at least the 4 of "
            "the ensemble, got 3"
        )


@pytest.mark.parametrize(
    ("first", "second"),
    [([-1, 3], [2, 3]), ([2, 3], [2, -1]), ([-1, -1], [-1, -1]), ([2, 3], [2, 3])],
)
def test_variable_dimensions_fit_all(first: list[int], second: list[int]) -> None:
    graph_of(PAIR, model("a", None, {"OUT": first}), model("b", {"IN": second}))


def test_what_batches_fits_what_has_the_batch_in_its_dims() -> None:
    plain = model("a", {"IN": [-1, 2]}, {"OUT": [-1, 2]})
    batching = model("b", {"IN": [2]}, {"OUT": [2]}, max_batch_size=4)
    for size, dims in ((4, [2]), (0, [-1, 2])):
        config = ensemble("e", [A, B], inputs={"X": dims}, outputs={"Y": dims}, max_batch_size=size)
        graph_of(config, plain, batching)
    without = ensemble("e", [A, B], inputs={"X": [2]}, outputs={"Y": [2]})
    assert "has shape [2] as input 'X' of the ensemble" in fault_of(without, plain, batching)


def test_outputs_of_models_need_not_be_mapped_nor_optional_inputs() -> None:
    composing = model("a", {"IN": [-1], "IN2": [-1]}, {"OUT": [-1], "OUT2": [3]}, optional=["IN2"])
    (only,) = graph_of(ensemble("e", [step("a", {"IN": "X"}, {"OUT": "Y"})]), composing).steps
    assert only.inputs == (("IN", "X"),)
    assert only.optional == {"IN2"}


COUNT = model("count", decoupled=True)
SUM = model("sum", {"A": [-1], "B": [-1]})
TWO_STREAMS = [
    step("count", {"IN": "X"}, {"OUT": "t"}),
    step("count", {"IN": "X"}, {"OUT": "u"}),
]


def test_a_step_gets_tensors_of_one_decoupled_model() -> None:
    joined = ensemble("e", [*TWO_STREAMS, step("sum", {"A": "t", "B": "u"}, {"OUT": "Y"})])
    assert fault_of(joined, COUNT, SUM) == (
        "step 2 (model 'sum') gets tensors of different decoupled models: 't' from step 0 (model "
        "'count') and 'u' from step 1 (model 'count')"
    )
    outputs = ensemble("e", TWO_STREAMS, outputs={"t": [-1], "u": [-1]})
    assert fault_of(outputs, COUNT) == (
        "its outputs are tensors of different decoupled models: 't' from step 0 (model 'count') "
        "and 'u' from step 1 (model 'count')"
    )


def test_origins_follow_the_data_whatever_the_order_of_the_steps() -> None:
    steps = [
        step("sum", {"A": "u", "B": "X"}, {"OUT": "Y"}),
        step("a", {"IN": "t"}, {"OUT": "u"}),
        step("count", {"IN": "v"}, {"OUT": "t"}),
        step("a", {"IN": "X"}, {"OUT": "v"}),
    ]
    graph = graph_of(ensemble("e", steps, decoupled=True), SUM, COUNT, model("a"))
    assert [each.origin for each in graph.steps] == [2, 2, ROOT, ROOT]
    assert [graph.origin_of(name) for name in ("X", "v", "t", "u", "Y")] == [ROOT, ROOT, 2, 2, 2]


def test_outputs_have_the_labels_of_the_model_unless_they_name_their_own() -> None:
    config = ensemble(
        "e", [step("a", {"IN": "X"}, {"OUT": "Y", "OUT2": "Z"})], outputs={"Y": [-1], "Z": [-1]}
    )
    config.output[1].label_filename = "own.txt"
    spec = ModelSpec.from_config(config, 1)
    spec.outputs["Z"].labels = ("mine",)
    composing = ModelSpec.from_config(model("a", None, {"OUT": [-1], "OUT2": [-1]}), 1)
    for output in composing.outputs.values():
        output.labels = ("cat", "dog")
    make_graph(config, spec, lambda *_: composing)
    assert spec.outputs["Y"].labels == ("cat", "dog")
    assert spec.outputs["Z"].labels == ("mine",)
