"""ONNX models with sequence controls and states: what the server adds goes in, states come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.backends.builders import execute, outputs_of
from tests.backends.onnx_files import FLOAT, INT64, STRING, node, write_onnx
from tests.backends.test_onnx_model import RecordingSession, completed, floats
from tritrio.backends.base import ModelInstance, ModelSource
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.pb.inference import ModelConfig
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.sequence_tensors import SequenceTensors
from tritrio.protocol.tensors import Tensor

SUM = 'input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 2 ]'
START = (
    'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START '
    "fp32_false_true: [ 1, 0 ] } }"
)


def write_accumulator(directory: Path) -> ModelSource:
    """NEXT = X + SUM * START, where START is 0 at the start of a sequence; DOUBLE = 2 * NEXT."""
    return write_onnx(
        directory,
        [
            node("Mul", ["SUM", "START"], ["OLD"]),
            node("Add", ["X", "OLD"], ["NEXT"]),
            node("Add", ["NEXT", "NEXT"], ["DOUBLE"]),
        ],
        [("X", FLOAT, ("N", 2)), ("SUM", FLOAT, ("N", 2)), ("START", FLOAT, ("N", 1))],
        [("DOUBLE", FLOAT, ("N", 2)), ("NEXT", FLOAT, ("N", 2))],
    )


def config_of(sequence: str, rest: str = "") -> ModelConfig:
    text = f'name: "m" backend: "onnxruntime" {rest} sequence_batching {{ {sequence} }}'
    return parse_model_config(text, file="config.pbtxt")


def accumulator(directory: Path, rest: str = "") -> tuple[ModelInstance, SequenceTensors]:
    config = config_of(f"{START} state {{ {SUM} }}", f"max_batch_size: 8 {rest}")
    return completed(write_accumulator(directory), config), SequenceTensors(config, {})


def request_of(array: Any, *, asked: tuple[str, ...] = ()) -> InferRequest:
    request = InferRequest("m")
    request.inputs["X"] = Tensor("X", "FP32", array.shape, raw=array.tobytes())
    request.outputs = tuple(map(RequestedOutput, asked))
    request.sequence_id = 1
    return request


def states_of(response: InferResponse) -> dict[str, Any]:
    assert response.states is not None
    return {name: tensor.array.tolist() for name, tensor in response.states.items()}


def test_a_state_goes_from_request_to_request_and_not_to_the_client(tmp_path: Path) -> None:
    instance, tensors = accumulator(tmp_path)
    states = tensors.initial_states()
    doubles = []
    for start, end in ((True, False), (False, False), (False, True), (True, True)):
        request = request_of(floats([1, 2]))
        tensors.complete(request, start=start, end=end, states=states)
        (response,) = execute(instance, request)
        assert list(outputs_of(response)) == ["DOUBLE"]
        doubles.append(outputs_of(response)["DOUBLE"].tolist())
        assert response.states is not None
        states = tensors.next_states(response.states, states)
    assert doubles == [[[2, 4]], [[4, 8]], [[6, 12]], [[2, 4]]]


def test_each_request_of_a_batch_gets_its_own_state_whatever_it_asked_for(tmp_path: Path) -> None:
    instance, tensors = accumulator(tmp_path)
    first = request_of(floats([1, 2]), asked=("DOUBLE",))
    second = request_of(floats([10, 20]))
    state = Tensor("SUM", "FP32", (1, 2), array=floats([100, 200]))
    tensors.complete(first, start=True, end=False, states={"SUM": state})
    tensors.complete(second, start=False, end=False, states={"SUM": state})
    filler = tensors.filler(first)
    responses = execute(instance, first, filler, second)
    assert [states_of(response) for response in responses] == [
        {"NEXT": [[1, 2]]},
        {"NEXT": [[0, 0]]},
        {"NEXT": [[110, 220]]},
    ]
    assert [outputs_of(response)["DOUBLE"].tolist() for response in responses] == [
        [[2, 4]],
        [[0, 0]],
        [[220, 440]],
    ]


def test_a_small_state_does_not_keep_the_whole_batch_in_memory(tmp_path: Path) -> None:
    instance, tensors = accumulator(tmp_path)
    requests = [request_of(floats([1, 2])) for _ in range(3)]
    for request in requests:
        tensors.complete(request, start=True, end=False, states=tensors.initial_states())
    for response in execute(instance, *requests):
        assert response.states is not None
        array = response.states["NEXT"].array
        assert array.base is None or array.base.nbytes == array.nbytes


def test_a_state_that_is_an_output_as_well_goes_both_ways(tmp_path: Path) -> None:
    listed = (
        'output { name: "DOUBLE" data_type: TYPE_FP32 dims: [ 2 ] } '
        'output { name: "NEXT" data_type: TYPE_FP32 dims: [ 2 ] }'
    )
    instance, tensors = accumulator(tmp_path, listed)
    without, both = request_of(floats([1, 2]), asked=("DOUBLE",)), request_of(floats([3, 4]))
    for request in (without, both):
        tensors.complete(request, start=True, end=False, states=tensors.initial_states())
    first, second = execute(instance, without, both)
    assert list(outputs_of(first)) == ["DOUBLE"]
    assert states_of(first) == {"NEXT": [[1, 2]]}
    assert list(outputs_of(second)) == ["DOUBLE", "NEXT"]
    assert outputs_of(second)["NEXT"].tolist() == [[3, 4]]
    assert states_of(second) == {"NEXT": [[3, 4]]}
    session = RecordingSession.of(instance)
    (alone,) = execute(instance, without)
    assert states_of(alone) == {"NEXT": [[1, 2]]}
    assert session.ran == [["DOUBLE", "NEXT"]]


def test_a_growing_state_of_text_and_a_text_correlation_id_work_without_batching(
    tmp_path: Path,
) -> None:
    source = write_onnx(
        tmp_path,
        [
            node("Concat", ["LOG", "ID"], ["NEXT"], axis=0),
            node("Shape", ["NEXT"], ["COUNT"]),
        ],
        [("X", FLOAT, (1,)), ("LOG", STRING, ("N",)), ("ID", STRING, (1,))],
        [("NEXT", STRING, ("M",)), ("COUNT", INT64, (1,))],
    )
    config = config_of(
        'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID '
        "data_type: TYPE_STRING } } "
        'state { input_name: "LOG" output_name: "NEXT" data_type: TYPE_STRING dims: [ -1 ] }',
    )
    instance, tensors = completed(source, config), SequenceTensors(config, {})
    states = tensors.initial_states()
    for expected in ([b"", "grün".encode()], [b"", "grün".encode(), "grün".encode()]):
        request = request_of(np.zeros(1, np.float32))
        request.sequence_id = "grün"
        tensors.complete(request, start=False, end=False, states=states)
        (response,) = execute(instance, request)
        assert outputs_of(response)["COUNT"].tolist() == [len(expected)]
        assert states_of(response) == {"NEXT": expected}
        assert response.states is not None
        states = tensors.next_states(response.states, states)


def test_a_model_without_states_has_none(tmp_path: Path) -> None:
    source = write_onnx(
        tmp_path,
        [node("Identity", ["X"], ["Y"])],
        [("X", FLOAT, ("N", 2))],
        [("Y", FLOAT, ("N", 2))],
    )
    (response,) = execute(completed(source), request_of(floats([1, 2])))
    assert response.states is None
