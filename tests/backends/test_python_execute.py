"""Execution of Python models that are not decoupled."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from textwrap import indent

import ml_dtypes
import numpy as np
import pytest

from tests.backends.builders import (
    config_of,
    error_of,
    execute,
    floats,
    loaded,
    outputs_of,
    request_of,
    write_model,
)
from tritrio.backends.base import ModelInstance
from tritrio.backends.registry import get_backend
from tritrio.protocol.errors import FailureReason
from tritrio.protocol.pb.inference import ModelConfig

PYTHON = get_backend("python")
CONFIG = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], max_batch_size=8)
MODEL = """
class TritonPythonModel:
    def execute(self, requests):
{body}
"""


def model(directory: Path, body: str, config: ModelConfig = CONFIG) -> ModelInstance:
    """An instance whose `execute` has this body."""
    code = MODEL.format(body=indent(body, " " * 8))
    return loaded(PYTHON, write_model(directory, code), config)


DOUBLES = """
responses = []
for request in requests:
    array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
    responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * 2)]))
return responses
"""


def answering(expression: str) -> str:
    """The body of a model that answers every request with this output."""
    return (
        f'array = {expression}\nreturn [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", '
        "array)]) for _ in requests]"
    )


def test_each_request_gets_its_own_answer_in_order(tmp_path: Path) -> None:
    instance = model(tmp_path, DOUBLES)
    responses = execute(
        instance, request_of(floats(1, 2), request_id="a"), request_of(floats(3), request_id="b")
    )
    assert [response.id for response in responses] == ["a", "b"]
    assert [outputs_of(response)["OUTPUT0"].tolist() for response in responses] == [[[2, 4]], [[6]]]
    assert (responses[0].model_name, responses[0].model_version) == ("m", "1")


def test_a_model_may_write_into_its_input_without_changing_what_was_received(
    tmp_path: Path,
) -> None:
    body = """
array = requests[0].inputs()[0].as_numpy()
array += 1
assert requests[0].inputs()[0].as_numpy() is array
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])]
"""
    request = request_of(floats(1, 2))
    (response,) = execute(model(tmp_path, body), request)
    assert outputs_of(response)["OUTPUT0"].tolist() == [[2, 3]]
    assert request.inputs["INPUT0"].array.tolist() == [[1, 2]]


def test_a_model_may_use_its_output_buffer_again(tmp_path: Path) -> None:
    body = """
self.buffer = getattr(self, "buffer", np.zeros((1, 1), np.float32))
self.buffer += 1
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", self.buffer)])]
"""
    instance = model(tmp_path, body)
    responses = [execute(instance, request_of(floats(0)))[0] for _ in range(2)]
    values = [outputs_of(response)["OUTPUT0"].tolist() for response in responses]
    assert values == [[[1]], [[2]]]


def test_a_request_shows_everything_the_client_sent(tmp_path: Path) -> None:
    body = """
import json
seen = [
    [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.is_cancelled(),
     json.loads(r.parameters()), r.requested_output_names(), [t.name() for t in r.inputs()]]
    for r in requests
]
return [pb_utils.InferenceResponse(
    [pb_utils.Tensor("OUTPUT0", np.array([json.dumps(row)], object))]) for row in seen]
"""
    config = config_of(
        [("INPUT0", "FP32", [-1]), ("INPUT1", "FP32", [-1])],
        [("OUTPUT0", "BYTES", [1]), ("OUTPUT1", "FP32", [1])],
    )
    full = request_of(floats(1), floats(2), request_id="42", asked=["OUTPUT0"])
    full.sequence_id, full.sequence_start, full.timeout_us = 7, True, 1500
    full.parameters = {"a": 1, "b": "x", "c": True, "d": 0.5}
    bare = request_of(floats(1))
    bare.sequence_id, bare.sequence_end, bare.cancelled = "s", True, True
    first, second = execute(model(tmp_path, body, config), full, bare)
    assert outputs_of(first)["OUTPUT0"].tolist() == [
        (
            b'["42", 7, 1, 1500, false, {"a": 1, "b": "x", "c": true, "d": 0.5}, ["OUTPUT0"], '
            b'["INPUT0", "INPUT1"]]'
        )
    ]
    assert outputs_of(second)["OUTPUT0"].tolist() == [
        b'["", "s", 2, 0, true, {}, ["OUTPUT0", "OUTPUT1"], ["INPUT0"]]'
    ]


def test_outputs_nobody_asked_for_are_dropped_even_if_faulty(tmp_path: Path) -> None:
    config = config_of(outputs=[("A", "FP32", [1]), ("B", "FP32", [1])])
    body = """
return [pb_utils.InferenceResponse([
    pb_utils.Tensor("A", np.zeros(1)), pb_utils.Tensor("B", np.ones(1, np.float32))
])]
"""
    (response,) = execute(model(tmp_path, body, config), request_of(floats(1), asked=["B"]))
    assert list(outputs_of(response)) == ["B"]


def test_an_output_asked_for_and_not_given_is_left_out(tmp_path: Path) -> None:
    (response,) = execute(
        model(tmp_path, "return [pb_utils.InferenceResponse([])]"),
        request_of(floats(1), asked=["OUTPUT0"]),
    )
    assert outputs_of(response) == {}


def test_response_parameters_reach_the_client(tmp_path: Path) -> None:
    body = 'return [pb_utils.InferenceResponse([], parameters={"a": 1, "b": 0.5, "c": True})]'
    (response,) = execute(model(tmp_path, body), request_of(floats(1)))
    assert response.parameters == {"a": 1, "b": 0.5, "c": True}


@pytest.mark.parametrize(
    ("expression", "elements"),
    [
        ("np.array([[b'a\\0b', b'']], object)", [[b"a\0b", b""]]),
        ("np.array([['grün', '\\U0001f600']], object)", [["grün".encode(), "😀".encode()]]),
        ("np.array([[1, None]], object)", [[b"1", b"None"]]),
        ("np.array([[b'abc', b'de']])", [[b"abc", b"de"]]),
        ("np.array([['ab', 'ü']])", [[b"ab", "ü".encode()]]),
        ("np.array([[b'\\xff\\xfe']], object)", [[b"\xff\xfe"]]),
        ("np.array([['xaxb'[1::2], 'c']], object)[:, ::-1]", [[b"c", b"ab"]]),
        ("np.zeros((0, 2), object)", []),
        ("np.array([['a', 'b']], object).view(np.matrix)", [[b"a", b"b"]]),
    ],
)
def test_objects_text_and_byte_strings_become_bytes(
    tmp_path: Path, expression: str, elements: list[list[bytes]]
) -> None:
    config = config_of(outputs=[("OUTPUT0", "BYTES", [-1, -1])])
    (response,) = execute(model(tmp_path, answering(expression), config), request_of(floats(1)))
    assert outputs_of(response)["OUTPUT0"].tolist() == elements


@pytest.mark.parametrize(
    ("datatype", "expression", "values"),
    [
        ("FP32", "np.arange(6, dtype=np.float32).reshape(2, 3).T", [[0, 3], [1, 4], [2, 5]]),
        ("INT32", "np.array([[1, 2]], '>i4')", [[1, 2]]),
        ("BOOL", "np.array([[True, False]])", [[True, False]]),
        ("FP16", "np.array([[0.5]], np.float16)", [[0.5]]),
        ("UINT64", "np.array([[2**64 - 1]], np.uint64)", [[2**64 - 1]]),
        ("FP64", "np.zeros((0, 3))", []),
    ],
)
def test_numbers_come_back_whatever_their_layout(
    tmp_path: Path, datatype: str, expression: str, values: list[object]
) -> None:
    config = config_of(outputs=[("OUTPUT0", datatype, [-1, -1])])
    (response,) = execute(model(tmp_path, answering(expression), config), request_of(floats(1)))
    assert outputs_of(response)["OUTPUT0"].tolist() == values


def test_bfloat16_goes_in_and_out_as_an_ml_dtypes_array(tmp_path: Path) -> None:
    config = config_of([("INPUT0", "BF16", [-1])], [("OUTPUT0", "BF16", [-1])], max_batch_size=1)
    array = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    (response,) = execute(model(tmp_path, DOUBLES, config), request_of(array))
    assert outputs_of(response)["OUTPUT0"].astype(float).tolist() == [[3, -4]]


def test_an_output_with_a_reshape_comes_back_in_the_clients_dims(tmp_path: Path) -> None:
    config = config_of(
        outputs=[("OUTPUT0", "FP32", [-1, 2])],
        max_batch_size=8,
        output_reshapes={"OUTPUT0": [2, -1]},
    )
    body = answering("np.arange(6, dtype=np.float32).reshape(1, 2, 3)")
    (response,) = execute(model(tmp_path, body, config), request_of(floats(1)))
    assert outputs_of(response)["OUTPUT0"].tolist() == [[[0, 1], [2, 3], [4, 5]]]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("np.zeros((1, 1))", "must be FP32, got FP64"),
        ("np.zeros((1, 1), 'M8[s]')", "must be FP32, got datetime64[s]"),
        ("np.array([['x']])", "must be FP32, got BYTES"),
        (
            "np.zeros(1, np.float32)",
            "must have 2 dimensions as in [-1,-1], got shape [1]",
        ),
        (
            "np.float32(1).reshape(())",
            "must have 2 dimensions as in [-1,-1], got shape []",
        ),
    ],
)
def test_an_output_unlike_its_configuration_fails_its_request_only(
    tmp_path: Path, expression: str, fault: str
) -> None:
    body = f"""
good = np.ones((1, 1), np.float32)
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
        for array in (np.asarray({expression}), good)]
"""
    bad, good = execute(model(tmp_path, body), request_of(floats(1)), request_of(floats(1)))
    assert error_of(bad) == f"INTERNAL: model 'm': output 'OUTPUT0' {fault}"
    assert outputs_of(good)["OUTPUT0"].tolist() == [[1]]


def test_a_parameter_lets_other_data_types_and_ranks_pass(tmp_path: Path) -> None:
    config = config_of(
        outputs=[("OUTPUT0", "FP32", [-1])], max_batch_size=8, UNCHECKED_OUTPUTS="yes"
    )
    body = """
arrays = (np.zeros(2, np.int64), np.array(["x"]), np.ones((1, 1), np.float32))
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""
    responses = execute(model(tmp_path, body, config), *[request_of(floats(1)) for _ in range(3)])
    values = [outputs_of(response)["OUTPUT0"].tolist() for response in responses]
    assert values == [[0, 0], [b"x"], [[1]]]
    assert [response.outputs[0].datatype for response in responses] == ["INT64", "BYTES", "FP32"]


@pytest.mark.parametrize(
    ("tensors", "fault"),
    [
        ('[pb_utils.Tensor("OTHER", ones)]', "output 'OTHER' is not in its configuration"),
        ('[pb_utils.Tensor("OUTPUT0", ones)] * 2', "output 'OUTPUT0' came twice"),
        (
            "[pb_utils.Tensor('OUTPUT0', np.array([['\\ud800']], object))]",
            "output 'OUTPUT0' must be FP32, got BYTES",
        ),
    ],
)
def test_an_output_that_cannot_go_out_fails_its_request(
    tmp_path: Path, tensors: str, fault: str
) -> None:
    body = f"ones = np.ones((1, 1), np.float32)\nreturn [pb_utils.InferenceResponse({tensors})]"
    (response,) = execute(model(tmp_path, body), request_of(floats(1)))
    assert error_of(response) == f"INTERNAL: model 'm': {fault}"


def test_text_that_is_no_unicode_and_objects_without_text_fail_their_request(
    tmp_path: Path,
) -> None:
    config = config_of(outputs=[("OUTPUT0", "BYTES", [1])])
    body = """
class Mute:
    def __str__(self):
        raise LookupError("no words")
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value], object))])
        for value in ("\\ud800", Mute())]
"""
    first, second = execute(
        model(tmp_path, body, config), request_of(floats(1)), request_of(floats(1))
    )
    assert error_of(first).startswith("INTERNAL: model 'm': output 'OUTPUT0' 'utf-8' codec can't")
    assert error_of(second) == "INTERNAL: model 'm': output 'OUTPUT0' no words"


def test_an_element_whose_error_has_no_text_fails_its_request(tmp_path: Path) -> None:
    config = config_of(outputs=[("OUTPUT0", "BYTES", [1])])
    body = """
class Bad(BaseException):
    def __str__(self):
        raise SystemExit
class Mute:
    def __str__(self):
        raise Bad
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value], object))])
        for value in (Mute(), "fine")]
"""
    bad, good = execute(model(tmp_path, body, config), request_of(floats(1)), request_of(floats(1)))
    assert error_of(bad) == "INTERNAL: model 'm': output 'OUTPUT0' Bad"
    assert outputs_of(good)["OUTPUT0"].tolist() == [b"fine"]


def test_an_error_without_end_is_cut_and_says_how_long_it_was(tmp_path: Path) -> None:
    body = """
error = pb_utils.TritonError("x" * 10_000_000)
return [pb_utils.InferenceResponse(error=error)]
"""
    (response,) = execute(model(tmp_path, body), request_of(floats(1)))
    assert error_of(response) == f"INTERNAL: {'x' * 4096}… (10000000 characters)"
    (response,) = execute(model(tmp_path, 'raise ValueError("x" * 10_000)'), request_of(floats(1)))
    assert error_of(response) == (
        f"INTERNAL: model instance 'm_0_0': execute raised ValueError: {'x' * 988}… "
        "(10012 characters) (at 1/model.py:6 in execute)"
    )


def test_an_error_just_short_enough_is_whole(tmp_path: Path) -> None:
    body = 'return [pb_utils.InferenceResponse(error=pb_utils.TritonError("x" * 4096))]'
    (response,) = execute(model(tmp_path, body), request_of(floats(1)))
    assert error_of(response) == f"INTERNAL: {'x' * 4096}"


def test_an_error_response_fails_its_request_with_its_code_and_nothing_else(
    tmp_path: Path,
) -> None:
    body = """
tensor = pb_utils.Tensor("OUTPUT0", np.ones((1, 1), np.float32))
codes = (pb_utils.TritonError.INVALID_ARG, pb_utils.TritonError.UNAVAILABLE)
errors = [pb_utils.TritonError("bad words", code) for code in codes]
errors.append(pb_utils.TritonError("plain"))
return [pb_utils.InferenceResponse([tensor], error=error) for error in errors]
"""
    responses = execute(model(tmp_path, body), *[request_of(floats(1)) for _ in range(3)])
    assert [error_of(response) for response in responses] == [
        "INVALID_ARG: bad words",
        "UNAVAILABLE: bad words",
        "INTERNAL: plain",
    ]
    assert {r.error.reason for r in responses if r.error} == {FailureReason.BACKEND}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("return ()", "must return a list of responses, got tuple"),
        ("return []", "must return a response for each of 2 requests, got 0"),
        ("return [None] * 3", "must return a response for each of 2 requests, got 3"),
        (
            "return [pb_utils.InferenceResponse([]), 'x']",
            "must return a list of InferenceResponse objects, got one of type str",
        ),
        ("raise ValueError('no')", "raised ValueError: no (at 1/model.py:6 in execute)"),
        ("raise SystemExit", "raised SystemExit (at 1/model.py:6 in execute)"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt (at 1/model.py:6 in execute)"),
        (
            "return [pb_utils.InferenceResponse([1])]",
            (
                "raised triton_python_backend_utils.TritonModelException: output_tensors must hold "
                "Tensor objects, got int (at 1/model.py:6 in execute)"
            ),
        ),
    ],
)
def test_a_faulty_execute_fails_every_request_and_the_next_batch_works(
    tmp_path: Path, body: str, fault: str
) -> None:
    instance = model(tmp_path, f"if len(requests) == 2: {body}\n{DOUBLES}")
    responses = execute(instance, request_of(floats(1)), request_of(floats(2)))
    expected = f"INTERNAL: model instance 'm_0_0': execute {fault}"
    assert [error_of(response) for response in responses] == [expected, expected]
    (response,) = execute(instance, request_of(floats(4)))
    assert outputs_of(response)["OUTPUT0"].tolist() == [[8]]


def test_a_model_that_empties_its_list_of_requests_is_still_answered_for(tmp_path: Path) -> None:
    (response,) = execute(model(tmp_path, "requests.clear()\nreturn []"), request_of(floats(1)))
    assert error_of(response).endswith("must return a response for each of 1 requests, got 0")


def test_an_executed_batch_is_not_kept_in_memory(tmp_path: Path) -> None:
    instance = model(tmp_path, "raise ValueError")
    array = floats(1)
    request = request_of(array)
    alive = weakref.ref(request.inputs["INPUT0"].array)
    execute(instance, request)
    del request
    gc.collect()
    assert alive() is None


def test_faults_are_logged_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = model(tmp_path, "raise ValueError('no')")
    for _ in range(9):
        execute(instance, request_of(floats(1)))
    fault = (
        "model instance 'm_0_0': execute raised ValueError: no (at 1/model.py:6 in execute) "
        "(faults so far: {})"
    )
    assert caplog.messages == [fault.format(count) for count in (1, 2, 4, 8)]
