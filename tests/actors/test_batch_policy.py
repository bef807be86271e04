"""The rules of batching, with lists of numbers for time."""

from __future__ import annotations

from math import inf

import pytest

from tests.support.builders import infer, model_config
from tests.support.queues import add, batching_queue, configured_queue, ids
from tritrio.actors._batch_candidate import BatchReason
from tritrio.actors._batch_policy import LOOK_AHEAD_MAX, BatchPolicy
from tritrio.actors._queue_rules import QueueRules
from tritrio.actors.messages import Infer
from tritrio.protocol.pb import inference as pb


def test_without_a_delay_everything_queued_leaves_together() -> None:
    queue = batching_queue()
    for number in range(3):
        add(queue, number)
    assert ids(queue.take(0.0)) == [0, 1, 2]
    assert queue.take(0.0) == []


def test_a_batch_waits_for_company_until_its_oldest_request_is_due() -> None:
    queue = batching_queue(delay_max_s=0.5)
    add(queue, 1, at_s=1.0)
    assert queue.take(1.0) == []
    add(queue, 2, at_s=1.25)
    assert queue.take(1.499) == []
    assert queue.ripe_at_s() == 1.5
    assert ids(queue.take(1.5)) == [1, 2]
    assert queue.ripe_at_s() == inf


def test_a_full_batch_leaves_at_once_and_is_never_exceeded() -> None:
    queue = batching_queue(4, delay_max_s=0.5)
    for number, rows in enumerate([2, 1, 2, 1]):
        add(queue, number, rows=rows)
    assert ids(queue.take(0.0)) == [0, 1]  # 2 + 1 + 2 would be 5
    assert queue.take(0.0) == []
    add(queue, 4)
    assert ids(queue.take(0.0)) == [2, 3, 4]


def test_a_request_without_rows_counts_as_one() -> None:
    queue = batching_queue(2)
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
    queue = batching_queue(preferred_sizes=(4, 6), delay_max_s=0.5)
    for number, count in enumerate(rows):
        add(queue, number, rows=count)
    assert ids(queue.take(0.0)) == expected


def test_a_request_beyond_every_preferred_size_does_not_wait() -> None:
    queue = batching_queue(preferred_sizes=(4,), delay_max_s=0.5)
    add(queue, 0, rows=6)
    assert ids(queue.take(0.0)) == [0]


def test_a_late_batch_is_no_larger_than_a_batch_may_be() -> None:
    queue = batching_queue(4, preferred_sizes=(1,), delay_max_s=0.5)
    for number in range(5):
        add(queue, number)
    assert ids(queue.take(0.5)) == [0, 1, 2, 3]


def test_after_the_delay_everything_leaves_beyond_a_preferred_size() -> None:
    queue = batching_queue(preferred_sizes=(4,), delay_max_s=0.5)
    for number in range(6):
        add(queue, number)
    assert ids(queue.take(0.5)) == [0, 1, 2, 3, 4, 5]


def test_a_preferred_size_is_found_among_later_arrivals() -> None:
    """The shortcut that skips a walk must not skip this one."""
    queue = batching_queue(preferred_sizes=(4, 6), delay_max_s=0.5)
    add(queue, 0, rows=3)
    assert queue.take(0.0) == []
    add(queue, 1, rows=2)
    assert queue.take(0.0) == []
    add(queue, 2)
    assert ids(queue.take(0.0)) == [0, 1, 2]


def test_the_smallest_preferred_size_within_reach_is_not_missed() -> None:
    queue = batching_queue(preferred_sizes=(4, 6), delay_max_s=0.5)
    add(queue, 0, rows=3)
    assert queue.take(0.0) == []
    add(queue, 1)
    assert ids(queue.take(0.0)) == [0, 1]


def test_a_preferred_size_of_another_shape_is_found_while_the_first_waits() -> None:
    """The shortcut must not skip this one either, whatever came and went before."""
    batching = pb.ModelDynamicBatching(
        preferred_batch_size=[2, 8], max_queue_delay_microseconds=500_000
    )
    queue = configured_queue(model_config(batching=batching))
    add(queue, 0, rows=3, shape=(5,))
    for number in (1, 2):
        assert queue.take(0.0) == []
        add(queue, number, rows=2, shape=(7,))
        assert ids(queue.take(0.0)) == [number]


def test_a_higher_level_may_reach_a_preferred_size_in_front() -> None:
    queue = batching_queue(
        preferred_sizes=(2, 8), delay_max_s=0.5, levels=(QueueRules(), QueueRules())
    )
    add(queue, 0, rows=3, priority=2)
    assert queue.take(0.0) == []
    add(queue, 1, rows=2, priority=1)
    assert ids(queue.take(0.0)) == [1]


def test_an_older_request_of_a_lower_level_ends_the_wait_of_a_batch() -> None:
    queue = batching_queue(delay_max_s=0.5, levels=(QueueRules(), QueueRules()))
    add(queue, 0, at_s=0.0, priority=2)
    add(queue, 1, at_s=0.25, priority=1)
    assert queue.take(0.25) == []
    assert queue.ripe_at_s() == 0.5
    assert ids(queue.take(0.5)) == [1, 0]
    assert queue.oldest_s == 0.0


def test_a_batch_is_as_old_as_what_leaves_with_it() -> None:
    levels = (QueueRules(), QueueRules())
    queue = batching_queue(preferred_sizes=(2, 8), delay_max_s=0.5, levels=levels)
    add(queue, 0, at_s=0.0, priority=2)
    add(queue, 1, at_s=0.25, rows=2, priority=1)
    assert ids(queue.take(0.25)) == [1]
    assert queue.oldest_s == 0.25


def test_a_removal_lets_a_preferred_size_come_about() -> None:
    queue = batching_queue(preferred_sizes=(3, 8), delay_max_s=0.5)
    add(queue, 0)
    spoiler = add(queue, 1)
    add(queue, 2, rows=2)
    assert queue.take(0.0) == []  # 1, 2, 4 rows
    assert queue.remove(spoiler)
    assert not queue.remove(spoiler)
    assert ids(queue.take(0.0)) == [0, 2]


def test_another_shape_in_between_does_not_split_what_can_go_together() -> None:
    queue = configured_queue(model_config(batching=pb.ModelDynamicBatching()))
    for number, width in enumerate([5, 7, 5, 7]):
        add(queue, number, shape=(width,))
    assert (ids(queue.take(0.0)), queue.left_out) == ([0, 2], BatchReason.SHAPE)
    assert (ids(queue.take(0.0)), queue.left_out) == ([1, 3], None)
    assert queue.shape_splits == 1


def test_with_preserved_order_another_shape_splits_a_batch_and_ends_its_wait() -> None:
    ordered = pb.ModelDynamicBatching(max_queue_delay_microseconds=500_000, preserve_ordering=True)
    queue = configured_queue(model_config(batching=ordered))
    add(queue, 0, shape=(5,))
    assert queue.take(0.0) == []
    add(queue, 1, shape=(7,))
    add(queue, 2, shape=(5,))
    assert ids(queue.take(0.0)) == [0]
    assert queue.reason is BatchReason.SHAPE
    assert ids(queue.take(0.0)) == [1]
    assert queue.take(0.0) == []


def test_each_shape_waits_for_its_own_company() -> None:
    delayed = pb.ModelDynamicBatching(max_queue_delay_microseconds=500_000)
    queue = configured_queue(model_config(max_batch_size=2, batching=delayed))
    add(queue, 0, at_s=0.0, shape=(5,))
    add(queue, 1, at_s=0.25, shape=(7,))
    assert queue.take(0.25) == []
    assert queue.ripe_at_s() == 0.5
    add(queue, 2, at_s=0.25, shape=(7,))
    assert ids(queue.take(0.25)) == [1, 2]  # full, while the first still waits for company
    assert queue.take(0.25) == []
    assert queue.ripe_at_s() == 0.5
    assert ids(queue.take(0.5)) == [0]


def test_of_two_ripe_batches_the_one_with_the_older_request_goes_first() -> None:
    delayed = pb.ModelDynamicBatching(max_queue_delay_microseconds=500_000)
    queue = configured_queue(model_config(max_batch_size=2, batching=delayed))
    add(queue, 0, at_s=0.0, shape=(5,))
    for number in range(1, 5):
        add(queue, number, at_s=0.25, shape=(7,))
    assert [ids(queue.take(0.5)) for _ in range(3)] == [[0], [1, 2], [3, 4]]


def test_a_request_that_does_not_fit_is_not_overtaken_by_smaller_ones_of_its_shape() -> None:
    queue = configured_queue(model_config(max_batch_size=4, batching=pb.ModelDynamicBatching()))
    for number, rows in enumerate([3, 2, 1]):
        add(queue, number, rows=rows)
    assert ids(queue.take(0.0)) == [0]
    assert (queue.reason, queue.left_out) == (BatchReason.FULL, BatchReason.FULL)
    assert ids(queue.take(0.0)) == [1, 2]


def test_a_full_batch_of_a_lower_level_sends_the_waiting_one_of_a_higher_level() -> None:
    batching = pb.ModelDynamicBatching(
        max_queue_delay_microseconds=500_000, priority_levels=2, default_priority_level=2
    )
    queue = configured_queue(model_config(max_batch_size=2, batching=batching))
    add(queue, 0, priority=2, shape=(7,))
    add(queue, 1, priority=1, shape=(5,))
    assert queue.take(0.0) == []
    add(queue, 2, priority=2, shape=(7,))
    assert ids(queue.take(0.0)) == [1]
    assert ids(queue.take(0.0)) == [0, 2]


def test_a_decision_looks_no_further_than_a_bound_and_then_sends_what_it_has() -> None:
    delayed = pb.ModelDynamicBatching(max_queue_delay_microseconds=500_000)
    queue = configured_queue(model_config(batching=delayed))
    add(queue, 0, shape=(1,))
    for number in range(1, LOOK_AHEAD_MAX + 1):
        add(queue, number, shape=(1 + number,))
    assert queue.take(0.0) == []
    add(queue, 1000, shape=(2,))
    add(queue, 1001, shape=(1,))
    assert ids(queue.take(0.0)) == [0]
    assert queue.reason is BatchReason.SHAPE


def test_a_long_queue_costs_a_decision_no_more_looks_than_a_batch_needs() -> None:
    looks = 0

    class Counted(Infer):
        @property
        def queued_s(self) -> float:
            nonlocal looks
            looks += 1
            return 0.0

        @queued_s.setter
        def queued_s(self, _: float) -> None:
            pass

    queue = batching_queue(1024, preferred_sizes=(4,), delay_max_s=0.5)
    for number in range(10_000):
        message = infer(number)
        assert queue.add(Counted(message.request, message.reply, 0.0), 0.0) is None
    assert len(queue.take(0.25)) == 4
    assert looks < 20


def test_requests_that_the_backend_does_not_stack_share_a_batch_whatever_their_shapes() -> None:
    config = model_config(batching=pb.ModelDynamicBatching())
    queue = configured_queue(config, stacks_inputs=False)
    for number, width in enumerate([5, 7, 5]):
        add(queue, number, shape=(width,))
    assert ids(queue.take(0.0)) == [0, 1, 2]


def test_shape_tensors_share_a_batch_only_with_equal_values() -> None:
    config = model_config(batching=pb.ModelDynamicBatching(), dims=(4,))
    config.input[0].is_shape_tensor = True
    queue = configured_queue(config)
    add(queue, 7)
    for number in (8, 7):  # the values of a request are its number
        message = infer(number)
        message.request.id = str(number + 10)
        assert queue.add(message, 0.0) is None
    assert [ids(queue.take(0.0)) for _ in range(2)] == [[7, 17], [18]]


def test_ragged_inputs_share_a_batch_whatever_their_shapes() -> None:
    queue = configured_queue(model_config(batching=pb.ModelDynamicBatching(), ragged=True))
    for number, width in enumerate([5, 7, 5]):
        add(queue, number, shape=(width,))
    assert ids(queue.take(0.0)) == [0, 1, 2]


def test_a_timeout_lets_a_preferred_size_come_about() -> None:
    levels = (QueueRules(timeout_us=900_000, override_below_us=900_000),)
    queue = batching_queue(preferred_sizes=(3, 8), delay_max_s=0.5, levels=levels)
    add(queue, 0)
    spoiler = add(queue, 1, timeout_us=250_000)
    add(queue, 2, rows=2)
    assert queue.take(0.0) == []  # 1, 2, 4 rows
    assert queue.expire(0.25) == [spoiler]
    assert ids(queue.take(0.25)) == [0, 2]


def test_requests_with_other_optional_inputs_leave_apart() -> None:
    config = model_config(batching=pb.ModelDynamicBatching(), dims=(4,))
    config.input.append(
        pb.ModelInput(name="INPUT1", data_type=pb.DataType.TYPE_INT32, dims=[4], optional=True)
    )
    queue = configured_queue(config)
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
    queue = configured_queue(config)
    add(queue, 0)
    add(queue, 1)
    assert [ids(queue.take(0.0)) for _ in range(3)] == [[0], [1], []]


@pytest.mark.parametrize(
    ("delay_s", "rows", "at_s", "reason"),
    [
        (0.0, [8], 0.0, BatchReason.FULL),
        (0.5, [4], 0.0, BatchReason.PREFERRED),
        (0.5, [1], 0.5, BatchReason.DELAY),
        (0.0, [1], 0.0, BatchReason.NO_DELAY),
        (0.5, [1], inf, BatchReason.DRAINED),
        (0.5, [3, 6], 0.0, BatchReason.FULL),  # nothing more fits
    ],
)
def test_a_batch_knows_why_it_left(
    delay_s: float, rows: list[int], at_s: float, reason: BatchReason
) -> None:
    queue = batching_queue(preferred_sizes=(4, 8), delay_max_s=delay_s)
    for number, count in enumerate(rows):
        add(queue, number, rows=count)
    assert queue.take(at_s)
    assert queue.reason is reason


def test_whether_a_batch_is_ripe_can_be_asked_without_taking_it() -> None:
    queue = batching_queue(delay_max_s=0.5)
    assert not queue.is_ripe(0.0)
    add(queue, 0)
    assert not queue.is_ripe(0.25)
    assert queue.ripe_at_s() == 0.5
    assert queue.is_ripe(0.5)
    assert ids(queue.take(0.5)) == [0]
    alone = BatchPolicy("model")
    assert not alone.is_ripe(0.0)
    add(alone, 1)
    assert alone.is_ripe(0.0)
    assert ids(alone.take(0.0)) == [1]
    assert alone.reason is BatchReason.ALONE


@pytest.mark.parametrize(("batching", "due_s"), [(True, 1.5), (False, 1.0)])
def test_a_request_is_due_once_it_no_longer_waits_for_company(batching: bool, due_s: float) -> None:
    queue = BatchPolicy("model", rows_max=8, batching=batching, delay_max_s=0.5)
    assert queue.oldest_due_s() == inf
    for number in range(2):
        add(queue, number, at_s=1.0 + number)
    assert queue.oldest_due_s() == due_s
