"""What a batcher says about its decisions."""

from __future__ import annotations

import json
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import model_config, serving
from tests.support.queues import add, batching_queue, configured_queue, ids
from tritrio.actors._batch_explanation import DECISIONS_KEPT, BatchLog
from tritrio.actors._batch_policy import BatchPolicy
from tritrio.protocol import management_codec
from tritrio.protocol.pb import inference as pb


def taken(queue: BatchPolicy, log: BatchLog, *, at_s: float, instance: int = 0) -> list[int]:
    infers = queue.take(at_s)
    log.record(queue, len(infers), instance, at_s)
    return ids(infers)


def last(log: BatchLog, queue: BatchPolicy, at_s: float = 0.0) -> dict[str, Any]:
    return log.describe(queue, at_s)[0]


def test_a_decision_is_told_with_its_numbers() -> None:
    queue, log = batching_queue(delay_max_s=0.5), BatchLog()
    for number in range(3):
        add(queue, number, at_s=1.0 + number / 8, rows=number + 1)
    assert taken(queue, log, at_s=1.5, instance=3) == [0, 1, 2]
    assert log.describe(queue, 2.0) == [
        {
            "ago_us": 500_000,
            "instance": 3,
            "requests": 3,
            "rows": 6,
            "reason": "delay over",
            "oldest_wait_us": 500_000,
            "queue_left": 0,
            "left_out": None,
        }
    ]


def test_what_was_left_out_of_a_full_batch_is_told() -> None:
    queue, log = batching_queue(4), BatchLog()
    for number in range(6):
        add(queue, number)
    taken(queue, log, at_s=0.0)
    told = last(log, queue)
    assert (told["reason"], told["left_out"], told["queue_left"]) == ("full", "full", 2)


def test_what_is_beyond_a_preferred_size_is_told() -> None:
    queue, log = batching_queue(preferred_sizes=(2,), delay_max_s=0.5), BatchLog()
    for number in range(3):
        add(queue, number, at_s=number / 8)
    assert taken(queue, log, at_s=0.25) == [0, 1]
    told = last(log, queue)
    assert (told["reason"], told["left_out"]) == ("preferred size", "preferred size")
    assert told["oldest_wait_us"] == 250_000


def test_unequal_shapes_are_told_with_the_input_and_what_would_help() -> None:
    queue, log = configured_queue(model_config(batching=pb.ModelDynamicBatching())), BatchLog()
    for number, width in enumerate([5, 7]):
        add(queue, number, shape=(width,))
    assert taken(queue, log, at_s=0.0) == [0]
    told = last(log, queue)
    assert (told["reason"], told["left_out"]) == ("nothing to wait for", "unequal shapes")
    assert told["detail"] == (
        "input 'INPUT0' of the next request has the shape [7], of the batch [5]; with "
        "allow_ragged_batch they could differ"
    )


def test_a_missing_optional_input_is_told() -> None:
    config = model_config(batching=pb.ModelDynamicBatching(), dims=(4,))
    config.input.append(
        pb.ModelInput(name="INPUT1", data_type=pb.DataType.TYPE_INT32, dims=[4], optional=True)
    )
    queue, log = configured_queue(config), BatchLog()
    add(queue, 0)
    add(queue, 1, inputs=("INPUT0", "INPUT1"))
    assert taken(queue, log, at_s=0.0) == [0]
    assert last(log, queue)["detail"] == "optional input 'INPUT1' is not in all of the requests"


def test_other_values_of_a_shape_tensor_are_told() -> None:
    config = model_config(batching=pb.ModelDynamicBatching(), dims=(4,))
    config.input[0].is_shape_tensor = True
    queue, log = configured_queue(config), BatchLog()
    add(queue, 0)
    add(queue, 1)
    assert taken(queue, log, at_s=0.0) == [0]
    assert "'INPUT0'" in last(log, queue)["detail"]
    assert "other values" in last(log, queue)["detail"]


def test_without_batching_each_decision_says_so() -> None:
    queue, log = BatchPolicy("model"), BatchLog()
    add(queue, 0)
    add(queue, 1)
    taken(queue, log, at_s=0.0)
    told = last(log, queue)
    assert (told["reason"], told["left_out"]) == ("no batching", "no batching")


def test_only_the_last_decisions_are_kept_and_the_newest_comes_first() -> None:
    queue, log = BatchPolicy("model"), BatchLog()
    for number in range(DECISIONS_KEPT + 5):
        add(queue, number, at_s=float(number))
        taken(queue, log, at_s=float(number))
    described = log.describe(queue, DECISIONS_KEPT + 4.0)
    assert [told["ago_us"] for told in described] == [
        second * 10**6 for second in range(DECISIONS_KEPT)
    ]


def test_the_rules_in_force_are_told() -> None:
    batching = pb.ModelDynamicBatching(
        preferred_batch_size=[4, 2],
        max_queue_delay_microseconds=500,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=pb.ModelQueuePolicy(
            max_queue_size=3, default_timeout_microseconds=7, allow_timeout_override=True
        ),
    )
    queue = configured_queue(model_config(batching=batching))
    add(queue, 0, priority=1)
    queue.shed(0.0)
    rules = queue.describe()
    level = {
        "level": 1,
        "max_queue_size": 3,
        "default_timeout_us": 7,
        "allow_timeout_override": True,
        "timeout_action": "REJECT",
        "admitted": True,
        "queued": 1,
        "delayed": 0,
    }
    assert rules == {
        "batching": True,
        "max_batch_size": 8,
        "preferred_batch_size": [2, 4],
        "max_queue_delay_us": 500,
        "preserve_ordering": False,
        "equal_shape_inputs": ["INPUT0"],
        "equal_content_inputs": [],
        "optional_inputs": [],
        "strategy": None,
        "look_ahead": 128,
        "levels": [level, level | {"level": 2, "admitted": False, "queued": 0}],
    }


def test_a_scheduler_that_forms_no_batches_says_so_in_json() -> None:
    told = json.loads(management_codec.batching("chain", "3", None))
    assert (told["name"], told["version"], told["scheduler"]) == ("chain", "3", "none")


async def test_a_batcher_explains_itself(autojump_clock: MockClock) -> None:
    batching = pb.ModelDynamicBatching(max_queue_delay_microseconds=250_000)
    async with serving(model_config(max_batch_size=2, batching=batching)) as served:
        batcher: Any = served.model._scheduler
        for number in range(3):
            served.submit(number)
        await trio.sleep(1.0)
        told = batcher.explain()
        assert told["scheduler"] == "dynamic"
        assert told["rules"]["max_batch_size"] == 2
        assert [decision["reason"] for decision in told["decisions"]] == ["delay over", "full"]
        assert [decision["ago_us"] for decision in told["decisions"]] == [750_000, 1_000_000]
        batcher.explains = False
        await served.ask(3)
        assert len(batcher.explain()["decisions"]) == 2
        assert not batcher.explain()["explains"]
        await wait_all_tasks_blocked()
