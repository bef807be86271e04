"""The JSON form prints everything that has a value, and reads back without loss."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from tritonclient.grpc import model_config_pb2 as google

from tests.protocol.config_messages import messages
from tritrio.protocol.config_json import (
    JSON_MAX_BYTES,
    model_config_from_dict,
    model_config_from_json,
    model_config_to_dict,
)
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb import inference as pb

RANDOM = settings(
    derandomize=True,
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def error_of(data: object) -> str:
    with pytest.raises(RequestError) as caught:
        model_config_from_dict(data)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def as_json(config: pb.ModelConfig) -> bytes:
    return orjson.dumps(model_config_to_dict(config))


def test_an_empty_config_prints_every_scalar_list_and_map() -> None:
    assert model_config_to_dict(pb.ModelConfig()) == {
        "name": "",
        "platform": "",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "backend": "",
        "batch_input": [],
        "batch_output": [],
        "runtime": "",
    }


def test_enums_are_names_and_64_bit_integers_are_numbers() -> None:
    config = pb.ModelConfig(
        input=[pb.ModelInput(name="x", data_type=pb.DataType.TYPE_FP32, dims=[1 << 60, -1])],
        dynamic_batching=pb.ModelDynamicBatching(
            priority_levels=1 << 63, priority_queue_policy={1 << 63: pb.ModelQueuePolicy()}
        ),
        parameters={"k": pb.ModelParameter(string_value="v")},
    )
    data = model_config_to_dict(config)
    assert data["input"] == [
        {
            "name": "x",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [1 << 60, -1],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert data["dynamic_batching"] == {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 1 << 63,
        "default_priority_level": 0,
        "priority_queue_policy": {
            str(1 << 63): {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": 0,
                "allow_timeout_override": False,
                "max_queue_size": 0,
            }
        },
    }
    assert data["parameters"] == {"k": {"string_value": "v"}}
    assert "sequence_batching" not in data
    assert "optimization" not in data


def test_an_empty_submessage_that_is_set_stays_set() -> None:
    config = pb.ModelConfig(
        input=[pb.ModelInput(reshape=pb.ModelTensorReshape())],
        sequence_batching=pb.ModelSequenceBatching(),
    )
    data = model_config_to_dict(config)
    assert data["input"][0]["reshape"] == {"shape": []}
    assert data["sequence_batching"]["control_input"] == []
    assert model_config_from_dict(data) == config


def test_a_member_of_a_oneof_is_printed_even_when_it_is_the_default() -> None:
    sample = pb.ModelWarmupInput(zero_data=False)
    config = pb.ModelConfig(model_warmup=[pb.ModelWarmup(inputs={"x": sample})])
    printed = model_config_to_dict(config)["model_warmup"][0]["inputs"]["x"]
    assert printed == {"data_type": "TYPE_INVALID", "dims": [], "zero_data": False}


def test_a_float32_prints_the_digits_that_were_written() -> None:
    config = model_config_from_json(
        '{"sequence_batching":{"direct":{"minimum_slot_utilization":0.1}}}'
    )
    assert b'"minimum_slot_utilization":0.1}' in as_json(config)
    assert pb.ModelConfig.parse(bytes(config)) == config


@pytest.mark.slow
@RANDOM
@given(messages(google.ModelConfig))
def test_json_and_back_loses_nothing(message: Any) -> None:
    config = pb.ModelConfig.parse(message.SerializeToString())
    assert model_config_from_json(as_json(config)) == config


@pytest.mark.slow
@RANDOM
@given(messages(google.ModelConfig))
def test_google_reads_the_json_as_the_same_message(message: Any) -> None:
    config = pb.ModelConfig.parse(message.SerializeToString())
    parsed = json_format.Parse(as_json(config), google.ModelConfig())
    assert parsed == message


@pytest.mark.slow
@RANDOM
@given(messages(google.ModelConfig))
def test_the_json_that_google_prints_is_read_as_the_same_message(message: Any) -> None:
    config = pb.ModelConfig.parse(message.SerializeToString())
    assert model_config_from_json(json_format.MessageToJson(message)) == config


@pytest.mark.parametrize("dims", [["3", "-1"], [3, -1], [3.0, -1.0]])
def test_int64_is_read_from_strings_and_numbers(dims: list[object]) -> None:
    assert model_config_from_dict({"input": [{"dims": dims}]}).input[0].dims == [3, -1]


def test_names_in_camel_case_and_null_are_read() -> None:
    config = model_config_from_dict({"maxBatchSize": 4, "dynamicBatching": None, "input": None})
    assert config == pb.ModelConfig(max_batch_size=4)


def test_a_python_keyword_is_a_field_name_like_any_other() -> None:
    data = {"instance_group": [{"rate_limiter": {"resources": [{"name": "r", "global": True}]}}]}
    config = model_config_from_dict(data)
    assert config.instance_group[0].rate_limiter is not None
    assert config.instance_group[0].rate_limiter.resources[0].global_ is True


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected an object, got a list"),
        ("{}", 'expected an object, got "{}"'),
        ({"nmae": 1}, "expected a field of ModelConfig, got 'nmae'; did you mean 'name'?"),
        (
            {"input": [{}, {"dimz": []}]},
            "expected a field of ModelInput, got 'input[1].dimz'; did you mean 'dims'?",
        ),
        (
            {"input": [{"data_type": "FP32"}]},
            (
                "expected one of the names of DataType for 'input[0].data_type', got \"FP32\""
                "; did you mean 'TYPE_FP32'?"
            ),
        ),
        (
            {"output": [{"data_type": "BYTES"}]},
            (
                "expected one of the names of DataType for 'output[0].data_type', got \"BYTES\""
                "; did you mean 'TYPE_STRING'?"
            ),
        ),
        ({"input": {}}, "expected a list for 'input', got an object"),
        ({"input": [None]}, "expected an object for 'input[0]', got null"),
        (
            {"parameters": [{"key": "k", "value": {"string_value": "v"}}]},
            "expected an object from each key to its value for 'parameters', got a list",
        ),
        (
            {"parameters": {"k": "v"}},
            "expected an object for 'parameters.k', got \"v\"",
        ),
        ({"name": 3}, "expected a string for 'name', got 3"),
        (
            {"max_batch_size": True},
            "expected an integer from -2147483648 to 2147483647 for 'max_batch_size', got true",
        ),
        (
            {"max_batch_size": 1.5},
            "expected an integer from -2147483648 to 2147483647 for 'max_batch_size', got 1.5",
        ),
        (
            {"max_batch_size": 1 << 31},
            (
                "expected an integer from -2147483648 to 2147483647 for 'max_batch_size'"
                ", got 2147483648"
            ),
        ),
        (
            {"response_cache": {"enable": 1}},
            "expected true or false for 'response_cache.enable', got 1",
        ),
        (
            {"dynamic_batching": {}, "sequence_batching": {}},
            "expected only one of 'dynamic_batching' and 'sequence_batching', got both",
        ),
        (
            {"max_batch_size": 1, "maxBatchSize": 1},
            "expected only one of 'max_batch_size' and 'maxBatchSize', got both",
        ),
        (
            {"dynamic_batching": {"priority_queue_policy": {"x": {}}}},
            (
                "expected an integer from 0 to 18446744073709551615 for"
                " 'dynamic_batching.priority_queue_policy', got \"x\""
            ),
        ),
        (
            {"sequence_batching": {"direct": {"minimum_slot_utilization": "1"}}},
            (
                "expected a number for"
                " 'sequence_batching.direct.minimum_slot_utilization', got \"1\""
            ),
        ),
        ({"name": ["x" * 9000]}, "expected a string for 'name', got a list"),
    ],
)
def test_a_fault_names_the_path(data: object, message: str) -> None:
    assert error_of(data) == f"model configuration: {message}"


def test_what_is_no_json_is_an_invalid_argument() -> None:
    with pytest.raises(RequestError, match="expected a model configuration as JSON") as caught:
        model_config_from_json(b'{"name": ')
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_a_json_text_beyond_the_bound_is_refused() -> None:
    assert model_config_from_json("{}" + " " * (JSON_MAX_BYTES - 2)) == pb.ModelConfig()
    with pytest.raises(RequestError, match="of at most 4194304 bytes, got 4194305"):
        model_config_from_json("{}" + " " * (JSON_MAX_BYTES - 1))
