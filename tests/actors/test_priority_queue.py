"""The rules of waiting, with lists of numbers for time."""

from __future__ import annotations

from math import inf

import pytest

from tests.support.builders import infer, model_config
from tests.support.queues import add, batching_queue, configured_queue, ids
from tritrio.actors._batch_candidate import BatchReason
from tritrio.actors._priority_queue import RETRY_S_MAX, RETRY_S_MIN
from tritrio.actors._queue_rules import QueueRules
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb


def test_a_full_queue_refuses_and_a_removal_makes_room() -> None:
    queue = batching_queue(levels=(QueueRules(size_max=2),))
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
    queue = batching_queue(levels=(rules,))
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
    queue = configured_queue(
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
    queue = configured_queue(model_config(batching=None))
    add(queue, 0, timeout_us=500_000)
    add(queue, 1)
    assert queue.timeout_at_s() == 0.5


def test_a_delayed_request_goes_last_in_its_level_and_never_times_out_again() -> None:
    queue = batching_queue(1, levels=(QueueRules(timeout_us=500_000, delays=True), QueueRules()))
    add(queue, 0, at_s=0.0)
    add(queue, 1, at_s=0.25)
    add(queue, 2, at_s=0.25, priority=2)
    assert queue.expire(0.5) == []
    assert [ids(queue.take(0.5)) for _ in range(4)] == [[1], [0], [2], []]
    assert queue.timeout_at_s() == inf


def test_delayed_requests_count_for_the_limit_of_their_level() -> None:
    queue = batching_queue(1, levels=(QueueRules(size_max=2, timeout_us=500_000, delays=True),))
    add(queue, 0)
    assert queue.expire(0.5) == []
    add(queue, 1, at_s=0.5)
    assert queue.add(infer(2), 0.5) is not None


def test_lower_levels_go_first_and_unknown_levels_are_the_default() -> None:
    rules = (QueueRules(), QueueRules(size_max=2), QueueRules())
    queue = batching_queue(1, levels=rules, default_level=2)
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
    queue = configured_queue(model_config(batching=batching))
    for number, priority in enumerate([1, 0, 1]):
        add(queue, number, priority=priority)
    assert queue.add(infer(3, priority=1), 0.0) is not None
    assert queue.add(infer(4, priority=2), 0.0) is not None
    assert ids(queue.take(0.0)) == [0, 2, 1]


def test_deadlines_of_requests_that_left_are_not_kept() -> None:
    queue = batching_queue(1, levels=(QueueRules(timeout_us=10**9),))
    for number in range(1000):
        add(queue, number)
        assert ids(queue.take(0.0)) == [number]
    assert len(queue._queue._deadlines) < 100


def test_a_full_queue_says_how_long_it_takes() -> None:
    queue = batching_queue(1, levels=(QueueRules(size_max=1),))
    add(queue, 0, at_s=10.0)
    for at_s, hint_s in ((10.0, RETRY_S_MIN), (12.5, 2.5), (999.0, RETRY_S_MAX)):
        error = queue.add(infer(1), at_s)
        assert error is not None
        assert error.retry_after_s == hint_s


def test_requests_of_a_lost_instance_go_first_and_alone_beyond_every_limit() -> None:
    queue = batching_queue(levels=(QueueRules(size_max=3),))
    for number in range(3):
        add(queue, number)
    lost = queue.take(0.0)
    for number in range(3, 6):
        add(queue, number, at_s=1.0)
    queue.requeue(lost)
    assert len(queue) == 6
    assert queue.oldest_due_s() == 0.0
    assert queue.add(infer(6), 1.0) is not None
    assert [ids(queue.take(1.0)) for _ in range(4)] == [[0], [1], [2], [3, 4, 5]]


def test_a_request_of_a_lost_instance_goes_in_front_of_its_own_level() -> None:
    queue = batching_queue(1, levels=(QueueRules(), QueueRules()))
    add(queue, 0, priority=2)
    lost = queue.take(0.0)
    add(queue, 1, priority=2)
    add(queue, 2, priority=1)
    queue.requeue(lost)
    assert [ids(queue.take(0.0)) for _ in range(3)] == [[2], [0], [1]]


def test_a_batch_says_that_the_next_request_has_to_be_alone() -> None:
    queue = batching_queue(levels=(QueueRules(), QueueRules()))
    add(queue, 0, priority=2)
    queue.requeue(queue.take(0.0))
    add(queue, 1, priority=1)
    assert ids(queue.take(0.0)) == [1]
    assert (queue.left_out, queue.left_out_keys) == (BatchReason.ALONE, None)
    assert (ids(queue.take(0.0)), queue.reason) == ([0], BatchReason.ALONE)


def test_a_request_of_a_lost_instance_still_times_out_when_it_was_due() -> None:
    queue = batching_queue(1, levels=(QueueRules(timeout_us=500_000),))
    add(queue, 0, at_s=1.0)
    lost = queue.take(1.0)
    assert queue.timeout_at_s() == inf
    queue.requeue(lost)
    assert queue.timeout_at_s() == 1.5
    assert ids(queue.expire(1.5)) == [0]


def test_a_level_starves_those_below_it_until_their_timeout_and_equals_never_starve() -> None:
    queue = batching_queue(1, levels=(QueueRules(), QueueRules(timeout_us=1_000_000)))
    starving = add(queue, 0, priority=2)
    for number in range(1, 5):
        add(queue, number, at_s=number / 4, priority=1)
        expired = queue.expire(number / 4)
        if number < 4:
            assert expired == []
            assert ids(queue.take(number / 4)) == [number]
    assert expired == [starving]


def test_shedding_refuses_and_removes_the_lowest_levels_but_never_the_highest() -> None:
    queue = batching_queue(1, levels=(QueueRules(),) * 4, default_level=3)
    for number, priority in enumerate([1, 2, 3, 4]):
        add(queue, number, priority=priority)
    shed = queue.shed(0.9)
    assert ids([message for message, _ in shed]) == [3]
    assert shed[0][1].code is ErrorCode.UNAVAILABLE
    assert shed[0][1].reason is FailureReason.REJECTED
    assert shed[0][1].retry_after_s == 1.0
    error = queue.add(infer(4, priority=4), 0.0)
    assert error is not None
    assert error.retry_after_s == 1.0
    add(queue, 5)  # the default level is still admitted
    assert queue.shed(0.9) == []
    assert ids([message for message, _ in queue.shed(0.0)]) == [1, 2, 5]
    assert queue.add(infer(6), 0.0) is not None
    add(queue, 7, priority=1)
    assert queue.shed(1.0) == []
    add(queue, 8, priority=4)
    assert [ids(queue.take(0.0)) for _ in range(3)] == [[0], [7], [8]]


def test_shedding_removes_delayed_requests_too() -> None:
    queue = batching_queue(1, levels=(QueueRules(), QueueRules(timeout_us=1, delays=True)))
    add(queue, 0, priority=2)
    assert queue.expire(1.0) == []
    add(queue, 1, at_s=1.0, priority=2)
    assert ids([message for message, _ in queue.shed(0.5)]) == [1, 0]


def test_a_model_without_levels_is_never_shed() -> None:
    queue = batching_queue(1)
    add(queue, 0)
    assert queue.shed(0.0) == []
    add(queue, 1)
    assert len(queue) == 2


def test_cancelled_requests_can_be_swept() -> None:
    queue = batching_queue()
    for number in range(4):
        message = add(queue, number)
        message.request.cancelled = number % 2 == 1
    assert ids(queue.remove_cancelled()) == [1, 3]
    assert ids(queue.remove_all()) == [0, 2]
    assert len(queue) == 0
