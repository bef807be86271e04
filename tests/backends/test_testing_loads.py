"""Configurations that the test backends refuse, each a change of an example of their page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.builders import loaded, source_in
from tests.support.testing_models import EXAMPLES, example_config
from tritrio.backends.registry import get_backend
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import DataType, ModelConfig


def load(directory: Path, config: ModelConfig) -> None:
    loaded(get_backend(config.backend), source_in(directory), config)


NEEDS = {
    "custom_sequence_int32": "sequence START, READY",
    "custom_dyna_sequence_int32": "dyna_sequence START, END, READY, CORRID",
    "single_state_buffer": "implicit_state START, END, READY",
}


@pytest.mark.parametrize("name", list(NEEDS))
def test_a_model_without_its_controls_cannot_be_loaded(tmp_path: Path, name: str) -> None:
    config = example_config(name)
    kind, _, controls = NEEDS[name].partition(" ")
    assert config.sequence_batching is not None
    config.sequence_batching.control_input = config.sequence_batching.control_input[:1]
    for got in ("START", "none"):
        with pytest.raises(RequestError) as caught:
            load(tmp_path, config)
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert caught.value.message.endswith(
            f": the backend '{kind}' wants sequence_batching with the control inputs {controls}, "
            f"got {got}"
        )
        config.sequence_batching = None


def test_a_correlation_id_of_another_type_cannot_be_added(tmp_path: Path) -> None:
    config = example_config("custom_dyna_sequence_int32")
    assert config.sequence_batching is not None
    config.sequence_batching.control_input[3].control[0].data_type = DataType.TYPE_INT32
    with pytest.raises(RequestError) as caught:
        load(tmp_path, config)
    assert caught.value.message == (
        "model 'custom_dyna_sequence_int32': the backend 'dyna_sequence' wants the correlation id "
        "as 'CORRID' of TYPE_UINT64 or TYPE_STRING, got 'CORRID' INT32"
    )


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "custom_zero_1_float32"])
def test_a_model_with_other_tensors_cannot_be_loaded(tmp_path: Path, name: str) -> None:
    config = example_config(name)
    config.output[0].data_type = DataType.TYPE_FP32
    with pytest.raises(RequestError) as caught:
        load(tmp_path, config)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert f"the backend '{config.backend}' wants the output vectors '" in caught.value.message
    assert "INT32 without reshape, got '" in caught.value.message


def test_an_iterative_model_that_is_not_decoupled_cannot_be_loaded(tmp_path: Path) -> None:
    config = example_config("iterative_sequence")
    config.model_transaction_policy = None
    with pytest.raises(RequestError, match="'iterative_sequence' wants model_tr"):
        load(tmp_path, config)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("repeat_int32", "WAIT"),
        ("square_int32", "IN"),
        ("iterative_sequence", "INPUT"),
        ("single_state_buffer", "INPUT"),
        ("single_state_buffer", "TEST_CASE"),
    ],
)
def test_an_input_of_one_element_has_no_other_dims(tmp_path: Path, name: str, tensor: str) -> None:
    config = example_config(name)
    (changed,) = [each for each in config.input if each.name == tensor]
    changed.dims = [-1]
    with pytest.raises(RequestError) as caught:
        load(tmp_path, config)
    assert caught.value.message == (
        f"model '{name}': the backend '{config.backend}' wants dims [1] for the input "
        f"'{tensor}', got [-1]"
    )


@pytest.mark.parametrize(
    ("datatype", "dims", "got"),
    [(DataType.TYPE_FP32, [1], "FP32 [1]"), (DataType.TYPE_INT32, [2], "INT32 [2]")],
)
def test_a_state_that_cannot_be_added_to_the_input_is_refused(
    tmp_path: Path, datatype: DataType, dims: list[int], got: str
) -> None:
    config = example_config("single_state_buffer")
    assert config.sequence_batching is not None
    (state,) = config.sequence_batching.state
    state.data_type, state.dims = datatype, dims
    with pytest.raises(RequestError) as caught:
        load(tmp_path, config)
    assert caught.value.message == (
        "model 'single_state_buffer': the backend 'implicit_state' wants states of TYPE_INT32 with "
        f"dims [1], got 'OUTPUT_STATE' {got}"
    )
