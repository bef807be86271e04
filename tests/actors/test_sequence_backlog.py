"""Sequences that wait for a slot, on virtual time."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from tests.support.remembering import (
    BOTH,
    Strategy,
    answered,
    direct,
    error_of,
    history,
    oldest,
    sequence_config,
)
from tests.support.sequences import sequences
from tritrio.protocol.errors import ErrorCode, FailureReason


async def test_a_backlogged_sequence_times_out_as_a_whole_at_its_earliest_timeout(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(direct(), max_batch_size=1, idle_ticks=4096)
    async with sequences(config) as served:
        await served.ask(1, 1, ">")
        waiting = [
            served.submit(2, 2, ">", timeout_us=1_000_000),
            served.submit(3, 2, timeout_us=250_000),
            served.submit(4, 2),
        ]
        patient = served.submit(5, 3, ">.")
        for reply in waiting:
            error = error_of(await reply.receive())
            assert error.code is ErrorCode.UNAVAILABLE
            assert error.reason is FailureReason.REJECTED
            assert "sequence 2" in error.message
            assert "timed out" in error.message
        assert served.elapsed_s() == 0.25
        assert error_of(await served.ask(6, 2)).code is ErrorCode.INVALID_ARG
        assert answered(await served.ask(7, 1, ".")) == history(1, 7)
        assert answered(await patient.receive()) == history(5)
    assert served.model.ends == [(0, 1, "end"), (0, 3, "end")]


@BOTH
async def test_a_timeout_does_not_count_once_a_sequence_has_its_slot(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    async with sequences(sequence_config(strategy(), max_batch_size=1), seconds=1.0) as served:
        replies = [
            served.submit(1, 1, ">", timeout_us=250_000),
            served.submit(2, 1, ".", timeout_us=250_000),
        ]
        assert answered(await replies[1].receive()) == history(1, 2)


@pytest.mark.parametrize(
    ("flags", "order"),
    [(">", [">1.", ">4.", ">3."]), (">.", [">1.", ">3.", ">4."])],
    ids=["restarted", "ended"],
)
async def test_what_restarts_a_backlogged_sequence_takes_its_place_and_else_there_is_no_way_past(
    autojump_clock: MockClock, flags: str, order: list[str]
) -> None:
    config = sequence_config(direct(), max_batch_size=1)
    async with sequences(config, seconds=1.0) as served:
        replies = [
            served.submit(1, 1, ">."),
            served.submit(2, 2, flags, timeout_us=250_000),
            served.submit(3, 3, ">."),
            served.submit(4, 2, ">.", timeout_us=10_000_000),
        ]
        assert error_of(await replies[1].receive()).code is ErrorCode.UNAVAILABLE
        assert served.elapsed_s() == 0.25
        for reply in (replies[0], replies[2], replies[3]):
            await reply.receive()
        assert served.model.batches == [[row] for row in order]


async def test_a_sequence_whose_turn_comes_before_the_end_of_one_with_its_id_waits_for_that(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(oldest(1), count=2, max_batch_size=1)
    async with sequences(config, seconds=0.25) as served:
        replies = [
            served.submit(1, 1, ">."),
            served.submit(2, 2, ">"),
            served.submit(3, 2),
            served.submit(4, 2, "."),
            served.submit(5, 3, ">."),
            served.submit(6, 2, ">."),
            served.submit(7, 4, ">."),
        ]
        for reply in replies:
            await reply.receive()
        # The turn of the sixth comes at 0.5 s; the seventh goes on in the other slot meanwhile.
        rows = [
            [row for _, instance, (row,) in served.model.executed if instance == index]
            for index in (0, 1)
        ]
        assert rows == [[">1.", ">5.", ">7."], [">2", "3", "4.", ">6."]]


async def test_a_restart_in_the_backlog_gets_no_slot_before_those_in_front_of_it(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(direct(), max_batch_size=1)
    async with sequences(config, seconds=1.0) as served:
        replies = [
            served.submit(1, 1, ">."),
            served.submit(2, 2, ">."),
            served.submit(3, 1, ">", timeout_us=250_000),
            served.submit(4, 1, ">."),
        ]
        assert error_of(await replies[2].receive()).code is ErrorCode.UNAVAILABLE
        for reply in (replies[0], replies[1], replies[3]):
            await reply.receive()
        assert served.model.batches == [[">1."], [">2."], [">4."]]
