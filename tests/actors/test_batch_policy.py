"""The rules of batching, with lists of numbers for time."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from tests.support.builders import infer, model_config
from tritrio.actors._batch_policy import BatchPolicy, QueueRules, batch_policy
from tritrio.actors.messages import Infer
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb import inference as pb


def policy(rows_max: int = 8, **attributes: Any) -> BatchPolicy:
    return BatchPolicy("model", rows_max=rows_max, batching=True, **attributes)


def configured(config: pb.ModelConfig) -> BatchPolicy:
    return batch_policy(config, ModelSpec.from_config(config, 1))


def add(queue: BatchPolicy, number: int, *, at_s: float = 0.0, **attributes: Any) -> Infer:
    message = infer(number, **attributes)
    assert queue.add(message, at_s) is None
    return message


def ids(infers: list[Infer]) -> list[int]:
    return [int(message.request.id) for message in infers]


def test_without_a_delay_everything_queued_leaves_together() -> None:
    queue = policy()
    for number in range(3):
        add(queue, number)
    assert ids(queue.take(0.0)) == [0, 1, 2]
    assert queue.take(0.0) == []


def test_a_batch_waits_for_company_until_its_oldest_request_is_due() -> None:
    queue = policy(delay_max_s=0.5)
    add(queue, 1, at_s=1.0)
    assert queue.take(1.0) == []
    add(queue, 2, at_s=1.25)
    assert queue.take(1.499) == []
    assert queue.ripe_at_s() == 1.5
    assert ids(queue.take(1.5)) == [1, 2]
    assert queue.ripe_at_s() == inf


def test_a_full_batch_leaves_at_once_and_is_never_exceeded() -> None:
    queue = policy(4, delay_max_s=0.5)
    for number, rows in enumerate([2, 1, 2, 1]):
        add(queue, number, rows=rows)
    assert ids(queue.take(0.0)) == [0, 1]  # 2 + 1 + 2 would be 5
    assert queue.take(0.0) == []
    add(queue, 4)
    assert ids(queue.take(0.0)) == [2, 3, 4]


def test_a_request_without_rows_counts_as_one() -> None:
    queue = policy(2)
    for number in range(3):
        add(queue, number, rows=0)
    assert ids(queue.take(0.0)) == [0, 1]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1] * 3, []),  # waits: no preferred size
        ([1] * 4, [0, 1, 2, 3]),
        ([1] * 5, [0, 1, 2, 3]),  # exactly the preferred prefix
        ([1] * 6, [0, 1, 2, 3, 4, 5]),  # the largest that is reached
        ([3, 2], []),
        ([3, 4], [0]),  # 7 passes the largest preferred size and none was reached: what there is
        ([3, 6], [0]),  # 9 passes max_batch_size
    ],
)
def test_preferred_sizes_leave_at_once(rows: list[int], expected: list[int]) -> None:
    queue = policy(preferred_sizes=(4, 6), delay_max_s=0.5)
    for number, count in enumerate(rows):
        add(queue, number, rows=count)
    assert ids(queue.take(0.0)) == expected


def test_a_request_beyond_every_preferred_size_does_not_wait() -> None:
    queue = policy(preferred_sizes=(4,), delay_max_s=0.5)
    add(queue, 0, rows=6)
    assert ids(queue.take(0.0)) == [0]


def test_a_late_batch_is_no_larger_than_a_batch_may_be() -> None:
    queue = policy(4, preferred_sizes=(1,), delay_max_s=0.5)
    for number in range(5):
        add(queue, number)
    assert ids(queue.take(0.5)) == [0, 1, 2, 3]


def test_after_the_delay_everything_leaves_beyond_a_preferred_size() -> None:
    queue = policy(preferred_sizes=(4,), delay_max_s=0.5)
    for number in range(6):
        add(queue, number)
    assert ids(queue.take(0.5)) == [0, 1, 2, 3, 4, 5]


def test_a_preferred_size_is_found_among_later_arrivals() -> None:
    """The shortcut that skips a walk must not skip this one."""
    queue = policy(preferred_sizes=(4, 6), delay_max_s=0.5)
    add(queue, 0, rows=3)
    assert queue.take(0.0) == []
    add(queue, 1, rows=2)
    assert queue.take(0.0) == []
    add(queue, 2)
    assert ids(queue.take(0.0)) == [0, 1, 2]


def test_the_smallest_preferred_size_within_reach_is_not_missed() -> None:
    queue = policy(preferred_sizes=(4, 6), delay_max_s=0.5)
    add(queue, 0, rows=3)
    assert queue.take(0.0) == []
    add(queue, 1)
    assert ids(queue.take(0.0)) == [0, 1]


def test_a_higher_level_may_reach_a_preferred_size_in_front() -> None:
    queue = policy(preferred_sizes=(2, 8), delay_max_s=0.5, levels=(QueueRules(), QueueRules()))
    add(queue, 0, rows=3, priority=2)
    assert queue.take(0.0) == []
    add(queue, 1, rows=2, priority=1)
    assert ids(queue.take(0.0)) == [1]


def test_a_removal_lets_a_preferred_size_come_about() -> None:
    queue = policy(preferred_sizes=(3, 8), delay_max_s=0.5)
    add(queue, 0)
    spoiler = add(queue, 1)
    add(queue, 2, rows=2)
    assert queue.take(0.0) == []  # 1, 2, 4 rows
    assert queue.remove(spoiler)
    assert not queue.remove(spoiler)
    assert ids(queue.take(0.0)) == [0, 2]


def test_requests_of_unequal_shapes_leave_apart_and_in_order() -> None:
    queue = configured(model_config(batching=pb.ModelDynamicBatching()))
    for number, width in enumerate([5, 7, 5]):
        add(queue, number, shape=(width,))
    assert [ids(queue.take(0.0)) for _ in range(3)] == [[0], [1], [2]]
    assert queue.shape_splits == 2


def test_another_shape_sends_the_batch_before_its_delay() -> None:
    delayed = pb.ModelDynamicBatching(max_queue_delay_microseconds=500_000)
    queue = configured(model_config(batching=delayed))
    add(queue, 0, shape=(5,))
    assert queue.take(0.0) == []
    add(queue, 1, shape=(7,))
    assert ids(queue.take(0.0)) == [0]
    assert queue.take(0.0) == []


def test_ragged_inputs_share_a_batch_whatever_their_shapes() -> None:
    queue = configured(model_config(batching=pb.ModelDynamicBatching(), ragged=True))
    for number, width in enumerate([5, 7, 5]):
        add(queue, number, shape=(width,))
    assert ids(queue.take(0.0)) == [0, 1, 2]


def test_requests_with_other_optional_inputs_leave_apart() -> None:
    config = model_config(batching=pb.ModelDynamicBatching(), dims=(4,))
    config.input.append(
        pb.ModelInput(name="INPUT1", data_type=pb.DataType.TYPE_INT32, dims=[4], optional=True)
    )
    queue = configured(config)
    add(queue, 0)
    add(queue, 1, inputs=("INPUT1", "INPUT0"))
    add(queue, 2, inputs=("INPUT0", "INPUT1"))
    assert [ids(queue.take(0.0)) for _ in range(2)] == [[0], [1, 2]]


@pytest.mark.parametrize(
    "config",
    [
        model_config(batching=None),
        model_config(max_batch_size=0, batching=None),
        model_config(max_batch_size=0, batching=pb.ModelDynamicBatching()),
    ],
)
def test_without_batching_each_request_leaves_alone(config: pb.ModelConfig) -> None:
    queue = configured(config)
    add(queue, 0)
    add(queue, 1)
    assert [ids(queue.take(0.0)) for _ in range(3)] == [[0], [1], []]


def test_a_full_queue_refuses_and_a_removal_makes_room() -> None:
    queue = policy(levels=(QueueRules(size_max=2),))
    first = add(queue, 0)
    add(queue, 1)
    error = queue.add(infer(2), 0.0)
    assert isinstance(error, RequestError)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.reason is FailureReason.REJECTED
    assert "2" in error.message
    assert "'model'" in error.message
    queue.remove(first)
    add(queue, 3)
    assert ids(queue.take(0.0)) == [1, 3]


def test_requests_time_out_at_their_own_deadlines() -> None:
    rules = QueueRules(timeout_us=500_000, override_below_us=500_000)
    queue = policy(levels=(rules,))
    add(queue, 0, at_s=1.0)
    add(queue, 1, at_s=1.0, timeout_us=250_000)
    add(queue, 2, at_s=1.0, timeout_us=750_000)  # longer than the default: does not count
    assert queue.timeout_at_s() == 1.25
    assert queue.expire(1.249) == []
    assert ids(queue.expire(1.25)) == [1]
    assert queue.timeout_at_s() == 1.5
    assert ids(queue.expire(1.5)) == [0, 2]
    assert queue.timeout_at_s() == inf
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("allowed", "default_us", "own_us", "deadline_s"),
    [
        (True, 1_000_000, 500_000, 0.5),
        (True, 1_000_000, 1_000_000, 1.0),
        (False, 1_000_000, 500_000, 1.0),
        (True, 0, 500_000, inf),  # with no default an override never applies
    ],
)
def test_an_override_counts_only_if_allowed_and_shorter(
    allowed: bool, default_us: int, own_us: int, deadline_s: float
) -> None:
    queue = configured(
        model_config(
            batching=pb.ModelDynamicBatching(
                default_queue_policy=pb.ModelQueuePolicy(
                    default_timeout_microseconds=default_us, allow_timeout_override=allowed
                )
            )
        )
    )
    add(queue, 0, timeout_us=own_us)
    assert queue.timeout_at_s() == deadline_s


def test_without_dynamic_batching_the_timeout_of_a_request_counts() -> None:
    queue = configured(model_config(batching=None))
    add(queue, 0, timeout_us=500_000)
    add(queue, 1)
    assert queue.timeout_at_s() == 0.5


def test_a_delayed_request_goes_last_in_its_level_and_never_times_out_again() -> None:
    queue = policy(1, levels=(QueueRules(timeout_us=500_000, delays=True), QueueRules()))
    add(queue, 0, at_s=0.0)
    add(queue, 1, at_s=0.25)
    add(queue, 2, at_s=0.25, priority=2)
    assert queue.expire(0.5) == []
    assert [ids(queue.take(0.5)) for _ in range(4)] == [[1], [0], [2], []]
    assert queue.timeout_at_s() == inf


def test_delayed_requests_count_for_the_limit_of_their_level() -> None:
    queue = policy(1, levels=(QueueRules(size_max=2, timeout_us=500_000, delays=True),))
    add(queue, 0)
    assert queue.expire(0.5) == []
    add(queue, 1, at_s=0.5)
    assert queue.add(infer(2), 0.5) is not None


def test_lower_levels_go_first_and_unknown_levels_are_the_default() -> None:
    rules = (QueueRules(), QueueRules(size_max=2), QueueRules())
    queue = policy(1, levels=rules, default_level=2)
    for number, priority in enumerate([3, 0, 2**63, 1]):
        add(queue, number, priority=priority)
    assert queue.add(infer(4, priority=2), 0.0) is not None  # the default level is full
    assert [ids(queue.take(0.0)) for _ in range(4)] == [[3], [1], [2], [0]]


def test_priorities_come_from_the_configuration() -> None:
    batching = pb.ModelDynamicBatching(
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=pb.ModelQueuePolicy(max_queue_size=1),
        priority_queue_policy={1: pb.ModelQueuePolicy(max_queue_size=2)},
    )
    queue = configured(model_config(batching=batching))
    for number, priority in enumerate([1, 0, 1]):
        add(queue, number, priority=priority)
    assert queue.add(infer(3, priority=1), 0.0) is not None
    assert queue.add(infer(4, priority=2), 0.0) is not None
    assert ids(queue.take(0.0)) == [0, 2, 1]


def test_deadlines_of_requests_that_left_are_not_kept() -> None:
    queue = policy(1, levels=(QueueRules(timeout_us=10**9),))
    for number in range(1000):
        add(queue, number)
        assert ids(queue.take(0.0)) == [number]
    assert len(queue._deadlines) < 100


def test_cancelled_requests_can_be_swept() -> None:
    queue = policy()
    for number in range(4):
        message = add(queue, number)
        message.request.cancelled = number % 2 == 1
    assert ids(queue.remove_cancelled()) == [1, 3]
    assert ids(queue.remove_all()) == [0, 2]
    assert len(queue) == 0
