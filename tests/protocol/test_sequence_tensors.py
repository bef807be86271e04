from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.protocol.config_faults import CPU_ONLY
from tests.protocol.infer_specs import Refused, request, zeros
from tritrio.protocol.config_rules import normalise
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_validation import validate
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.pb.inference import ModelConfig
from tritrio.protocol.requests import InferRequest, RequestedOutput
from tritrio.protocol.sequence_tensors import SequenceTensors, initial_state_files
from tritrio.protocol.tensors import Tensor, encode_bytes_elements

FLAGS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 3, -4 ] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0.5, 1.5 ] } }
control_input {
  name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ true, false ] }
}
"""
SUM = 'input_name: "SUM" output_name: "NEXT_SUM" data_type: TYPE_FP32 dims: [ -1, 2 ]'
TEXT = 'input_name: "TEXT" output_name: "NEXT_TEXT" data_type: TYPE_STRING dims: [ 2 ]'


def config_of(sequence: str, *, max_batch_size: int = 4) -> ModelConfig:
    """A valid configuration with this `sequence_batching`."""
    text = (
        f'name: "m" backend: "python" max_batch_size: {max_batch_size} '
        'input { name: "IN" data_type: TYPE_INT32 dims: 2 } '
        f'output {{ name: "OUT" data_type: TYPE_INT32 dims: 2 }} sequence_batching {{ {sequence} }}'
    )
    config = normalise(parse_model_config(text, file="config.pbtxt"), context=CPU_ONLY)
    validate(config, context=CPU_ONLY)
    return config


def tensors_of(
    sequence: str, files: Mapping[str, bytes] | None = None, *, max_batch_size: int = 4
) -> SequenceTensors:
    return SequenceTensors(config_of(sequence, max_batch_size=max_batch_size), files or {})


def completed(
    tensors: SequenceTensors,
    sequence_id: int | str = 1,
    *,
    start: bool = False,
    end: bool = False,
    states: Mapping[str, Tensor] | None = None,
) -> InferRequest:
    made = request(zeros((1, 2)), sequence_id=sequence_id)
    tensors.complete(made, start=start, end=end, states=states or {})
    return made


def values_of(made: InferRequest) -> dict[str, Any]:
    return {name: tensor.array.tolist() for name, tensor in made.inputs.items()}


def correlation(data_type: str) -> str:
    return (
        'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID '
        f"data_type: {data_type} }} }}"
    )


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("end", [False, True])
def test_each_flag_has_its_configured_values_and_data_type(start: bool, end: bool) -> None:
    made = completed(tensors_of(FLAGS), start=start, end=end)
    assert values_of(made) == {
        "IN": [[0, 0]],
        "START": [[-4 if start else 3]],
        "END": [[1.5 if end else 0.5]],
        "READY": [[False]],  # its configured true
    }
    assert [tensor.datatype for tensor in made.inputs.values()] == [
        "INT32",
        "INT32",
        "FP32",
        "BOOL",
    ]
    assert all(tensor.shape == (1, 1) for name, tensor in made.inputs.items() if name != "IN")
    assert (made.sequence_start, made.sequence_end) == (start, end)


def test_controls_of_a_model_that_does_not_batch_have_one_dimension() -> None:
    made = completed(tensors_of(FLAGS + correlation("TYPE_INT64"), max_batch_size=0), 7)
    assert [made.inputs[name].shape for name in ("START", "END", "READY", "ID")] == [(1,)] * 4
    assert made.inputs["ID"].array.tolist() == [7]


@pytest.mark.parametrize(
    ("data_type", "given", "expected"),
    [
        ("TYPE_UINT64", 2**64 - 1, 2**64 - 1),
        ("TYPE_INT64", 2**64 - 1, -1),
        ("TYPE_UINT32", 2**40 + 5, 5),
        ("TYPE_INT32", 2**31, -(2**31)),
        ("TYPE_STRING", "grün", "grün".encode()),
        ("TYPE_STRING", 12, b"12"),  # a number the server gave
    ],
)
def test_a_correlation_id_keeps_its_low_bits(
    data_type: str, given: int | str, expected: int | bytes
) -> None:
    tensors = tensors_of(correlation(data_type))
    made = completed(tensors, given)
    assert made.inputs["ID"].array.tolist() == [[expected]]
    null = tensors.filler(made).inputs["ID"]
    assert null.array.tolist() == [[b"" if data_type == "TYPE_STRING" else 0]]
    assert null.datatype == made.inputs["ID"].datatype


def test_controls_and_states_of_an_execution_before_are_replaced() -> None:
    tensors = tensors_of(FLAGS + correlation("TYPE_UINT64") + f"state {{ {SUM} }}")
    made = completed(tensors, start=True, states=tensors.initial_states())
    state = Tensor("SUM", "FP32", (1, 1, 2), array=np.array([[[1, 2]]], "<f4"))
    tensors.complete(made, start=False, end=True, states={"SUM": state})
    assert values_of(made) == {
        "IN": [[0, 0]],
        "START": [[3]],
        "END": [[1.5]],
        "READY": [[False]],
        "ID": [[1]],
        "SUM": [[[1, 2]]],
    }


def test_a_filler_is_a_request_of_zeros_that_nobody_waits_for() -> None:
    tensors = tensors_of(FLAGS + correlation("TYPE_UINT64") + f"state {{ {SUM} }}")
    text = Tensor("TEXT", "BYTES", (1, 2), raw=encode_bytes_elements([b"a", b"b"]))
    like = request(text, zeros((1, 0), "NONE"), sequence_id=9, id="7")
    like.outputs = (RequestedOutput("OUT"),)
    state = Tensor("SUM", "FP32", (1, 3, 2), array=np.ones((1, 3, 2), "<f4"))
    tensors.complete(like, start=True, end=True, states={"SUM": state})

    null = tensors.filler(like)

    assert values_of(null) == {
        "TEXT": [[b"", b""]],
        "NONE": [[]],
        "START": [[3]],
        "END": [[0.5]],
        "READY": [[True]],  # its configured false
        "ID": [[0]],
        "SUM": [[[0, 0], [0, 0], [0, 0]]],
    }
    assert null.cancelled
    assert (null.id, null.sequence_id, null.sequence_start, null.sequence_end) == (
        "",
        0,
        False,
        False,
    )
    assert (null.outputs, null.batch_size, null.spec) == (like.outputs, 1, like.spec)
    assert values_of(like)["SUM"] == [[[1, 1]] * 3]


def test_a_state_without_initial_value_is_zero_with_variable_dims_of_one() -> None:
    states = tensors_of(f"state {{ {SUM} }} state {{ {TEXT} }}").initial_states()
    assert list(states) == ["SUM", "TEXT"]
    assert (states["SUM"].shape, states["SUM"].array.tolist()) == ((1, 1, 2), [[[0, 0]]])
    assert (states["TEXT"].datatype, states["TEXT"].array.tolist()) == ("BYTES", [[b"", b""]])
    unbatched = tensors_of(f"state {{ {SUM} }}", max_batch_size=0).initial_states()
    assert unbatched["SUM"].shape == (1, 2)


def initial(data_type: str, dims: str, data: str) -> str:
    return f'initial_state {{ name: "i" data_type: {data_type} dims: {dims} {data} }}'


def test_initial_values_are_zeros_or_what_is_in_the_file() -> None:
    from_file = initial("TYPE_FP32", "[ 2, 2 ]", 'data_file: "sub/sum"')
    text_file = initial("TYPE_STRING", "2", 'data_file: "text"')
    zero = initial("TYPE_FP32", "[ 3, 2 ]", "zero_data: true")
    other = SUM.replace("SUM", "OTHER")
    sequence = (
        f"state {{ {SUM} {from_file} }} state {{ {TEXT} {text_file} }} state {{ {other} {zero} }}"
    )
    assert initial_state_files(config_of(sequence)) == {
        "SUM": "initial_state/sub/sum",
        "TEXT": "initial_state/text",
    }
    files = {
        "SUM": struct.pack("<5f", 1, 2, 3, 4, 5),  # the rest is not looked at
        "TEXT": encode_bytes_elements([b"abc", b""]),
    }
    states = tensors_of(sequence, files).initial_states()
    assert states["SUM"].array.tolist() == [[[1, 2], [3, 4]]]
    assert states["SUM"].byte_size == 16
    assert states["TEXT"].array.tolist() == [[b"abc", b""]]
    assert states["OTHER"].array.tolist() == [[[0, 0]] * 3]


def test_initial_values_cannot_be_written() -> None:
    (state,) = tensors_of(f"state {{ {SUM} }}").initial_states().values()
    assert not state.array.flags.writeable


def test_a_file_that_does_not_hold_the_state_is_refused() -> None:
    from_file = initial("TYPE_FP32", "[ 2, 2 ]", 'data_file: "f"')
    with Refused("'m'", "'SUM'", "file 'f' must hold 16 bytes, got 15"):
        tensors_of(f"state {{ {SUM} {from_file} }}", {"SUM": bytes(15)})
    from_file = initial("TYPE_STRING", "2", 'data_file: "f"')
    with Refused("'m'", "'TEXT'", "file 'f': expected 2 BYTES elements, got 3"):
        tensors_of(f"state {{ {TEXT} {from_file} }}", {"TEXT": bytes(12)})


@pytest.mark.parametrize("file", ["../model.py", "/etc/passwd", "a/../../b", "", ".", "a\\000b"])
def test_a_file_outside_of_its_directory_is_refused(file: str) -> None:
    from_file = initial("TYPE_FP32", "[ 2, 2 ]", f'data_file: "{file}"')
    with Refused("'m'", "'SUM'", "inside 'initial_state'"):
        initial_state_files(config_of(f"state {{ {SUM} {from_file} }}"))


@pytest.mark.parametrize(
    ("state", "fact"),
    [
        ('input_name: "S" output_name: "T" dims: 1', "state 'S' has no data_type"),
        (
            'input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 1, -2 ]',
            "state 'S': each of its dims must be at least 1 or else -1, got [1,-2]",
        ),
        (
            'input_name: "S" data_type: TYPE_FP32 dims: 1',
            "state 'S': expected an output_name of its own, got none",
        ),
        (
            f'{SUM} }} state {{ input_name: "S" output_name: "NEXT_SUM" data_type: TYPE_FP32',
            "state 'S': expected an output_name of its own, got 'NEXT_SUM' of another state",
        ),
    ],
)
def test_a_state_that_cannot_be_made_is_refused(state: str, fact: str) -> None:
    with Refused("model 'm': sequence_batching: ", fact):
        tensors_of(f"state {{ {state} }}")


def test_the_next_states_are_the_outputs_and_what_was_left_out_stays() -> None:
    tensors = tensors_of(f"state {{ {SUM} }} state {{ {TEXT} }}")
    before = tensors.initial_states()
    array = np.array([[[1, 2], [3, 4]]], "<f4")
    outputs = {
        "NEXT_SUM": Tensor("NEXT_SUM", "FP32", array.shape, array=array),
        "OUT": Tensor("OUT", "INT32", (1,), raw=bytes(4)),
    }
    after = tensors.next_states(outputs, before)
    assert list(after) == ["SUM", "TEXT"]
    assert (after["SUM"].name, after["SUM"].datatype, after["SUM"].shape) == (
        "SUM",
        "FP32",
        (1, 2, 2),
    )
    assert after["SUM"].array is array
    assert after["TEXT"] is before["TEXT"]
    assert before["SUM"].array.tolist() == [[[0, 0]]]
    raw = encode_bytes_elements([b"x", b"y"])
    last = tensors.next_states({"NEXT_TEXT": Tensor("NEXT_TEXT", "BYTES", (1, 2), raw=raw)}, after)
    assert last["TEXT"].raw is raw
    assert last["SUM"] is after["SUM"]


def test_a_state_of_another_data_type_or_shape_is_the_models_fault() -> None:
    tensors = tensors_of(f"state {{ {SUM} }}")
    wrong = {"NEXT_SUM": Tensor("NEXT_SUM", "FP64", (1, 1, 2), raw=bytes(16))}
    with Refused("'m'", "state 'NEXT_SUM' must be FP32, got FP64", code=ErrorCode.INTERNAL):
        tensors.next_states(wrong, {})
    for shape in ((1, 2), (1, 1, 3), (2, 1, 2)):
        wrong = {"NEXT_SUM": Tensor("NEXT_SUM", "FP32", shape, array=np.zeros(shape, "<f4"))}
        got = str(list(shape)).replace(" ", "")
        with Refused(f"'NEXT_SUM' must have shape [1,-1,2], got {got}", code=ErrorCode.INTERNAL):
            tensors.next_states(wrong, {})


def test_a_model_without_controls_or_states_leaves_requests_as_they_are() -> None:
    tensors = tensors_of("")
    assert tensors.initial_states() == {}
    assert initial_state_files(config_of("")) == {}
    assert values_of(completed(tensors)) == {"IN": [[0, 0]]}
