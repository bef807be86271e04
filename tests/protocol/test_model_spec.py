from __future__ import annotations

from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb.inference import (
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    ModelSequenceBatchingControl,
    ModelSequenceBatchingControlInput,
    ModelSequenceBatchingControlKind,
    ModelSequenceBatchingState,
    ModelTensorReshape,
    ModelTransactionPolicy,
)


def test_a_batching_model_has_a_batch_dimension_in_front_of_its_shapes() -> None:
    config = ModelConfig(
        name="m",
        backend="identity",
        max_batch_size=8,
        input=[
            ModelInput(
                name="a",
                data_type=DataType.TYPE_FP32,
                dims=[2, -1],
                reshape=ModelTensorReshape(shape=[-1, 2]),
                allow_ragged_batch=True,
            ),
            ModelInput(name="b", data_type=DataType.TYPE_STRING, dims=[1], optional=True),
        ],
        output=[
            ModelOutput(
                name="c", data_type=DataType.TYPE_BF16, dims=[4], label_filename="labels.txt"
            )
        ],
        model_transaction_policy=ModelTransactionPolicy(decoupled=True),
    )

    spec = ModelSpec.from_config(config, 3)

    assert (spec.name, spec.version, spec.platform) == ("m", "3", "identity")
    assert spec.max_batch_size == 8
    assert spec.decoupled
    assert list(spec.inputs) == ["a", "b"]
    a, b = spec.inputs.values()
    assert (a.datatype, a.dims, a.shape, a.reshape) == ("FP32", (2, -1), (-1, 2, -1), (-1, 2))
    assert a.allow_ragged_batch
    assert (b.datatype, b.optional, b.reshape) == ("BYTES", True, None)
    assert spec.required_inputs == {"a"}
    c = spec.outputs["c"]
    assert (c.datatype, c.dims, c.shape, c.label_filename) == ("BF16", (4,), (-1, 4), "labels.txt")


def test_a_platform_wins_over_the_backend_and_shapes_without_batching_are_the_dims() -> None:
    config = ModelConfig(
        name="m",
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        input=[ModelInput(name="a", data_type=DataType.TYPE_INT8, dims=[])],
    )

    spec = ModelSpec.from_config(config, 1)

    assert spec.platform == "onnxruntime_onnx"
    assert spec.inputs["a"].shape == ()
    assert not spec.decoupled
    assert spec.correlation_id is None
    assert (spec.sequences, spec.iterative, spec.states) == (False, False, {})


def test_the_correlation_id_control_is_kept_with_its_datatype() -> None:
    control = ModelSequenceBatchingControl(
        kind=ModelSequenceBatchingControlKind.CONTROL_SEQUENCE_CORRID,
        data_type=DataType.TYPE_STRING,
    )
    config = ModelConfig(
        name="m",
        sequence_batching=ModelSequenceBatching(
            control_input=[ModelSequenceBatchingControlInput(name="CORRID", control=[control])]
        ),
    )

    spec = ModelSpec.from_config(config, 1)

    assert spec.correlation_id == ("CORRID", "BYTES")
    assert "CORRID" not in spec.inputs


def test_states_are_kept_by_output_name_with_one_row_if_the_model_batches() -> None:
    state = ModelSequenceBatchingState(
        input_name="SUM", output_name="NEXT", data_type=DataType.TYPE_STRING, dims=[-1, 2]
    )
    config = ModelConfig(
        name="m",
        max_batch_size=4,
        sequence_batching=ModelSequenceBatching(state=[state], iterative_sequence=True),
    )

    spec = ModelSpec.from_config(config, 1)

    assert (spec.sequences, spec.iterative) == (True, True)
    assert list(spec.states) == ["NEXT"]
    kept = spec.states["NEXT"]
    assert (kept.input_name, kept.output_name, kept.datatype) == ("SUM", "NEXT", "BYTES")
    assert (kept.dims, kept.shape) == ((-1, 2), (1, -1, 2))
    config.max_batch_size = 0
    assert ModelSpec.from_config(config, 1).states["NEXT"].shape == (-1, 2)
