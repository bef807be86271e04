"""config.pbtxt is read as protobuf text format, and every fault has a place and a hint."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings, strategies as st
from tritonclient.grpc import model_config_pb2 as google

from tests.protocol.config_messages import messages
from tritrio.protocol.config_text import (
    CONFIG_MAX_BYTES,
    ConfigSyntaxError,
    parse_model_config,
)
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.pb import inference as pb

FULL = """
# A comment
name: "resnet" platform: 'onnxruntime_onnx'
max_batch_size: 8,
input [
  { name: "INPUT" data_type: TYPE_FP32 dims: [ 3, 224, -1 ] reshape: { shape: [] } },
  { name: "OPT" data_type: 13 dims: 1 dims: 2 optional: true; allow_ragged_batch: t }
]
output < name: "OUT" 'PUT' data_type: TYPE_INT64 dims: [ ] dims: 0x10 dims: 010 >
version_policy: { specific { versions: [1, 9223372036854775807] } }
instance_group [ { kind: KIND_CPU count: 2
  rate_limiter { resources { name: "R" global: true } } } ]
parameters { key: "a" value: { string_value: "b" } }
parameters: [
  { key: "c" value { string_value: "\\101\\x42\\u00e9\\U0001F600\\n\\"" } },
  { key: "d" }
]
metric_tags { key: "k" value: "v" }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  priority_queue_policy { key: 18446744073709551615 value { timeout_action: DELAY } }
}
optimization { priority: PRIORITY_MAX cuda { graph_spec { input { key: "x" value { dim: 1 } } } } }
model_metrics {
  metric_control { histogram_options { buckets: [ .5, 1., 1e3, 2.5f, 7, inf, -inf, 1e999 ] } }
}
"""


def as_google(config: pb.ModelConfig) -> Any:
    return google.ModelConfig.FromString(bytes(config))


def parse(text: str | bytes) -> pb.ModelConfig:
    return parse_model_config(text, file="m/config.pbtxt")


def outcome_of(text: str | bytes) -> pb.ModelConfig | str:
    try:
        return parse(text)
    except ConfigSyntaxError as error:
        return error.message


def error_of(text: str | bytes) -> str:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse(text)
    assert caught.value.code is ErrorCode.INVALID_ARG
    prefix = "m/config.pbtxt:"
    assert caught.value.message.startswith(prefix)
    return caught.value.message.removeprefix(prefix)


def test_a_config_with_every_form_reads_as_google_reads_it() -> None:
    config = parse(FULL)
    assert as_google(config) == text_format.Parse(FULL, google.ModelConfig())
    assert config.name == "resnet"
    assert config.output[0].name == "OUTPUT"
    assert config.output[0].dims == [16, 8]
    assert config.parameters["c"].string_value == 'ABé😀\n"'
    assert config.input[0].reshape == pb.ModelTensorReshape()


@pytest.mark.slow
@settings(
    derandomize=True,
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    message=messages(google.ModelConfig),
    one_line=st.booleans(),
    short=st.booleans(),
    pointy=st.booleans(),
    utf8=st.booleans(),
)
def test_whatever_google_prints_reads_as_the_same_message(
    message: Any, one_line: bool, short: bool, pointy: bool, utf8: bool
) -> None:
    text = text_format.MessageToString(
        message,
        as_one_line=one_line,
        use_short_repeated_primitives=short,
        pointy_brackets=pointy,
        as_utf8=utf8,
    )
    assert as_google(parse(text)) == message


@pytest.mark.slow
@settings(
    derandomize=True,
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(message=messages(google.ModelConfig), data=st.data())
def test_a_damaged_config_is_judged_as_google_judges_it(message: Any, data: st.DataObject) -> None:
    words = text_format.MessageToString(message, as_one_line=True).split(" ")
    at = data.draw(st.integers(0, len(words) - 1))
    kept = data.draw(st.integers(0, 1))
    spare = st.sampled_from([*words, "[", "]", "{", "}", "<", ">", ",", ";", ":", "1", "-1", "''"])
    words[at : at + 1] = [*words[at : at + kept], *data.draw(st.lists(spare, max_size=2))]
    text = " ".join(words)
    outcome = outcome_of(text)
    try:
        expected = text_format.Parse(text, google.ModelConfig())
    except text_format.ParseError:
        assert isinstance(outcome, str)
    else:
        if isinstance(outcome, str):  # a default given twice is refused here on purpose
            assert "only once" in outcome
        else:
            assert as_google(outcome) == expected


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_gives_a_config_or_a_syntax_error(text: str | bytes) -> None:
    outcome = outcome_of(text)
    assert isinstance(outcome, pb.ModelConfig) or outcome.startswith("m/config.pbtxt:")


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", b"\xef\xbb\xbf", "\ufeff# x\r\n"])
def test_an_empty_file_is_a_config_of_defaults(text: str | bytes) -> None:
    assert parse(text) == pb.ModelConfig()


def test_a_byte_order_mark_and_crlf_change_nothing() -> None:
    plain = 'name: "m"\ninput {\n name: "x"\n}\n'
    assert parse(b"\xef\xbb\xbf" + plain.replace("\n", "\r\n").encode()) == parse(plain)


def test_an_enum_by_number_may_be_unknown() -> None:
    assert parse("input { data_type: 99 }").input[0].data_type == 99
    assert parse("input { data_type: -3 }").input[0].data_type == -3


@pytest.mark.parametrize("word", ["nan", "NaN", "-nan"])
def test_nan_is_a_float(word: str) -> None:
    text = f"sequence_batching {{ direct {{ minimum_slot_utilization: {word} }} }}"
    batching = parse(text).sequence_batching
    assert batching is not None
    assert batching.direct is not None
    assert math.isnan(batching.direct.minimum_slot_utilization)


def test_a_float_is_rounded_to_what_the_wire_holds() -> None:
    text = "sequence_batching { direct { minimum_slot_utilization: 0.1 } }"
    config = parse(text)
    assert pb.ModelConfig.parse(bytes(config)) == config


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true", True),
        ("True", True),
        ("t", True),
        ("1", True),
        ("false", False),
        ("False", False),
        ("f", False),
        ("0", False),
    ],
)
def test_booleans_have_four_spellings_each(value: str, expected: bool) -> None:
    assert parse(f"input {{ optional: {value} }}").input[0].optional is expected


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TYPE_BYTES", "TYPE_STRING"),
        ("BYTES", "TYPE_STRING"),
        ("TYPE_FLOAT", "TYPE_FP32"),
        ("TYPE_FLOAT16", "TYPE_FP16"),
        ("TYPE_DOUBLE", "TYPE_FP64"),
        ("TYPE_HALF", "TYPE_FP16"),
        ("TYPE_BFLOAT16", "TYPE_BF16"),
        ("TYPE_BOOLEAN", "TYPE_BOOL"),
        ("TYPE_INT", "TYPE_INT32"),
        ("TYPE_LONG", "TYPE_INT64"),
        ("FP32", "TYPE_FP32"),
        ("STRING", "TYPE_STRING"),
    ],
)
def test_a_data_type_by_another_name_is_known(name: str, meant: str) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_model_config(f"input {{ data_type: {name} }}", file="f")
    assert caught.value.message.endswith(f"got '{name}'; did you mean '{meant}'?")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_batch_size: ${n}",
            (
                "1:17: expected a value, got the placeholder '${n}'"
                "; fill the template in before it is served"
            ),
        ),
        (
            'name: "m"\ninput {\n  data_type: TYPE_FLOAT32\n}',
            (
                "3:14: expected one of the names of DataType for 'data_type', got 'TYPE_FLOAT32'"
                "; did you mean 'TYPE_FP32'?"
            ),
        ),
        (
            "input {\n  nmae: 1 }",
            "2:3: expected a field of 'input', got 'nmae'; did you mean 'name'?",
        ),
        (
            "max_batch_sizes: 1",
            (
                "1:1: expected a field of ModelConfig, got 'max_batch_sizes'"
                "; did you mean 'max_batch_size'?"
            ),
        ),
        ('name: "a"\nname: "b"', "2:1: expected 'name' only once, got it again"),
        ('name: ""\nname: ""', "2:1: expected 'name' only once, got it again"),
        (
            "optimization {} optimization {}",
            "1:17: expected 'optimization' only once, got it again",
        ),
        (
            "dynamic_batching {} sequence_batching {}",
            (
                "1:21: expected one field of"
                " scheduling_choice, got 'sequence_batching' after 'dynamic_batching'"
            ),
        ),
        (
            "input { dims: [ 1, 2, ] }",
            ("1:23: expected a value, got ']'; a list has no comma after its last value"),
        ),
        ("input { dims: [ 1 2 ] }", "1:19: expected ',' or ']' in the list of 'dims', got '2'"),
        (
            'input {\n  name: "x"\n',
            (
                "3:1: expected a field name or the '}' that closes 'input', opened at 1:7"
                ", got the end of the file"
            ),
        ),
        (
            "input { name: 'x' >",
            ("1:19: expected a field name or the '}' that closes 'input', opened at 1:7, got '>'"),
        ),
        ("name: 'x' }", "1:11: expected a field name, got '}'; no bracket is open here"),
        ('name "x"', "1:6: expected ':' after 'name', got '\"x\"'"),
        ("name: x", "1:7: expected a string for 'name', got 'x'; put text in quotes"),
        ("name: ['x']", "1:7: expected one value, since 'name' is not repeated, got '['"),
        (
            "max_batch_size: '1'",
            ("1:17: expected an integer for 'max_batch_size', got ''1''; numbers are not quoted"),
        ),
        ("max_batch_size: 1.5", "1:17: expected an integer for 'max_batch_size', got '1.5'"),
        (
            "max_batch_size: 2147483648",
            (
                "1:17: expected an integer from -2147483648 to 2147483647"
                " for 'max_batch_size', got '2147483648'"
            ),
        ),
        (
            "input { data_type: 'TYPE_FP32' }",
            (
                "1:20: expected an enum name for 'data_type'"
                ", got ''TYPE_FP32''; enum names are not quoted"
            ),
        ),
        ("input { optional: yes }", "1:19: expected true or false for 'optional', got 'yes'"),
        ("input: 3", "1:8: expected '{' to open 'input', got '3'"),
        ("name: 'a\n'", "1:7: expected a closing ' on the same line as the opening one"),
        (
            "name: '\\q'",
            ("1:8: expected an escape sequence of a string, got '\\q'; write a backslash as two"),
        ),
        (
            "name: '\\xff'",
            ("1:7: expected UTF-8 text for 'name', got escapes that make other bytes"),
        ),
        ("name: 'é' ©", "1:11: expected a field name, a value or a bracket, got '\\xa9'"),
        (b"name: '\xff'", "1:8: expected UTF-8 text, got the byte 0xff"),
        (
            "\ufeffnmae: 1",
            ("1:1: expected a field of ModelConfig, got 'nmae'; did you mean 'name'?"),
        ),
        ("name: 'a' \ufeff", "1:11: expected a field name, a value or a bracket, got '\\ufeff'"),
        ("parameters { key: 'a' key: 'b' }", "1:23: expected 'key' only once, got it again"),
        (
            "version_policy { latest {} latest {} }",
            "1:28: expected 'latest' only once, got it again",
        ),
        ("[ext.field]: 1", "1:1: expected a field name, got '['; no bracket is open here"),
    ],
)
def test_a_fault_is_reported_with_its_place_and_a_hint(text: str | bytes, message: str) -> None:
    assert error_of(text) == message


@pytest.mark.parametrize(
    "value",
    ["- 1", "08", "0x", "1_000", "+1", "1f", "0b1", "9" * 5000, "''", "--1", "1e3", "٣"],
)
def test_what_is_no_integer_is_refused(value: str) -> None:
    error_of(f"max_batch_size: {value}")


@pytest.mark.parametrize("value", ["0x1", "01", "1e", ".", "1.5ff", "infinit", "'1'", "1_0.0"])
def test_what_is_no_float_is_refused(value: str) -> None:
    error_of(f"model_metrics {{ metric_control {{ histogram_options {{ buckets: {value} }} }} }}")


@pytest.mark.parametrize("value", ["01", "2", "TRUE", "yes", "'true'", "-1", "0x1"])
def test_what_is_no_boolean_is_refused(value: str) -> None:
    error_of(f"response_cache {{ enable: {value} }}")


@pytest.mark.parametrize("escape", [r"\777", r"\ud800", r"\U00110000", r"\x", r"\8", r"\u12"])
def test_escapes_out_of_range_are_refused(escape: str) -> None:
    error_of(f'name: "{escape}"')


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("9223372036854775807", True), ("-9223372036854775808", True), ("9223372036854775808", False)],
)
def test_int64_ends_where_it_ends(value: str, accepted: bool) -> None:
    text = f"input {{ dims: {value} }}"
    if accepted:
        assert parse(text).input[0].dims == [int(value)]
    else:
        error_of(text)


def test_a_long_word_is_cut_in_the_error() -> None:
    assert error_of("x" * 40).endswith(f"got '{'x' * 40}'")
    assert error_of("x" * 41).endswith(f"got '{'x' * 40}…'")


def test_a_text_beyond_the_bound_is_refused() -> None:
    assert parse(" " * CONFIG_MAX_BYTES) == pb.ModelConfig()
    assert error_of(" " * (CONFIG_MAX_BYTES + 1)) == (
        f"1:1: expected at most {CONFIG_MAX_BYTES} bytes, got {CONFIG_MAX_BYTES + 1}"
    )


def test_deep_brackets_end_at_the_first_unknown_field() -> None:
    error_of("input { reshape { " + "shape { " * 100_000)
    error_of("[" * 100_000)
