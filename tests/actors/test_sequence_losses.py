"""What becomes of sequences when an instance is lost, on virtual time."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tests.support.remembering import (
    BOTH,
    Strategy,
    answered,
    error_of,
    history,
    sequence_config,
)
from tests.support.sequences import sequences
from tritrio.protocol.errors import ErrorCode


@BOTH
async def test_a_lost_instance_ends_its_sequences_and_spares_the_others(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2, max_batch_size=1)
    async with sequences(config, seconds=0.25) as served:
        await served.ask(1, 1, ">")
        await served.ask(2, 2, ">")
        served.devices.deadly.add("11")
        lost = [served.submit(11, 1), served.submit(21, 1), served.submit(31, 1)]
        backlogged = served.submit(3, 3, ">.")
        for reply in lost:
            error = error_of(await reply.receive())
            assert error.code is ErrorCode.UNAVAILABLE
            assert "sequence 1" in error.message
        assert served.elapsed_s() == 0.75
        assert answered(await served.ask(12, 2)) == history(2, 12)
        assert answered(await backlogged.receive()) == history(3)
        assert error_of(await served.ask(41, 1)).code is ErrorCode.INVALID_ARG
        assert (0, 1, "error") in served.model.ends


@BOTH
async def test_no_new_sequence_goes_to_a_lost_instance_before_it_is_back(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2, max_batch_size=1, idle_ticks=4096)
    async with sequences(config) as served:
        served.restarts_after_s = 1.0
        served.devices.deadly.add("1")
        assert error_of(await served.ask(1, 1, ">")).code is ErrorCode.UNAVAILABLE
        replies = [served.submit(number, number, ">") for number in (2, 3)]
        assert answered(await replies[0].receive()) == history(2)
        assert served.elapsed_s() == 0
        assert answered(await replies[1].receive()) == history(3)
        assert served.elapsed_s() == 1.0
        assert [instance for _, instance, _ in served.model.executed] == [1, 0]


@BOTH
async def test_what_waits_for_the_id_of_a_lost_sequence_goes_on_elsewhere(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2)
    async with sequences(config, seconds=0.25) as served:
        served.restarts_after_s = 100.0
        served.devices.deadly.add("1")
        lost, later = served.submit(1, 1, ">."), served.submit(2, 1, ">.")
        assert error_of(await lost.receive()).code is ErrorCode.UNAVAILABLE
        assert answered(await later.receive()) == history(2)
        assert served.elapsed_s() == 0.5
        assert [instance for _, instance, _ in served.model.executed] == [1]


@BOTH
async def test_what_restarts_a_lost_sequence_goes_on_elsewhere(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), count=2)
    async with sequences(config, seconds=0.25) as served:
        served.restarts_after_s = 100.0
        served.devices.deadly.add("1")
        lost = [served.submit(1, 1, ">"), served.submit(2, 1)]
        later = served.submit(3, 1, ">.")
        for reply in lost:
            assert error_of(await reply.receive()).code is ErrorCode.UNAVAILABLE
        assert answered(await later.receive()) == history(3)
        assert served.elapsed_s() == 0.5
        assert served.model.batches == [[">3."]]


@BOTH
async def test_what_a_lost_instance_had_not_got_yet_goes_on_first_and_in_order(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    config = sequence_config(strategy(), max_batch_size=3)
    async with sequences(config, seconds=0.25) as served:
        served.restarts_after_s = 1.0
        served.devices.deadly.add("1")
        lost = served.submit(1, 1, ">")
        await trio.sleep(0.125)
        others = [served.submit(number, number, ">") for number in (2, 3, 4)]
        assert error_of(await lost.receive()).code is ErrorCode.UNAVAILABLE
        for number, reply in enumerate(others, 2):
            assert answered(await reply.receive()) == history(number)
        assert served.model.batches == [[">2", ">3", ">4"]]
        assert served.elapsed_s() == 1.5
