"""A model file fills a partial configuration in, and contradictions are refused with both sides."""

from __future__ import annotations

import pytest

from tritrio.protocol.config_completion import (
    ModelSignature,
    TensorSignature,
    complete_from_signature,
)
from tritrio.protocol.config_rules import ConfigContext, normalise
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_validation import validate
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb import inference as pb

BATCHING = ModelSignature(
    [TensorSignature("x", "FP32", (-1, 3, -1))], [TensorSignature("y", "BYTES", (-1, 5))]
)
FIXED = ModelSignature(
    [TensorSignature("x", "FP32", (2, 3))], [TensorSignature("y", "INT64", (2, -1))]
)
X = 'input { name: "x" data_type: TYPE_FP32 dims: [3, -1] }'
FULL_X = 'input { name: "x" data_type: TYPE_FP32 dims: [-1, 3, -1] }'
Y = 'output { name: "y" data_type: TYPE_STRING dims: 5 }'
FULL_Y = 'output { name: "y" data_type: TYPE_STRING dims: [-1, 5] }'


def completed(
    text: str, signature: ModelSignature, *, default_max_batch_size: int = 4
) -> pb.ModelConfig:
    config = parse_model_config(f'name: "m" backend: "onnxruntime" {text}', file="config.pbtxt")
    before = bytes(config)
    done = complete_from_signature(config, signature, default_max_batch_size=default_max_batch_size)
    assert bytes(config) == before
    context = ConfigContext()
    validate(normalise(done, context=context), context=context)
    return done


def fault_of(text: str, signature: ModelSignature) -> str:
    with pytest.raises(RequestError) as caught:
        completed(text, signature)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith("model 'm': ")
    return caught.value.message.removeprefix("model 'm': ")


def expected(text: str) -> pb.ModelConfig:
    return parse_model_config(f'name: "m" backend: "onnxruntime" {text}', file="config.pbtxt")


def test_a_model_that_can_batch_gets_the_default_batch_size_and_the_dynamic_batcher() -> None:
    assert completed("", BATCHING) == expected(f"max_batch_size: 4 dynamic_batching {{}} {X} {Y}")


@pytest.mark.parametrize(
    ("text", "default", "rest"),
    [
        ("max_batch_size: 8", 4, "max_batch_size: 8 dynamic_batching {}"),
        ("max_batch_size: 1", 4, "max_batch_size: 1"),
        ("", 1, "max_batch_size: 1"),
        (
            "sequence_batching {}",
            4,
            "max_batch_size: 4 sequence_batching {}",
        ),
        (
            "dynamic_batching { preserve_ordering: true }",
            4,
            "max_batch_size: 4 dynamic_batching { preserve_ordering: true }",
        ),
    ],
)
def test_a_written_batch_size_or_scheduler_is_kept(text: str, default: int, rest: str) -> None:
    done = completed(text, BATCHING, default_max_batch_size=default)
    assert done == expected(f"{rest} {X} {Y}")


def test_a_default_batch_size_of_0_leaves_batching_off() -> None:
    done = completed("", BATCHING, default_max_batch_size=0)
    assert done == expected(f"{FULL_X} {FULL_Y}")


def test_a_model_that_cannot_batch_lists_every_dimension() -> None:
    assert completed("", FIXED) == expected(
        'input { name: "x" data_type: TYPE_FP32 dims: [2, 3] }'
        ' output { name: "y" data_type: TYPE_INT64 dims: [2, -1] }'
    )


def test_what_is_written_is_kept_and_the_missing_is_added() -> None:
    signature = ModelSignature(
        [TensorSignature("x", "FP32", (-1, -1)), TensorSignature("z", "INT8", (-1, 2))],
        [TensorSignature("y", "BOOL", (-1,))],
    )
    written = 'input { name: "x" data_type: TYPE_FP32 dims: 7 }'
    done = completed(f"{written} max_batch_size: 2 dynamic_batching {{}}", signature)
    assert done == expected(
        f"{written} max_batch_size: 2 dynamic_batching {{}}"
        ' input { name: "z" data_type: TYPE_INT8 dims: 2 }'
        ' output { name: "y" data_type: TYPE_BOOL dims: 1 reshape { shape: [] } }'
    )


def test_a_tensor_written_in_full_rank_turns_batching_off() -> None:
    assert completed(FULL_X, BATCHING) == expected(f"{FULL_X} {FULL_Y}")


@pytest.mark.parametrize(
    "text", [f"{FULL_X} {FULL_Y}", f"max_batch_size: 8 {X} {Y}", f"max_batch_size: 1 {X} {Y}"]
)
def test_a_complete_configuration_is_only_compared(text: str) -> None:
    assert completed(text, BATCHING) == expected(text)


def test_a_complete_configuration_may_leave_outputs_out() -> None:
    signature = ModelSignature(
        BATCHING.inputs, [*BATCHING.outputs, TensorSignature("more", "FP32", (-1, 1))]
    )
    text = f"{FULL_X} {FULL_Y}"
    assert completed(text, signature) == expected(text)


def test_a_scalar_is_one_number() -> None:
    signature = ModelSignature(
        [TensorSignature("x", "FP32", ())], [TensorSignature("y", "FP32", ())]
    )
    assert completed("", signature) == expected(
        'input { name: "x" data_type: TYPE_FP32 dims: 1 }'
        ' output { name: "y" data_type: TYPE_FP32 dims: 1 }'
    )


def test_an_input_with_a_default_is_optional() -> None:
    signature = ModelSignature(
        [TensorSignature("x", "FP32", (2,)), TensorSignature("w", "FP32", (3,), optional=True)],
        [TensorSignature("y", "FP32", (2,))],
    )
    assert [tensor.optional for tensor in completed("", signature).input] == [False, True]
    text = (
        'input { name: "x" data_type: TYPE_FP32 dims: 2 }'
        ' output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    )
    assert completed(text, signature) == expected(text)


def test_tensors_that_the_server_supplies_are_no_inputs() -> None:
    signature = ModelSignature(
        [
            TensorSignature("x", "FP32", (-1, 2)),
            TensorSignature("start", "INT32", (-1, 1)),
            TensorSignature("state_in", "FP32", (-1, 4)),
        ],
        [TensorSignature("y", "FP32", (-1, 2)), TensorSignature("state_out", "FP32", (-1, 4))],
    )
    text = """
      max_batch_size: 2
      sequence_batching {
        control_input {
          name: "start" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }
        }
        state { input_name: "state_in" output_name: "state_out" data_type: TYPE_FP32 dims: 4 }
      }
    """
    done = completed(text, signature)
    assert [tensor.name for tensor in done.input] == ["x"]
    assert [tensor.name for tensor in done.output] == ["y"]
    assert fault_of(text.replace('"start"', '"begin"'), signature) == (
        "control_input 'begin' is to be supplied by the server, but is no model input"
    )
    assert fault_of(text.replace("int32_false", "fp32_false"), signature) == (
        "control_input 'start': the datatype in the model is INT32, got FP32 in its configuration"
    )
    correlation = "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"
    start = "kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]"
    assert "'start': the datatype in the model is INT32, got UINT64" in fault_of(
        text.replace(start, correlation), signature
    )
    assert fault_of(text.replace("dims: 4", "dims: [4, 1]"), signature).startswith(
        "state input 'state_in': the model has 2 dims [-1,4], got 3 dims [-1,4,1]"
    )


def test_states_must_be_outputs_of_the_model_with_the_same_data_type() -> None:
    signature = ModelSignature(
        [TensorSignature("x", "FP32", (2,)), TensorSignature("s", "INT64", (3,))],
        [TensorSignature("y", "FP32", (2,)), TensorSignature("t", "INT32", (3,))],
    )
    state = 'input_name: "s" output_name: "%s" data_type: TYPE_INT64 dims: 3'
    assert fault_of(f"sequence_batching {{ state {{ {state % 't'} }} }}", signature) == (
        "state output 't': the datatype in the model is INT32, got INT64 in its configuration"
    )
    assert fault_of(f"sequence_batching {{ state {{ {state % 'u'} }} }}", signature) == (
        "state output 'u' is to be kept by the server, but is no model output"
    )


def test_a_state_that_is_listed_as_an_output_as_well_stays_one() -> None:
    signature = ModelSignature(
        [TensorSignature("x", "FP32", (2,)), TensorSignature("s", "FP32", (2,))],
        [TensorSignature("y", "FP32", (2,))],
    )
    text = (
        'output { name: "y" data_type: TYPE_FP32 dims: 2 } sequence_batching '
        '{ state { input_name: "s" output_name: "y" data_type: TYPE_FP32 dims: 2 } }'
    )
    done = completed(text, signature)
    assert [tensor.name for tensor in done.input] == ["x"]
    assert [tensor.name for tensor in done.output] == ["y"]


def test_a_ragged_input_is_flat_in_the_model() -> None:
    ragged = 'input { name: "x" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }'
    signature = ModelSignature(
        [TensorSignature("x", "FP32", (-1,)), TensorSignature("n", "FP32", (-1,))],
        [TensorSignature("y", "FP32", (-1, 1))],
    )
    text = (
        f"max_batch_size: 4 {ragged} batch_input"
        ' { target_name: "n" source_input: "x" data_type: TYPE_FP32 }'
    )
    assert [tensor.name for tensor in completed(text, signature).input] == ["x"]
    assert fault_of(f"max_batch_size: 4 {ragged}", BATCHING) == (
        "input 'x': allow_ragged_batch requires the shape [-1] in the model, which has [-1,3,-1]"
    )


def test_a_batch_input_counts_along_its_first_dimension() -> None:
    ragged = 'input { name: "x" data_type: TYPE_FP32 dims: [-1, 3] allow_ragged_batch: true }'
    batch_input = 'batch_input { %s target_name: "n" source_input: "x" data_type: TYPE_INT32 }'
    y = TensorSignature("y", "FP32", (-1, 1))

    def text(kind: str) -> str:
        return f"max_batch_size: 4 {ragged} {batch_input % f'kind: {kind}'}"

    def signature(*shape: int) -> ModelSignature:
        inputs = [TensorSignature("x", "FP32", (-1,)), TensorSignature("n", "INT32", shape)]
        return ModelSignature(inputs, [y])

    completed(text("BATCH_ITEM_SHAPE"), signature(-1, 2))
    completed(text("BATCH_ITEM_SHAPE"), signature(-1, -1))
    completed(text("BATCH_ITEM_SHAPE_FLATTEN"), signature(-1))
    completed(
        text("BATCH_ELEMENT_COUNT").replace(
            "max_batch_size: 4", 'output { name: "y" data_type: TYPE_FP32 dims: [-1, 1] }'
        ),
        signature(-1),
    )
    reshaped = text("BATCH_ITEM_SHAPE").replace("dims:", "reshape { shape: [-1, 3, 1] } dims:")
    completed(reshaped, signature(-1, 3))
    assert fault_of(text("BATCH_ITEM_SHAPE"), signature(-1, 3)).startswith(
        "batch_input 'n': the model has 2 dims [-1,3], got 2 dims [-1,2]"
    )
    assert fault_of(text("BATCH_ELEMENT_COUNT"), signature(-1, 1)).startswith(
        "batch_input 'n': the model has 2 dims [-1,1], got 1 dims [-1]"
    )


def test_an_output_that_is_cut_by_the_shapes_of_an_input_may_be_flat_in_the_model() -> None:
    signature = ModelSignature(
        [TensorSignature("x", "FP32", (-1,))], [TensorSignature("y", "FP32", (-1,))]
    )
    text = (
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [-1, 3] '
        'allow_ragged_batch: true } output { name: "y" data_type: TYPE_FP32 dims: [-1, 3] }'
    )
    scattered = 'batch_output { target_name: "y" source_input: "x" }'
    assert [tensor.dims for tensor in completed(f"{text} {scattered}", signature).output] == [
        [-1, 3]
    ]
    assert fault_of(text, signature).startswith("output 'y': the model has 1 dims [-1], got 3 dims")


@pytest.mark.parametrize(
    ("text", "signature", "message"),
    [
        (
            "max_batch_size: 8",
            FIXED,
            (
                "max_batch_size is 8, but the model does not support batching: "
                "the first dimension of 'x' [2,3] is not variable"
            ),
        ),
        (
            f"{FULL_X} max_batch_size: 2",
            BATCHING,
            (
                "input 'x': the model has 3 dims [-1,3,-1], got 4 dims [-1,-1,3,-1] "
                "in its configuration with the batch dimension"
            ),
        ),
        (
            f"{X} {Y}",
            BATCHING,
            "input 'x': the model has 3 dims [-1,3,-1], got 2 dims [3,-1] in its configuration",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [4, 1] }',
            BATCHING,
            (
                "input 'x': the model has 3 dims [-1,3,-1], got 3 dims [-1,4,1] "
                "in its configuration with the batch dimension"
            ),
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [-1, 3] }',
            FIXED,
            "input 'x': the model has 2 dims [2,3], got 2 dims [-1,3] in its configuration",
        ),
        (
            'input { name: "x" data_type: TYPE_FP16 dims: [3, 1] }',
            BATCHING,
            "input 'x': the datatype in the model is FP32, got FP16 in its configuration",
        ),
        (
            'input { name: "x" dims: [3, 1] }',
            BATCHING,
            "input 'x': the datatype in the model is FP32, got TYPE_INVALID in its configuration",
        ),
        (
            'output { name: "y" data_type: TYPE_FP32 dims: 5 }',
            BATCHING,
            "output 'y': the datatype in the model is BYTES, got FP32 in its configuration",
        ),
        (
            f'{FULL_X} {FULL_Y} input {{ name: "z" data_type: TYPE_FP32 dims: 1 }}',
            BATCHING,
            "input 'z' is not among the 1 inputs of the model, got 2 in its configuration",
        ),
        (
            f'{FULL_X} {FULL_Y} output {{ name: "z" data_type: TYPE_FP32 dims: 1 }}',
            BATCHING,
            "output 'z' is not among the 1 outputs of the model, got 2 in its configuration",
        ),
        (
            f"{FULL_X} {FULL_Y}",
            ModelSignature(
                [*BATCHING.inputs, TensorSignature("z", "FP32", (1,))], BATCHING.outputs
            ),
            "expected the 2 inputs of the model, got 1 in its configuration without 'z'",
        ),
        (
            "",
            ModelSignature([TensorSignature("x", "COMPLEX64", (1,))], []),
            "input 'x' has the datatype COMPLEX64 in the model, which cannot be served",
        ),
        (
            "",
            ModelSignature([TensorSignature("x", "FP32", (-1, 1), optional=True)], []),
            (
                "input 'x' is optional in the model, which works without batching only, "
                "but max_batch_size is 4"
            ),
        ),
    ],
)
def test_a_contradiction_states_both_sides(
    text: str, signature: ModelSignature, message: str
) -> None:
    assert fault_of(text, signature) == message
