from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.backends.builders import (
    config_of,
    execute,
    floats,
    loaded,
    outputs_of,
    request_of,
    source_in,
)
from tritrio.backends.base import Batch, InstancePlace, ModelInstance
from tritrio.backends.metric_store import MetricKind, MetricStore
from tritrio.backends.registry import get_backend
from tritrio.backends.server_link import ServerLink
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import ModelConfig

IDENTITY = get_backend("identity")
INPUTS = [("INPUT0", "FP32", [-1]), ("INPUT1", "BYTES", [1])]
OUTPUTS = [("OUTPUT0", "FP32", [-1]), ("OUTPUT1", "BYTES", [1])]


def test_inputs_come_back_as_the_outputs_of_their_numbers_without_a_copy(tmp_path: Path) -> None:
    instance = loaded(IDENTITY, source_in(tmp_path, version=3), config_of(INPUTS, OUTPUTS))
    request = request_of(floats(1, 2), np.array([[b"a\0b"]], np.object_), request_id="7")
    (response,) = execute(instance, request)
    outputs = outputs_of(response)
    assert list(outputs) == ["OUTPUT0", "OUTPUT1"]
    assert outputs["OUTPUT0"].tolist() == [[1, 2]]
    assert outputs["OUTPUT1"].tolist() == [[b"a\0b"]]
    assert response.outputs[0].raw is request.inputs["INPUT0"].raw
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")
    instance.unload()


def test_only_the_outputs_asked_for_come_back(tmp_path: Path) -> None:
    instance = loaded(IDENTITY, source_in(tmp_path), config_of(INPUTS, OUTPUTS))
    text = np.array([["x"]], np.object_)
    asked = request_of(floats(1), text, asked=["OUTPUT1"])
    everything = request_of(floats(1), text)
    first, second = execute(instance, asked, everything)
    assert list(outputs_of(first)) == ["OUTPUT1"]
    assert list(outputs_of(second)) == ["OUTPUT0", "OUTPUT1"]


def test_an_optional_input_left_out_leaves_its_output_out(tmp_path: Path) -> None:
    instance = loaded(IDENTITY, source_in(tmp_path), config_of(INPUTS, OUTPUTS))
    (response,) = execute(instance, request_of(floats(1)))
    assert list(outputs_of(response)) == ["OUTPUT0"]


def test_an_output_with_a_reshape_comes_back_in_the_clients_dims(tmp_path: Path) -> None:
    config = config_of(
        [("INPUT0", "FP32", [4])],
        [("OUTPUT0", "FP32", [2, 2])],
        max_batch_size=8,
        output_reshapes={"OUTPUT0": [4]},
    )
    (response,) = execute(
        loaded(IDENTITY, source_in(tmp_path), config), request_of(floats(1, 2, 3, 4))
    )
    assert outputs_of(response)["OUTPUT0"].tolist() == [[[1, 2], [3, 4]]]


def test_responses_carry_a_parameter_of_each_type(tmp_path: Path) -> None:
    instance = loaded(IDENTITY, source_in(tmp_path), config_of(INPUTS[:1], OUTPUTS[:1]))
    (response,) = execute(instance, request_of(floats(1)))
    assert response.parameters == {
        "param0": "an example string parameter",
        "param1": 42,
        "param2": False,
        "param3": 123.123,
    }


def test_an_execution_takes_the_delay_configured(tmp_path: Path) -> None:
    config = config_of(INPUTS[:1], OUTPUTS[:1], execute_delay_ms="3", creation_delay_sec="0")
    instance = loaded(IDENTITY, source_in(tmp_path), config)
    batch = Batch([request_of(floats(1))])
    instance.execute(batch)
    assert batch.infer_end_ns - batch.infer_start_ns >= 3_000_000


def counting(directory: Path, store: MetricStore, number: int) -> ModelInstance:
    server = cast("ServerLink", SimpleNamespace(metrics=store))
    place = InstancePlace(f"m_{number}", number=number, server=server)
    config = config_of(INPUTS, OUTPUTS)
    instance = IDENTITY.create_instance(source_in(directory, version=3), config, place)
    instance.load()
    return instance


def test_the_bytes_of_all_inputs_are_counted_by_model_and_version(tmp_path: Path) -> None:
    store = MetricStore()
    for number in range(2):
        text = np.array([[b"abc"]], np.object_)
        execute(counting(tmp_path, store, number), request_of(floats(1, 2), text))
    ((name, _, kind, ((labels, metric),)),) = store.families()
    assert (name, kind) == ("input_byte_size_counter", MetricKind.COUNTER)
    assert labels == (("model", "m"), ("version", "3"))
    assert metric.value == 2 * (8 + 4 + 3)


def test_a_counter_whose_name_is_taken_cannot_be_made(tmp_path: Path) -> None:
    store = MetricStore()
    store.declare("input_byte_size_counter", "", MetricKind.GAUGE)
    with pytest.raises(RequestError, match=r"model 'm': .*input_byte_size_counter"):
        counting(tmp_path, store, 0)


@pytest.mark.parametrize(
    ("name", "multiplier", "least_ms"),
    [("m_0_0", "3", 20), ("m_0_1", "3", 60), ("m_0_2", "3", 120), ("m_0_2", "0", 20)],
)
def test_an_instance_may_be_as_often_slower_as_its_number_says(
    tmp_path: Path, name: str, multiplier: str, least_ms: int
) -> None:
    config = config_of(
        INPUTS[:1],
        OUTPUTS[:1],
        execute_delay_ms="20",
        instance_wise_delay_multiplier=multiplier,
    )
    instance = loaded(IDENTITY, source_in(tmp_path), config, name=name)
    batch = Batch([request_of(floats(1))])
    instance.execute(batch)
    took_ms = (batch.infer_end_ns - batch.infer_start_ns) / 1e6
    assert took_ms >= least_ms


def test_a_delay_ends_when_nobody_waits_for_the_batch(tmp_path: Path) -> None:
    config = config_of(INPUTS[:1], OUTPUTS[:1], execute_delay_ms="3600000")
    request = request_of(floats(1))
    request.cancelled = True
    (response,) = execute(loaded(IDENTITY, source_in(tmp_path), config), request)
    assert response.error is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            config_of([("X", "FP32", [1])], OUTPUTS[:1]),
            (
                "model 'm': an identity model pairs each input 'INPUT<i>' with an output "
                "'OUTPUT<i>' of the same data_type, got input 'X' without one"
            ),
        ),
        (
            config_of(INPUTS[:1], [("OUTPUT0", "FP64", [1])]),
            (
                "model 'm': an identity model pairs each input 'INPUT<i>' with an output "
                "'OUTPUT<i>' of the same data_type, got input 'INPUT0' without one"
            ),
        ),
        (
            config_of(INPUTS[:1], OUTPUTS),
            (
                "model 'm': an identity model pairs each output 'OUTPUT<i>' with an input "
                "'INPUT<i>', got output 'OUTPUT1' without one"
            ),
        ),
        *[
            (
                config_of(INPUTS[:1], OUTPUTS[:1], execute_delay_ms=text),
                (
                    "model 'm': parameter 'execute_delay_ms' must be a whole number from 0 to "
                    f"3600000, got '{text}'"
                ),
            )
            for text in ("-1", "", "1.5", "3600001", "٣", "-", "99999999999999999999999")
        ],
    ],
)
def test_a_configuration_that_is_no_identity_cannot_be_loaded(
    tmp_path: Path, config: ModelConfig, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        loaded(IDENTITY, source_in(tmp_path), config)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, message)
