"""Batches of the strategy `oldest` on virtual time: dynamic batches, whatever the slots."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.limits import TICK_S
from tests.support.remembering import (
    RememberingInstance,
    answered,
    history,
    number_of,
    oldest,
    sequence_config,
)
from tests.support.sequences import sequences
from tritrio.actors.reply import Reply
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.requests import InferResponse


async def test_requests_of_many_sequences_share_a_batch_without_fillers(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(oldest(8)), seconds=0.25) as served:
        replies = [served.submit(number, number, ">") for number in range(1, 7)]
        replies.append(served.submit(16, 6))
        for reply in replies:
            await reply.receive()
        assert served.model.batches == [[">1", ">2", ">3", ">4"], [">5", ">6"], ["16"]]


async def test_the_candidates_are_as_many_as_the_configuration_says(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(oldest(3), count=2)) as served:
        replies = [served.submit(number, number, ">") for number in range(1, 8)]
        for reply in replies[:6]:
            await reply.receive()
        snapshot = served.policy.snapshot()
        assert (snapshot.slots, snapshot.slots_used, snapshot.backlog) == (6, 6, 1)
        await served.ask(12, 2, ".")
        assert answered(await replies[6].receive()) == history(7)


async def test_a_sequence_has_one_request_in_execution(autojump_clock: MockClock) -> None:
    async with sequences(sequence_config(oldest()), seconds=0.25) as served:
        replies = [served.submit(number, 1, ">" * (number == 1)) for number in range(1, 4)]
        for reply in replies:
            await reply.receive()
        assert served.model.batches == [[">1"], ["2"], ["3"]]


async def test_a_lone_request_waits_for_company(autojump_clock: MockClock) -> None:
    async with sequences(sequence_config(oldest(delay_ticks=256))) as served:
        reply = served.submit(1, 1, ">")
        await trio.sleep(16 * TICK_S)
        await served.ask(2, 2, ">")
        await reply.receive()
        assert served.left_s() == [256 * TICK_S]
        assert served.model.batches == [[">1", ">2"]]
        assert served.statistics.queue.ns == (256 + 240) * 10**9 // 1024


async def test_the_wait_for_company_counts_from_a_requests_turn(autojump_clock: MockClock) -> None:
    config = sequence_config(oldest(delay_ticks=256))
    async with sequences(config, seconds=1.0) as served:
        replies = [served.submit(1, 1, ">"), served.submit(2, 1)]
        for reply in replies:
            await reply.receive()
        assert served.left_s() == [1.25, 2.5]
        assert served.statistics.queue.ns == (0.25 + 1.5) * 10**9


async def test_a_preferred_size_leaves_at_once(autojump_clock: MockClock) -> None:
    config = sequence_config(oldest(8, delay_ticks=256, preferred=(2,)))
    async with sequences(config) as served:
        replies = [served.submit(number, number, ">") for number in range(1, 4)]
        for reply in replies:
            await reply.receive()
        assert served.model.batches == [[">1", ">2"], [">3"]]
        assert served.left_s() == [0, 256 * TICK_S]


async def test_unequal_shapes_do_not_share_a_batch(autojump_clock: MockClock) -> None:
    async with sequences(sequence_config(oldest(), dims=(-1,))) as served:
        replies = [served.submit(number, number, ">", width=number) for number in (1, 2)]
        for reply in replies:
            await reply.receive()
        assert served.model.batches == [[">1"], [">2"]]


async def test_preserved_order_holds_across_sequences_and_instances(
    autojump_clock: MockClock,
) -> None:
    config = sequence_config(oldest(1, preserve_ordering=True), count=2)
    answers: list[tuple[float, str]] = []
    async with sequences(
        config, seconds=lambda _, batch: 1.0 if batch.requests[0].id == "1" else 0.25
    ) as served:

        async def ask(reply: Reply) -> None:
            response = await reply.receive()
            answers.append((served.elapsed_s(), response.id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, served.submit(1, 1, ">"))
            nursery.start_soon(ask, served.submit(2, 2, ">"))
            nursery.start_soon(ask, served.submit(3, 2))
        assert sorted(answers) == [(1.0, "1"), (1.0, "2"), (1.0, "3")]
        assert served.left_s() == [0.25, 0.5, 1.0]


async def test_the_next_request_of_a_decoupled_sequence_waits_for_the_final_response(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(oldest(), decoupled=True)) as served:
        served.model.holds = {1: None}
        first, second = served.submit(1, 1, ">"), served.submit(2, 1)
        assert answered(await served.ask(3, 3, ">.")) == history(3)
        held = served.model.holds[1]
        assert held is not None
        batch, index = held
        batch.respond(index, InferResponse("model", "1", "1", final=False))
        assert not (await first.receive()).final
        await wait_all_tasks_blocked()
        assert [rows for rows in served.model.batches if "2" in rows] == []
        answer = RememberingInstance(served.model, 0).answer(batch.requests[index])
        assert number_of(batch.requests[index]) == 1
        batch.respond(index, answer)
        assert answered(await first.receive()) == history(1)
        assert answered(await second.receive()) == history(1, 2)


async def test_a_sequence_keeps_its_slot_until_its_last_decoupled_request_has_ended(
    autojump_clock: MockClock,
) -> None:
    async with sequences(sequence_config(oldest(1), decoupled=True)) as served:
        served.model.holds = {1: None}
        running = served.submit(1, 1, ">")
        await wait_all_tasks_blocked()
        waiting, other = served.submit(2, 1), served.submit(3, 3, ">")
        await wait_all_tasks_blocked()
        waiting.close()
        await wait_all_tasks_blocked()
        assert served.policy.snapshot().backlog == 1
        running.close()
        assert answered(await other.receive()) == history(3)
        error = (await served.ask(4, 1)).error
        assert error is not None
        assert error.code is ErrorCode.INVALID_ARG
    assert served.model.ends == [(0, 1, "cancelled"), (0, 3, "unload")]
