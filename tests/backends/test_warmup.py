"""Warm-up samples: their data, their faults, and what their execution shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tritrio.backends.warmup import WarmupSample, warmup_samples
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.tensors import encode_bytes_elements

MODEL = """
name: "m" max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "S" data_type: TYPE_STRING dims: [ 2 ] optional: true }
"""
ZEROS = 'key: "A" value { data_type: TYPE_FP32 dims: 3 zero_data: true }'
OUTSIDE = "input 'A': expected an input_data_file inside the model's directory, got "
SEQUENCE = """
sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } }
  control_input { name: "END"
                  control { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: 2
          initial_state { name: "i" data_type: TYPE_INT32 dims: 2 data_file: "two" } }
}
"""
INITIAL_FILES = {"SI": np.array([7, 8], "<i4").tobytes()}


def sampled(*inputs: str, batch_size: int = 1, count: int = 1, name: str = "w") -> str:
    listed = " ".join(f"inputs {{ {text} }}" for text in inputs)
    return f'model_warmup {{ name: "{name}" batch_size: {batch_size} count: {count} {listed} }} '


def samples_of(text: str, directory: Path = Path("/nowhere")) -> list[WarmupSample]:
    config = parse_model_config(text, file="c")
    return warmup_samples(config, ModelSpec.from_config(config, 1), directory, INITIAL_FILES)


def request_of(text: str, directory: Path = Path("/nowhere")) -> InferRequest:
    (sample,) = samples_of(MODEL + sampled(text), directory)
    (request,) = sample.requests
    return request


def fault_of(text: str, directory: Path = Path("/nowhere")) -> str:
    with pytest.raises(RequestError) as caught:
        samples_of(text, directory)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith("model 'm': model_warmup 'w': ")
    return caught.value.message.removeprefix("model 'm': model_warmup 'w': ")


def write(directory: Path, name: str, data: bytes, *, under: str = "warmup") -> Path:
    path = directory / under / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return directory


def test_zeros_are_of_the_samples_shape_with_a_batch_of_one() -> None:
    request = request_of(ZEROS)
    assert list(request.inputs) == ["A"]
    np.testing.assert_array_equal(
        request.inputs["A"].array, np.zeros((1, 3), np.float32), strict=True
    )
    assert (request.batch_size, request.model_name, request.model_version) == (1, "m", "1")
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (0, False, False)


def test_a_model_that_does_not_batch_gets_the_dims_as_they_are() -> None:
    text = MODEL.replace("max_batch_size: 4", "max_batch_size: 0") + sampled(ZEROS)
    assert samples_of(text)[0].requests[0].inputs["A"].shape == (3,)


def test_a_reshape_is_applied_as_to_any_request() -> None:
    text = 'name: "m" input { name: "A" data_type: TYPE_FP32 dims: 3 reshape { shape: [3, 1] } } '
    assert samples_of(text + sampled(ZEROS))[0].requests[0].inputs["A"].shape == (3, 1)


@pytest.mark.parametrize("data", ["zero_data: true", "random_data: true"])
def test_strings_without_a_file_are_empty(data: str) -> None:
    text = f'key: "S" value {{ data_type: TYPE_STRING dims: 2 {data} }}'
    (sample,) = samples_of(MODEL + sampled(ZEROS, text))
    assert sample.requests[0].inputs["S"].array.tolist() == [[b"", b""]]


@pytest.mark.parametrize(
    ("data_type", "least", "most"),
    [
        ("FP32", 0.0, 1.0),
        ("FP16", 0.0, 1.0),
        ("BF16", 0.0, 1.0),
        ("FP64", 0.0, 1.0),
        ("BOOL", False, True),
        ("INT8", -128, 127),
        ("UINT64", 0, 2**64 - 1),
    ],
)
def test_random_data_has_valid_and_varied_values(data_type: str, least: float, most: float) -> None:
    text = f'name: "m" input {{ name: "A" data_type: TYPE_{data_type} dims: 500 }} '
    text += sampled(f'key: "A" value {{ data_type: TYPE_{data_type} dims: 500 random_data: true }}')
    tensor = samples_of(text)[0].requests[0].inputs["A"]
    array = tensor.array.astype(np.float64)
    assert array.shape == (500,)
    assert least <= array.min() < least + (most - least) / 8
    assert most >= array.max() > most - (most - least) / 8
    if data_type == "BOOL":
        assert set(bytes(tensor.raw)) == {0, 1}
    assert samples_of(text)[0].requests[0].inputs["A"].raw == tensor.raw  # at each load


def test_a_file_may_hold_more_than_is_needed(tmp_path: Path) -> None:
    write(tmp_path, "deep/data", np.arange(5, dtype="<f4").tobytes())
    text = 'key: "A" value { data_type: TYPE_FP32 dims: 3 input_data_file: "deep/data" }'
    assert request_of(text, tmp_path).inputs["A"].array.tolist() == [[0.0, 1.0, 2.0]]


def test_a_file_of_strings_holds_their_wire_form(tmp_path: Path) -> None:
    write(tmp_path, "data", encode_bytes_elements([b"ab", b"c"]))
    text = 'key: "S" value { data_type: TYPE_STRING dims: 2 input_data_file: "data" }'
    (sample,) = samples_of(MODEL + sampled(ZEROS, text), tmp_path)
    assert sample.requests[0].inputs["S"].array.tolist() == [[b"ab", b"c"]]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (
            "dims: [ -1 ] zero_data: true",
            "input 'A' must have fixed dims, got [-1]",
        ),
        (
            "dims: 3",
            "input 'A': expected zero_data, random_data or input_data_file, got none of them",
        ),
        (
            'dims: 4 input_data_file: "short"',
            "input 'A': expected 16 bytes in file 'warmup/short', got 15",
        ),
        (
            'dims: 4 input_data_file: "none"',
            "input 'A': file 'warmup/none' cannot be read: No such file or directory",
        ),
        (
            'dims: 4 input_data_file: ""',
            "input 'A': 'warmup' must be a regular file",
        ),
        (
            'dims: 1 input_data_file: "../../outside"',
            OUTSIDE + "'../../outside'",
        ),
        (
            'dims: 1 input_data_file: "/etc/hostname"',
            OUTSIDE + "'/etc/hostname'",
        ),
        (
            "dims: [ 1000000, 1000000 ] zero_data: true",
            (
                "input 'A' must have at most 2147483648 bytes, got 4000000000000 for dims "
                "[1000000,1000000] of FP32"
            ),
        ),
        (
            f'dims: [ 2, 2 ] input_data_file: "{"x" * 300}"',
            (f"input 'A': file 'warmup/{'x' * 121}…' cannot be read: File name too long"),
        ),
        (
            "dims: [ 2, 2 ] zero_data: true",
            (
                "input 'A' of model 'm' expects shape [-1,-1], got [1,2,2]; a non-zero "
                "max_batch_size puts a batch dimension in front of every input shape, "
                "max_batch_size 0 lifts this"
            ),
        ),
    ],
)
def test_an_input_that_cannot_be_made_is_an_error(tmp_path: Path, value: str, fault: str) -> None:
    write(tmp_path / "m", "short", bytes(15))
    write(tmp_path, "outside", bytes(99), under=".")
    text = sampled(f'key: "A" value {{ data_type: TYPE_FP32 {value} }}')
    assert fault_of(MODEL + text, tmp_path / "m") == fault


def test_a_file_elsewhere_in_the_models_directory_will_do(tmp_path: Path) -> None:
    write(tmp_path, "data", np.ones(1, "<f4").tobytes(), under="1")
    text = 'key: "A" value { data_type: TYPE_FP32 dims: 1 input_data_file: "../1/data" }'
    (tmp_path / "warmup").mkdir()
    assert request_of(text, tmp_path).inputs["A"].array.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (encode_bytes_elements([b"ab"]), "expected 2 BYTES elements, got 1"),
        (
            encode_bytes_elements([b"ab", b"cd"])[:-1],
            "the last element should end at byte 12, but there are only 11 bytes",
        ),
    ],
)
def test_a_file_with_other_strings_than_needed_is_an_error(
    tmp_path: Path, data: bytes, fault: str
) -> None:
    write(tmp_path, "data", data)
    text = 'key: "S" value { data_type: TYPE_STRING dims: 2 input_data_file: "data" }'
    assert fault_of(MODEL + sampled(ZEROS, text), tmp_path) == (
        f"input 'S': file 'warmup/data': {fault}"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            sampled(ZEROS, ZEROS.replace('"A"', '"B"')),
            "input 'B' is not an input of model 'm', which has ['A', 'S']",
        ),
        (
            sampled(ZEROS.replace("FP32", "INT32")),
            "input 'A' has datatype 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            sampled(ZEROS.replace("data_type: TYPE_FP32", "")),
            "input 'A' has no data_type that can be served",
        ),
        (
            sampled(),
            (
                "model 'm' expects 1 to 2 inputs and must be given all required ones, got 0: [], "
                "missing ['A']"
            ),
        ),
        (sampled(ZEROS, batch_size=5), "batch_size must be at most 4, got 5"),
    ],
)
def test_a_sample_that_does_not_fit_the_model_is_an_error(text: str, fault: str) -> None:
    assert fault_of(MODEL + text) == fault


def test_a_model_that_does_not_batch_has_samples_of_one() -> None:
    text = MODEL.replace("max_batch_size: 4", "")
    assert len(samples_of(text + sampled(ZEROS))) == 1
    assert fault_of(text + sampled(ZEROS, batch_size=2)) == "batch_size must be at most 1, got 2"


def test_a_sample_without_a_name_is_known_by_its_number() -> None:
    with pytest.raises(RequestError) as caught:
        samples_of(MODEL + sampled(ZEROS, name="") + sampled(ZEROS, batch_size=9, name=""))
    assert caught.value.message == (
        "model 'm': model_warmup '1': batch_size must be at most 4, got 9"
    )


def test_a_sample_of_batch_size_0_is_skipped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    samples = samples_of(MODEL + sampled(batch_size=0, name="z") + sampled(ZEROS))
    assert [sample.label for sample in samples] == ["model 'm': model_warmup 'w'"]
    assert caplog.messages == ["model 'm': model_warmup 'z' has the batch_size 0 and is skipped"]


def test_the_requests_of_a_sequence_model_have_controls_and_states() -> None:
    (sample,) = samples_of(MODEL + SEQUENCE + sampled(ZEROS, batch_size=2))
    ids = []
    for request in sample.requests:
        controls = {name: tensor.array.tolist() for name, tensor in request.inputs.items()}
        ids.append(controls.pop("ID"))
        assert controls == {
            "A": [[0.0, 0.0, 0.0]],
            "START": [[1]],
            "READY": [[1.0]],
            "END": [[True]],
            "SI": [[7, 8]],
        }
    assert ids == [[[1]], [[2]]]


def test_ids_are_text_where_the_model_wants_text() -> None:
    text = MODEL + SEQUENCE.replace("TYPE_UINT64", "TYPE_STRING") + sampled(ZEROS, batch_size=2)
    (sample,) = samples_of(text)
    assert [request.sequence_id for request in sample.requests] == ["1", "2"]
    assert sample.requests[1].inputs["ID"].array.tolist() == [[b"2"]]


def test_a_sample_may_give_controls_and_states_itself() -> None:
    given = [
        ZEROS,
        'key: "START" value { data_type: TYPE_INT32 dims: 1 zero_data: true }',
        'key: "SI" value { data_type: TYPE_INT32 dims: 3 zero_data: true }',
    ]
    (sample,) = samples_of(MODEL + SEQUENCE + sampled(*given))
    inputs = sample.requests[0].inputs
    assert inputs["START"].array.tolist() == [[0]]
    assert inputs["SI"].array.tolist() == [[0, 0, 0]]
    assert inputs["END"].array.tolist() == [[True]]
