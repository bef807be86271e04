"""A configuration that is written as text is the same when it is read, by us and by Google."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from tritonclient.grpc import model_config_pb2 as google

from tests.protocol.config_messages import messages
from tests.protocol.test_config_text import FULL
from tritrio.protocol.config_json import model_config_from_dict, model_config_to_dict
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_text_writer import model_config_to_text
from tritrio.protocol.pb import inference as pb


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages(google.ModelConfig))
def test_a_written_configuration_reads_as_it_was(message: Any) -> None:
    config = pb.ModelConfig.parse(message.SerializeToString())
    text = model_config_to_text(config)
    assert bytes(parse_model_config(text, file="m/config.pbtxt")) == bytes(config)
    assert text_format.Parse(text, google.ModelConfig()) == message


def test_defaults_are_left_out_and_set_messages_are_kept() -> None:
    config = pb.ModelConfig(
        name='a "b"\n',
        max_batch_size=8,
        input=[pb.ModelInput(name="x", data_type=pb.DataType.TYPE_FP32, dims=[-1, 2])],
        dynamic_batching=pb.ModelDynamicBatching(),
        parameters={"key": pb.ModelParameter(string_value="value")},
    )
    assert model_config_to_text(config) == (
        'name: "a \\"b\\"\\012"\n'
        "max_batch_size: 8\n"
        "input {\n"
        '  name: "x"\n'
        "  data_type: TYPE_FP32\n"
        "  dims: [ -1, 2 ]\n"
        "}\n"
        "dynamic_batching { }\n"
        "parameters {\n"
        '  key: "key"\n'
        "  value {\n"
        '    string_value: "value"\n'
        "  }\n"
        "}\n"
    )


def test_a_configuration_goes_from_text_to_json_and_back_without_loss() -> None:
    config = parse_model_config(FULL, file="m/config.pbtxt")
    assert config.input[0].reshape == pb.ModelTensorReshape(shape=[])
    through_json = model_config_from_dict(model_config_to_dict(config))
    assert through_json == config
    assert parse_model_config(model_config_to_text(through_json), file="m/config.pbtxt") == config
