"""A model's own say in what joins a batch."""

from __future__ import annotations

import logging

import pytest

from tests.support.builders import model_config
from tests.support.queues import ListStrategy, add, batching_queue, configured_queue, ids
from tritrio.actors._batch_candidate import BatchReason
from tritrio.protocol.pb import inference as pb


def test_a_strategy_closes_a_batch_and_the_refused_request_leads_the_next() -> None:
    strategy = ListStrategy(lambda _, number: number != 2)
    queue = batching_queue(delay_max_s=0.5, strategy=strategy)
    for number in range(4):
        add(queue, number)
    assert ids(queue.take(0.0)) == [0, 1]
    assert (queue.reason, queue.left_out) == (BatchReason.STRATEGY, BatchReason.STRATEGY)
    assert strategy.offered == [0, 1, 2]
    assert queue.take(0.0) == []  # its refusal of the first request of a batch does not count
    assert ids(queue.take(0.5)) == [2, 3]
    assert strategy.open == []


def test_a_strategy_is_asked_anew_when_more_requests_come() -> None:
    strategy = ListStrategy(lambda batch, _: len(batch) < 2)
    queue = batching_queue(delay_max_s=0.5, strategy=strategy)
    for number in range(2):
        add(queue, number)
        assert queue.take(0.0) == []
    add(queue, 2)
    assert ids(queue.take(0.0)) == [0, 1]


def test_a_strategy_sees_each_shape_as_a_batch_of_its_own() -> None:
    seen: list[tuple[list[int], int]] = []

    def note(batch: list[int], number: int) -> bool:
        seen.append((batch.copy(), number))
        return True

    strategy = ListStrategy(note)
    queue = configured_queue(model_config(batching=pb.ModelDynamicBatching()), strategy=strategy)
    for number, width in enumerate([5, 7, 5]):
        add(queue, number, shape=(width,))
    assert ids(queue.take(0.0)) == [0, 2]
    assert seen == [([], 0), ([], 1), ([0], 2)]
    assert strategy.open == []


def test_a_strategy_that_fails_counts_as_a_refusal_and_is_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(batch: list[int], number: int) -> bool:
        if batch:
            raise ValueError(f"no {number}")
        return True

    queue = batching_queue(strategy=ListStrategy(fail))
    for number in range(6):
        add(queue, number)
    with caplog.at_level(logging.ERROR):
        assert [ids(queue.take(0.0)) for _ in range(6)] == [[number] for number in range(6)]
    assert [record.message[-9:] for record in caplog.records] == [
        f"(fault {count})" for count in (1, 2, 4)
    ]
    assert "no 1" in caplog.text


def test_a_strategy_that_cannot_begin_leaves_requests_alone() -> None:
    class Broken(ListStrategy):
        def begin(self) -> object:
            raise ValueError("no begin")

    queue = batching_queue(strategy=Broken(lambda *_: True))
    for number in range(2):
        add(queue, number)
    assert [ids(queue.take(0.0)) for _ in range(2)] == [[0], [1]]
