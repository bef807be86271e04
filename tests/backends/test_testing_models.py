"""The test backends that answer on the instance's thread: sequences, states, addsub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.backends.builders import error_of, loaded, outputs_of, request_of, source_in
from tests.support.testing_models import example_config
from tritrio.backends.base import (
    Batch,
    HearsSequenceEnds,
    ModelInstance,
    SequenceEnd,
    SequenceEndReason,
)
from tritrio.backends.registry import get_backend
from tritrio.backends.testing_models import Pauses
from tritrio.protocol.pb.inference import (
    DataType,
    ModelConfig,
    ModelParameter,
    ModelSequenceBatchingStrategyOldest,
)
from tritrio.protocol.requests import InferRequest, InferResponse

MAX, MIN = 2**31 - 1, -(2**31)


def example(directory: Path, name: str, config: ModelConfig | None = None) -> ModelInstance:
    config = config or example_config(name)
    return loaded(get_backend(config.backend), source_in(directory), config)


def row(
    values: list[int], flags: str = "", sequence_id: int | str = 1, *, ready: bool = True
) -> InferRequest:
    """One row of a sequence; flags: ">" for START, "." for END."""
    if isinstance(sequence_id, str):
        corrid = np.array([[sequence_id.encode()]], np.object_)
    else:
        corrid = np.array([[sequence_id]], np.uint64)
    request = request_of(
        INPUT=np.array([values], np.int32),
        START=np.array([[">" in flags]], np.int32),
        END=np.array([["." in flags]], np.int32),
        READY=np.array([[ready]], np.int32),
        CORRID=corrid,
    )
    request.sequence_id = sequence_id
    return request


def answers(instance: ModelInstance, *requests: InferRequest) -> list[list[int] | None]:
    """What each row of a batch is answered; None for no answer."""
    batch = Batch(requests)
    instance.execute(batch)
    assert 0 < batch.compute_start_ns <= batch.infer_end_ns <= batch.compute_end_ns
    return [
        None if response is None else outputs_of(response)["OUTPUT"].ravel().tolist()
        for response in batch.responses
    ]


def only(instance: ModelInstance, request: InferRequest) -> InferResponse:
    batch = Batch([request])
    instance.execute(batch)
    (response,) = batch.responses
    assert response is not None
    return response


def test_a_sum_belongs_to_its_row_and_begins_anew_with_a_start(tmp_path: Path) -> None:
    instance = example(tmp_path, "custom_sequence_int32")
    assert answers(instance, row([1, 2], ">"), row([5, 5], ">", 2)) == [[3, 3], [10, 10]]
    assert answers(instance, row([1]), row([1], "", 2)) == [[4], [11]]
    assert answers(instance, row([1], "", 2)) == [[5]]  # a row knows no correlation id
    assert answers(instance, row([7], ">"), row([0], "", 2)) == [[7], [11]]


def test_a_row_that_is_not_ready_changes_nothing(tmp_path: Path) -> None:
    instance = example(tmp_path, "custom_sequence_int32")
    assert answers(instance, row([1], ">"), row([2], ">", 2)) == [[1], [2]]
    assert answers(instance, row([9], ">", ready=False), row([1], "", 2)) == [None, [3]]
    assert answers(instance, row([1])) == [[2]]


@pytest.mark.parametrize(
    ("first", "then", "total"), [(MAX, 1, MIN), (MIN, -1, MAX), (MAX, MAX, -2)]
)
def test_sums_wrap_as_int32_do(tmp_path: Path, first: int, then: int, total: int) -> None:
    instance = example(tmp_path, "custom_sequence_int32")
    assert answers(instance, row([first], ">")) == [[first]]
    assert answers(instance, row([then])) == [[total]]


def test_with_the_strategy_oldest_a_sum_belongs_to_its_correlation_id(tmp_path: Path) -> None:
    config = example_config("custom_sequence_int32")
    assert config.sequence_batching is not None
    config.sequence_batching.direct = None
    config.sequence_batching.oldest = ModelSequenceBatchingStrategyOldest()
    instance = example(tmp_path, "", config)
    assert answers(instance, row([1], ">", 1), row([10], ">", 2)) == [[1], [10]]
    assert answers(instance, row([1], "", 2), row([1], "", 1)) == [[11], [2]]


def test_the_correlation_id_is_added_to_the_last_answer(tmp_path: Path) -> None:
    instance = example(tmp_path, "custom_dyna_sequence_int32")
    big = 2**32 + 100  # its low bits count
    assert answers(instance, row([1], ">", 7), row([2], ">", big)) == [[1], [2]]
    assert answers(instance, row([1], ".", big), row([1, 1], "", 7)) == [[103], [3, 3]]
    assert answers(instance, row([1], ".", 7)) == [[11]]
    assert answers(instance, row([3], ">.", 2**64 - 1)) == [[2]]


def test_a_text_for_an_id_counts_as_the_number_it_is(tmp_path: Path) -> None:
    config = example_config("custom_dyna_sequence_int32")
    assert config.sequence_batching is not None
    config.sequence_batching.control_input[3].control[0].data_type = DataType.TYPE_STRING
    instance = example(tmp_path, "", config)
    assert answers(instance, row([1], ">.", "20")) == [[21]]
    assert error_of(only(instance, row([1], ">.", "twenty"))) == (
        "INVALID_ARG: model 'm': expected a correlation id that is a number, got 'twenty'"
    )


@pytest.mark.parametrize("reason", [SequenceEndReason.IDLE, SequenceEndReason.END_FLAG])
def test_the_sum_of_a_sequence_that_is_over_is_forgotten(
    tmp_path: Path, reason: SequenceEndReason
) -> None:
    instance = example(tmp_path, "custom_dyna_sequence_int32")
    assert isinstance(instance, HearsSequenceEnds)
    assert instance.hears_sequence_ends
    assert answers(instance, row([1], ">", 7), row([2], ">", 8)) == [[1], [2]]
    instance.sequences_ended([SequenceEnd(7, reason), SequenceEnd(9, reason)])
    assert answers(instance, row([1], "", 7), row([1], "", 8)) == [[1], [3]]


def test_a_sequence_of_rows_hears_of_no_ends(tmp_path: Path) -> None:
    instance = example(tmp_path, "custom_sequence_int32")
    assert isinstance(instance, HearsSequenceEnds)
    assert not instance.hears_sequence_ends


@pytest.mark.parametrize("name", ["custom_sequence_int32", "custom_dyna_sequence_int32"])
def test_an_execution_takes_its_delay_unless_nobody_waits(tmp_path: Path, name: str) -> None:
    config = example_config(name)
    for milliseconds, cancelled in ((3, False), (3_600_000, True)):
        value = ModelParameter(string_value=str(milliseconds))
        config.parameters["execute_delay_ms"] = value
        request = row([1], ">")
        request.cancelled = cancelled
        batch = Batch([request])
        example(tmp_path, "", config).execute(batch)
        assert cancelled or batch.infer_end_ns - batch.infer_start_ns >= 3_000_000


def test_a_delay_goes_on_as_long_as_somebody_waits() -> None:
    gone, here = row([1]), row([1])
    gone.cancelled = True
    pauses = Pauses()
    assert pauses.wait(0)
    assert pauses.wait(0, [gone, here])
    assert not pauses.wait(3600, [gone, gone])
    pauses.end()
    assert not pauses.wait(0, [here])
    assert not pauses.wait(3600)


def iterate(instance: ModelInstance, *requests: InferRequest) -> tuple[list[object], set[int]]:
    """(index, value or error, final) of what is posted, and what wants another execution."""
    posted: list[object] = []
    batch = Batch(requests)

    def post(index: int, response: InferResponse) -> None:
        value = error_of(response) if response.error else outputs_of(response)["OUTPUT"].item()
        posted.append((index, value, response.final))

    batch.post = post
    instance.execute(batch)
    return posted, batch.rescheduled


def test_an_iterative_request_counts_down_one_execution_at_a_time(tmp_path: Path) -> None:
    instance = example(tmp_path, "iterative_sequence")
    two, one = row([3], sequence_id=1), row([1], sequence_id=2)
    assert iterate(instance, two, one) == ([(0, 2, False), (1, 0, True)], {0})
    assert iterate(instance, two) == ([(0, 1, False)], {0})
    assert iterate(instance, two) == ([(0, 0, True)], set())
    assert iterate(instance, two) == ([(0, 2, False)], {0})
    assert isinstance(instance, HearsSequenceEnds)
    assert instance.hears_sequence_ends
    instance.sequences_ended([SequenceEnd(1, SequenceEndReason.CANCELLED)])
    assert iterate(instance, two) == ([(0, 2, False)], {0})


@pytest.mark.parametrize(("value", "answer"), [(0, -1), (-5, -6), (MIN, MAX)])
def test_what_is_not_positive_is_answered_once(tmp_path: Path, value: int, answer: int) -> None:
    instance = example(tmp_path, "iterative_sequence")
    assert iterate(instance, row([value])) == ([(0, answer, True)], set())


def test_a_count_down_has_one_number(tmp_path: Path) -> None:
    config = example_config("iterative_sequence")
    config.sequence_batching = None  # else no client may send two rows
    message = "INVALID_ARG: model 'm': expected one element, got 2"
    two = request_of(INPUT=np.array([[3], [3]], np.int32))
    assert iterate(example(tmp_path, "", config), two) == ([(0, message, True)], set())


def test_without_iterative_sequences_another_execution_is_an_error(tmp_path: Path) -> None:
    config = example_config("iterative_sequence")
    config.sequence_batching = None
    instance = example(tmp_path, "", config)
    assert iterate(instance, row([1], sequence_id=0)) == ([(0, 0, True)], set())
    message = (
        "INVALID_ARG: model 'm': the release flag TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is for "
        "models with iterative_sequence only, and it has none"
    )
    assert iterate(instance, row([2], sequence_id=0)) == ([(0, message, True)], set())


def state_request(value: int, case: int, state: int = 40, *, ready: bool = True) -> InferRequest:
    return request_of(
        batched=False,
        INPUT=np.array([value], np.int32),
        TEST_CASE=np.array([case], np.int32),
        INPUT_STATE=np.array([state], np.int32),
        READY=np.array([ready], np.float32),
    )


def test_only_test_case_2_makes_its_output_the_next_state(tmp_path: Path) -> None:
    instance = example(tmp_path, "single_state_buffer")
    left, kept = only(instance, state_request(2, 1)), only(instance, state_request(2, 2))
    assert outputs_of(left)["OUTPUT"].tolist() == outputs_of(kept)["OUTPUT"].tolist() == [42]
    assert left.states == {}
    assert kept.states is not None
    assert list(kept.states) == ["OUTPUT_STATE"]
    state = kept.states["OUTPUT_STATE"]
    assert (state.datatype, state.shape, state.array.tolist()) == ("INT32", (1,), [42])
    assert state.array is not kept.outputs[0].array


def test_a_filler_has_no_state(tmp_path: Path) -> None:
    batch = Batch([state_request(1, 2, ready=False)])
    example(tmp_path, "single_state_buffer").execute(batch)
    assert batch.responses == [None]


def without_states(config: ModelConfig) -> None:
    assert config.sequence_batching is not None
    config.sequence_batching.state = []


def with_two_buffers(config: ModelConfig) -> None:
    assert config.sequence_batching is not None
    config.sequence_batching.state[0].use_same_buffer_for_input_output = False


def unchanged(config: ModelConfig) -> None:
    assert config.sequence_batching is not None


@pytest.mark.parametrize(
    ("change", "case", "error"),
    [
        (
            unchanged,
            0,
            (
                "INVALID_ARG: model 'm': there is no state 'undefined_state': its configuration "
                "has OUTPUT_STATE"
            ),
        ),
        (
            without_states,
            0,
            (
                "INVALID_ARG: model 'm': there is no state 'undefined_state': its configuration "
                "has no states"
            ),
        ),
        (
            without_states,
            1,
            (
                "INVALID_ARG: model 'm': there is no state 'OUTPUT_STATE': its configuration has "
                "no states"
            ),
        ),
        (
            with_two_buffers,
            2,
            (
                "INVALID_ARG: model 'm': TEST_CASE 2 needs use_same_buffer_for_input_output of its "
                "state, got false"
            ),
        ),
        (
            unchanged,
            3,
            "UNSUPPORTED: model 'm': TEST_CASE 3 needs a GPU, whose memory can grow",
        ),
        (unchanged, 4, "INVALID_ARG: model 'm': TEST_CASE must be from 0 to 3, got 4"),
    ],
)
def test_a_test_case_that_cannot_be_is_an_error(
    tmp_path: Path, change: Callable[[ModelConfig], None], case: int, error: str
) -> None:
    config = example_config("single_state_buffer")
    change(config)
    assert error_of(only(example(tmp_path, "", config), state_request(1, case))) == error


def test_sum_and_difference_wrap_as_int32_do(tmp_path: Path) -> None:
    instance = example(tmp_path, "distributed_int32")
    left, right = np.array([[3, MAX]], np.int32), np.array([[5, -1]], np.int32)
    outputs = outputs_of(only(instance, request_of(left, right)))
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "OUTPUT0": [[8, MAX - 1]],
        "OUTPUT1": [[-2, MIN]],
    }
    (tensor,) = only(instance, request_of(left, right, asked=["OUTPUT1"])).outputs
    assert tensor.name == "OUTPUT1"
    assert error_of(only(instance, request_of(left, right[:, :1]))) == (
        "INVALID_ARG: model 'm': the shapes of INPUT0 and INPUT1 must match, got [1,2] and [1,1]"
    )
