"""The test backends repeat and square, whose responses come from threads of their own."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest

from tests.backends.builders import config_of, error_of, loaded, outputs_of, request_of, source_in
from tritrio.backends.base import Batch, ModelInstance
from tritrio.backends.registry import get_backend
from tritrio.backends.testing_streams import RESPONDING_MAX
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import ModelConfig, ModelParameter, ModelTransactionPolicy
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput

PATIENCE_S = 30.0
BLOCKED_S = 0.1
"""How long a thread must stay where it is to count as blocked."""
HOUR_MS = 3_600_000
REPEAT_INPUTS = [("IN", "INT32", [-1]), ("DELAY", "UINT32", [-1]), ("WAIT", "UINT32", [1])]
REPEAT_OUTPUTS = [("OUT", "INT32", [1]), ("IDX", "UINT32", [1])]


def decoupled(config: ModelConfig) -> ModelConfig:
    config.model_transaction_policy = ModelTransactionPolicy(decoupled=True)
    return config


def repeat_config(max_batch_size: int = 0) -> ModelConfig:
    return decoupled(config_of(REPEAT_INPUTS, REPEAT_OUTPUTS, max_batch_size=max_batch_size))


def square_config(**parameters: str) -> ModelConfig:
    config = config_of([("IN", "INT32", [1])], [("OUT", "INT32", [1])])
    for key, value in parameters.items():
        config.parameters[key] = ModelParameter(string_value=value)
    return decoupled(config)


def repeat_request(values: list[int], delays_ms: list[int], wait_ms: int = 0) -> InferRequest:
    return request_of(
        batched=False,
        IN=np.array(values, np.int32),
        DELAY=np.array(delays_ms, np.uint32),
        WAIT=np.array([wait_ms], np.uint32),
    )


def square_request(count: int) -> InferRequest:
    return request_of(batched=False, IN=np.array([count], np.int32))


@dataclass
class Execution:
    """One batch of a decoupled model, and what it posts."""

    batch: Batch
    posted: SimpleQueue[tuple[int, InferResponse]] = field(default_factory=SimpleQueue)

    def next(self) -> InferResponse:
        return self.posted.get(timeout=PATIENCE_S)[1]

    def all(self) -> list[InferResponse]:
        """All responses to the one request, the last of which is final."""
        responses = [self.next()]
        while not responses[-1].final:
            responses.append(self.next())
        return responses


def begin(instance: ModelInstance, *requests: InferRequest) -> Execution:
    batch = Batch(requests)
    execution = Execution(batch)
    batch.post = lambda index, response: execution.posted.put((index, response))
    instance.execute(batch)
    stamps = [
        batch.compute_start_ns,
        batch.infer_start_ns,
        batch.infer_end_ns,
        batch.compute_end_ns,
    ]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0
    return execution


def repeating(directory: Path) -> ModelInstance:
    return loaded(get_backend("repeat"), source_in(directory), repeat_config())


def pairs(responses: list[InferResponse]) -> list[Any]:
    """What each response but the last has, which is a bare end."""
    *answers, end = responses
    assert (end.empty, end.outputs, end.error) == (True, [], None)
    assert not any(answer.empty for answer in answers)
    return [[array.tolist() for array in outputs_of(answer).values()] for answer in answers]


def test_each_element_comes_back_with_its_index_and_then_a_bare_end(tmp_path: Path) -> None:
    responses = begin(repeating(tmp_path), repeat_request([7, -1, 7], [0, 0, 0])).all()
    assert pairs(responses) == [[[7], [0]], [[-1], [1]], [[7], [2]]]
    assert [tensor.datatype for tensor in responses[0].outputs] == ["INT32", "UINT32"]


def test_no_elements_are_answered_with_the_bare_end_alone(tmp_path: Path) -> None:
    assert pairs(begin(repeating(tmp_path), repeat_request([], [])).all()) == []


def test_only_the_outputs_asked_for_are_in_the_responses(tmp_path: Path) -> None:
    request = repeat_request([5], [0])
    request.outputs = (RequestedOutput("IDX"),)
    assert pairs(begin(repeating(tmp_path), request).all()) == [[[0]]]


def test_a_request_to_a_model_that_batches_has_one_row_and_answers_with_one(
    tmp_path: Path,
) -> None:
    instance = loaded(get_backend("repeat"), source_in(tmp_path), repeat_config(4))
    one = np.array([[3, 4]], np.int32)
    zero = np.zeros((1, 2), np.uint32)
    wait = np.zeros((1, 1), np.uint32)
    responses = begin(instance, request_of(IN=one, DELAY=zero, WAIT=wait)).all()
    assert pairs(responses) == [[[[3]], [[0]]], [[[4]], [[1]]]]
    two = request_of(
        IN=np.ones((2, 1), np.int32), DELAY=np.ones((2, 1), np.uint32), WAIT=np.ones((2, 1), "u4")
    )
    (response,) = begin(instance, two).all()
    assert error_of(response) == "INVALID_ARG: model 'm': expected one row, got 2"


def test_elements_and_delays_of_different_shapes_are_refused(tmp_path: Path) -> None:
    (response,) = begin(repeating(tmp_path), repeat_request([1, 2], [0])).all()
    assert error_of(response) == (
        "INVALID_ARG: model 'm': the shapes of IN and DELAY must match, got [2] and [1]"
    )


def test_the_instance_goes_on_while_a_request_waits_for_its_delay(tmp_path: Path) -> None:
    instance = repeating(tmp_path)
    slow = begin(instance, repeat_request([1, 2], [0, HOUR_MS]))
    assert pairs(begin(instance, repeat_request([3], [0])).all()) == [[[3], [0]]]
    assert outputs_of(slow.next())["OUT"].tolist() == [1]
    slow.batch.requests[0].cancelled = True
    assert pairs(slow.all()) == []


def test_a_response_comes_no_sooner_than_its_delay(tmp_path: Path) -> None:
    start_ns = perf_counter_ns()
    execution = begin(repeating(tmp_path), repeat_request([1, 2], [3, 4]))
    execution.next()
    assert perf_counter_ns() - start_ns >= 3_000_000
    execution.next()
    assert perf_counter_ns() - start_ns >= 7_000_000


def test_the_instance_is_busy_for_the_wait(tmp_path: Path) -> None:
    batch = begin(repeating(tmp_path), repeat_request([], [], wait_ms=60)).batch
    assert batch.infer_end_ns - batch.infer_start_ns >= 60_000_000


def test_the_instance_is_busy_for_no_request_that_nobody_waits_for(tmp_path: Path) -> None:
    request = repeat_request([1], [0], wait_ms=HOUR_MS)
    request.cancelled = True
    begin(repeating(tmp_path), request)


def test_an_unload_ends_the_delays(tmp_path: Path) -> None:
    instance = repeating(tmp_path)
    execution = begin(instance, repeat_request([1, 2], [HOUR_MS, 0]))
    instance.unload()
    assert pairs(execution.all()) == []


def test_as_many_requests_are_answered_at_once_as_there_is_room_for(tmp_path: Path) -> None:
    instance = repeating(tmp_path)
    request = repeat_request([1], [HOUR_MS])
    held = [begin(instance, request) for _ in range(RESPONDING_MAX)]
    last = repeat_request([2], [0])
    execution: list[Execution] = []
    thread = threading.Thread(target=lambda: execution.append(begin(instance, last)))  # noqa: TID251
    thread.start()
    thread.join(BLOCKED_S)
    assert thread.is_alive()
    request.cancelled = True
    thread.join(PATIENCE_S)
    assert pairs(execution[0].all()) == [[[2], [0]]]
    assert [pairs(each.all()) for each in held] == [[]] * RESPONDING_MAX


@pytest.mark.parametrize("count", [0, -3, 1, 3])
def test_a_number_comes_back_as_often_as_it_says(tmp_path: Path, count: int) -> None:
    instance = loaded(get_backend("square"), source_in(tmp_path), square_config())
    responses = begin(instance, square_request(count)).all()
    assert pairs(responses) == [[[count]]] * max(0, count)


def test_the_last_responses_are_left_out_and_those_before_them_fail(tmp_path: Path) -> None:
    config = square_config(CUSTOM_FAIL_COUNT="2", CUSTOM_EMPTY_COUNT="1")
    instance = loaded(get_backend("square"), source_in(tmp_path), config)
    value, first, second, end = begin(instance, square_request(4)).all()
    assert outputs_of(value)["OUT"].tolist() == [4]
    for response in (first, second):
        assert error_of(response) == (
            "UNKNOWN: model 'm': this response fails, as CUSTOM_FAIL_COUNT wants it"
        )
        assert not response.final
    assert end.empty
    assert begin(instance, square_request(1)).all()[0].empty


@pytest.mark.parametrize("key", ["CUSTOM_INFER_DELAY_NS", "CUSTOM_OUTPUT_DELAY_NS"])
def test_the_delays_of_square_end_when_its_client_leaves(tmp_path: Path, key: str) -> None:
    config = square_config(**{key: str(3600 * 10**9)})
    instance = loaded(get_backend("square"), source_in(tmp_path), config)
    execution = begin(instance, square_request(2))
    execution.batch.requests[0].cancelled = True
    assert pairs(execution.all()) == []


def test_a_response_that_is_left_out_has_no_output_delay(tmp_path: Path) -> None:
    config = square_config(CUSTOM_OUTPUT_DELAY_NS=str(3600 * 10**9), CUSTOM_EMPTY_COUNT="5")
    instance = loaded(get_backend("square"), source_in(tmp_path), config)
    assert pairs(begin(instance, square_request(5)).all()) == []


@pytest.mark.parametrize(
    ("backend", "config", "message"),
    [
        (
            "repeat",
            decoupled(config_of(REPEAT_INPUTS[:2], REPEAT_OUTPUTS)),
            (
                "model 'm': the backend 'repeat' wants "
                "the input vectors 'IN' INT32, 'DELAY' UINT32, "
                "'WAIT' UINT32 without reshape, got 'IN' INT32 [-1], 'DELAY' UINT32 [-1]"
            ),
        ),
        (
            "repeat",
            decoupled(config_of(REPEAT_INPUTS, [*REPEAT_OUTPUTS[:1], ("IDX", "INT32", [1])])),
            (
                "model 'm': the backend 'repeat' wants "
                "the output vectors 'OUT' INT32, 'IDX' UINT32 "
                "without reshape, got 'OUT' INT32 [1], 'IDX' INT32 [1]"
            ),
        ),
        (
            "square",
            decoupled(config_of([("IN", "INT32", [1, 1])], [("OUT", "INT32", [1])])),
            (
                "model 'm': the backend 'square' wants "
                "the input vectors 'IN' INT32 without reshape, "
                "got 'IN' INT32 [1,1]"
            ),
        ),
        (
            "square",
            decoupled(
                config_of([("IN", "INT32", [1]), ("MORE", "FP32", [])], [("OUT", "INT32", [1])])
            ),
            (
                "model 'm': the backend 'square' wants the input vectors 'IN' INT32 without "
                "reshape, got 'IN' INT32 [1], 'MORE' FP32 []"
            ),
        ),
        (
            "square",
            decoupled(
                config_of(
                    [("IN", "INT32", [1])], [("OUT", "INT32", [1])], output_reshapes={"OUT": [1]}
                )
            ),
            (
                "model 'm': the backend 'square' wants "
                "the output vectors 'OUT' INT32 without reshape, "
                "got 'OUT' INT32 [1] with reshape"
            ),
        ),
        *[
            (
                kind,
                config,
                (
                    f"model 'm': the backend '{kind}' wants model_transaction_policy "
                    "{ decoupled: true }, got none"
                ),
            )
            for kind, config in (
                ("repeat", config_of(REPEAT_INPUTS, REPEAT_OUTPUTS)),
                ("square", config_of([("IN", "INT32", [1])], [("OUT", "INT32", [1])])),
            )
        ],
        (
            "square",
            square_config(CUSTOM_FAIL_COUNT="some"),
            (
                "model 'm': parameter 'CUSTOM_FAIL_COUNT' must be a whole number from 0 to "
                "2147483648, got 'some'"
            ),
        ),
    ],
)
def test_a_configuration_that_does_not_fit_cannot_be_loaded(
    tmp_path: Path, backend: str, config: ModelConfig, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        loaded(get_backend(backend), source_in(tmp_path), config)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, message)
