"""Clients of generated text that leave, and such that read slowly: nobody else notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.llm import STEP_S, TOKEN_S, LlmServed, Reader, alone, llm_request, serving_llm
from tritrio.actors.llm_engine import LOOK_AHEAD
from tritrio.actors.llm_slot import RESPONSES_WAITING_MAX, STALLED_MAX_S
from tritrio.protocol.errors import ErrorCode, FailureReason
from tritrio.protocol.llm_statistics import CancelReason
from tritrio.protocol.pb import inference as pb

LONG = "the quick brown fox jumps over the lazy dog. " * 3


async def before_it_is_admitted(served: LlmServed, leaver: Reader) -> None:
    await trio.sleep(STEP_S / 2)


async def in_its_prompt(served: LlmServed, leaver: Reader) -> None:
    await trio.sleep(STEP_S * 3)


async def between_its_tokens(served: LlmServed, leaver: Reader) -> None:
    for _ in range(3):
        await leaver.read_one()


async def while_a_step_runs(served: LlmServed, leaver: Reader) -> None:
    for _ in range(3):
        await leaver.read_one()
    await trio.sleep(STEP_S / 2)


async def while_it_pauses(served: LlmServed, leaver: Reader) -> None:
    await trio.sleep((RESPONSES_WAITING_MAX + 30) * STEP_S)
    assert served.statistics.llm.totals().paused == 1


@pytest.mark.parametrize(
    "leaves",
    [
        before_it_is_admitted,
        in_its_prompt,
        between_its_tokens,
        while_a_step_runs,
        while_it_pauses,
    ],
)
async def test_what_a_client_held_is_free_before_the_next_step(
    autojump_clock: MockClock, leaves: Callable[[LlmServed, Reader], Any]
) -> None:
    async with serving_llm(rows=2, step_tokens=16) as served:
        neighbour = served.ask("neighbour", sampling={"max_tokens": 150})
        await wait_all_tasks_blocked()
        leaver = served.submit(llm_request(LONG[:100], sampling={"max_tokens": 120}))
        await leaves(served, leaver)
        of_neighbour = -(-(9 + len(neighbour.at_s)) // 16)
        leaver.reply.close()
        running, waiting, used_bytes = served.gauges  # at once, whatever is under way
        assert (running, waiting) == (1, 0)
        assert used_bytes in {160 * blocks for blocks in (of_neighbour, of_neighbour + 1)}
        steps = len(served.llm.plans)
        await trio.sleep(3 * STEP_S)
        later = served.llm.plans[steps + 1 :]
        assert later
        assert all(len(plan.decodes) == 1 and not plan.prefills for plan in later)
        await trio.sleep(10)
        assert neighbour.text == alone("neighbour", 150)
        statistics = served.statistics
        assert statistics.failures[FailureReason.CANCELED] == 1
        assert statistics.llm.cancelled[CancelReason.CLIENT] == 1
        assert served.gauges == (0, 0, 0)


async def test_a_client_that_leaves_before_the_engine_has_its_request_is_forgotten(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(rows=1) as served:
        first = served.ask("a", sampling={"max_tokens": 50})
        await wait_all_tasks_blocked()
        others = [served.submit(llm_request("b")) for _ in range(LOOK_AHEAD + 3)]
        others[0].reply.close()  # which is still in the inbox of the scheduler
        await wait_all_tasks_blocked()
        for reader in others[1:]:
            reader.reply.close()
        await wait_all_tasks_blocked()
        statistics = served.statistics
        assert (statistics.pending_count, statistics.fail.count) == (0, LOOK_AHEAD + 3)
        assert served.gauges[1] == 0
        await trio.sleep(1)
        assert first.text == alone("a", 50)


async def test_an_answer_whose_client_leaves_before_it_takes_it_is_a_success(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm() as served:
        reader = served.submit(llm_request("a", stream=False))
        await trio.sleep(1)
        reader.reply.close()
        await wait_all_tasks_blocked()
        statistics = served.statistics
        assert (statistics.success.count, statistics.fail.count) == (1, 0)


async def test_the_rest_of_the_step_under_way_counts_as_the_time_of_a_release(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(rows=1) as served:
        leaver = served.submit(llm_request("leaver", sampling={"max_tokens": 100}))
        other = served.submit(llm_request("other"))
        for _ in range(3):
            await leaver.read_one()
        await trio.sleep(STEP_S / 4)
        other.reply.close()  # it waits for a row
        await trio.sleep(STEP_S / 4)
        leaver.reply.close()
        await trio.sleep(STEP_S)
        release = served.statistics.llm.release
        assert (sum(release.counts), release.sum) == (2, STEP_S * 5 / 4)
        await served.submit_and_read("third")
        assert sum(release.counts) == 2  # whoever gets all has cancelled nothing


async def test_a_release_by_a_deadline_counts_from_the_deadline(autojump_clock: MockClock) -> None:
    async with serving_llm(rows=1) as served:
        late = served.submit(llm_request("late", sampling={"max_tokens": 100}))
        for _ in range(3):
            await late.read_one()
        late.reply.expires_s = trio.current_time() + STEP_S / 4
        await trio.sleep(STEP_S / 2)
        late.reply.close()  # whoever watches the deadline had its turn a quarter of a step later
        await trio.sleep(STEP_S)
        llm = served.statistics.llm
        assert llm.cancelled[CancelReason.DEADLINE] == 1
        assert (sum(llm.release.counts), llm.release.sum) == (1, STEP_S * 3 / 4)


async def test_clients_that_leave_make_room_for_others(autojump_clock: MockClock) -> None:
    """Seats are free as well: more leave than there are."""
    async with serving_llm(rows=1) as served:
        for _ in range(3 * (1 + LOOK_AHEAD)):
            reader = served.submit(llm_request("abc", sampling={"max_tokens": 100}))
            await trio.sleep(2.5 * STEP_S)
            reader.reply.close()
        assert (await served.submit_and_read("c")).text == alone("c", 8)


async def test_a_client_that_leaves_with_a_response_takes_part_in_no_further_step(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(rows=8, kv_budget_bytes=8 * 2560) as served:

        async def leave_at(reader: Reader, responses: int) -> None:
            while len(reader.at_s) < responses:
                await reader.read_one()
            reader.reply.close()

        wanted = [1, 2, 3, 4, 5, 6, 7, 8]
        for responses in wanted:
            reader = served.submit(llm_request("a", sampling={"max_tokens": 100}))
            served.nursery.start_soon(leave_at, reader, responses)
        await trio.sleep(1)
        steps = Counter[int]()
        for plan in served.llm.plans:
            steps.update(each.sequence_id for each in plan.decodes)
            steps.update(each.sequence_id for each in plan.prefills)
        assert [steps[sequence_id] for sequence_id in sorted(steps)] == wanted


async def test_clients_that_leave_as_others_get_their_tokens(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever slot comes first, it ends the other one, which has its tokens already."""
    async with serving_llm() as served:
        for _ in range(8):
            pair = [served.submit(llm_request(letter)) for letter in "ab"]
            await trio.sleep(2.5 * STEP_S)
            for reader, other in (pair, pair[::-1]):
                while reader.reply.has_response:
                    await reader.read_one()
                reader.reply.notify = other.reply.close
            await trio.sleep(1)
            assert sum(reader.reply.request.cancelled for reader in pair) == 1
            assert served.gauges == (0, 0, 0)
        assert (served.statistics.success.count, served.statistics.fail.count) == (8, 8)
        assert served.statistics.failures[FailureReason.CANCELED] == 8
        assert not caplog.records


async def test_a_client_may_leave_in_any_turn_of_the_event_loop(autojump_clock: MockClock) -> None:
    async with serving_llm(rows=1) as served:
        for turns in range(30):
            reader = served.submit(llm_request("a"))
            for _ in range(turns % 15):
                await trio.lowlevel.checkpoint()
            reader.reply.close()
            await wait_all_tasks_blocked()
            assert served.gauges == (0, 0, 0)
            assert served.statistics.failures[FailureReason.CANCELED] == turns + 1
            assert served.statistics.pending_count == 0
            await trio.sleep(1)


async def test_a_slow_reader_holds_up_nobody_else(autojump_clock: MockClock) -> None:
    length = RESPONSES_WAITING_MAX + 30
    async with serving_llm() as served:
        slow = served.submit(llm_request("slow", sampling={"max_tokens": length}))
        await wait_all_tasks_blocked()
        neighbour = served.ask("neighbour", sampling={"max_tokens": length + 20})
        await trio.sleep((length + 40) * STEP_S)
        first_s = 2 * STEP_S + 13 * TOKEN_S
        assert neighbour.at_s == [first_s + step * STEP_S for step in range(length + 20)]
        assert neighbour.text == alone("neighbour", length + 20)
        assert len(slow.reply._responses) == RESPONSES_WAITING_MAX
        assert served.statistics.llm.totals().paused == 1
        steps = len(served.llm.plans)
        await trio.sleep(STALLED_MAX_S / 4)
        assert len(served.llm.plans) == steps  # nothing is done for it meanwhile
        await slow.read()
        assert slow.text == alone("slow", length)


async def test_a_reader_that_takes_one_response_gets_one_more(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        slow = served.submit(llm_request("slow", sampling={"max_tokens": 200}))
        await trio.sleep(2)
        for taken in range(1, 4):
            await slow.read_one()
            await trio.sleep(1)
            assert len(slow.reply._responses) == RESPONSES_WAITING_MAX
            assert served.statistics.llm.output_tokens == RESPONSES_WAITING_MAX + taken
        await slow.read()
        assert slow.text == alone("slow", 200)


async def test_a_reader_that_reads_on_is_not_given_up(autojump_clock: MockClock) -> None:
    async with serving_llm(step_seconds=lambda _: 1.0) as served:
        length = RESPONSES_WAITING_MAX + 2 * round(STALLED_MAX_S)
        slow = served.submit(llm_request("slow", sampling={"max_tokens": length}))
        await trio.sleep(RESPONSES_WAITING_MAX + STALLED_MAX_S / 2)
        await slow.read()
        assert slow.text == alone("slow", length)


async def test_a_reader_that_takes_nothing_is_given_up(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        deaf = served.submit(llm_request("deaf", sampling={"max_tokens": 200}))
        await trio.sleep(STALLED_MAX_S + 2)
        assert served.gauges == (0, 0, 0)
        await deaf.read()
        assert deaf.error is not None
        assert deaf.error.code is ErrorCode.UNAVAILABLE
        assert len(deaf.at_s) == RESPONSES_WAITING_MAX
        assert served.statistics.llm.cancelled[CancelReason.SLOW_READER] == 1
        assert served.statistics.fail.count == 1


async def test_a_reader_that_is_given_up_as_it_reads_again_is_told_why(
    autojump_clock: MockClock,
) -> None:
    full_s = 4 * TOKEN_S + RESPONSES_WAITING_MAX * STEP_S
    for _ in range(16):  # whoever has the first turn
        async with serving_llm() as served:
            late = served.submit(llm_request("late", sampling={"max_tokens": 200}))
            await trio.sleep(full_s + STALLED_MAX_S)
            await late.read()
            assert late.error is not None
            assert "taken no response" in late.error.message
            assert served.statistics.llm.cancelled[CancelReason.SLOW_READER] == 1


async def test_responses_that_wait_for_those_of_an_earlier_request_are_not_stalled(
    autojump_clock: MockClock,
) -> None:
    batching = pb.ModelDynamicBatching(preserve_ordering=True)
    config = pb.ModelConfig(dynamic_batching=batching)
    length = RESPONSES_WAITING_MAX + 2 * round(STALLED_MAX_S)
    async with serving_llm(config=config, step_seconds=lambda _: 1.0) as served:
        readers = [served.ask(letter, sampling={"max_tokens": length}) for letter in "ab"]
        await trio.sleep(3 * length)
        assert [reader.text for reader in readers] == [alone(letter, length) for letter in "ab"]
        assert readers[1].at_s[0] == readers[0].ended_s


async def test_who_stalls_when_its_turn_comes_holds_up_the_later_ones_no_longer(
    autojump_clock: MockClock,
) -> None:
    batching = pb.ModelDynamicBatching(preserve_ordering=True)
    config = pb.ModelConfig(dynamic_batching=batching)
    length = 2 * RESPONSES_WAITING_MAX
    async with serving_llm(config=config) as served:
        first = served.ask("a", sampling={"max_tokens": length})
        slow = served.submit(llm_request("slow", sampling={"max_tokens": length}))
        later = served.ask("b")
        await trio.sleep(2 * STALLED_MAX_S)
        assert first.text == alone("a", length)
        assert later.text == alone("b", 8)
        assert later.at_s[0] == first.ended_s + STALLED_MAX_S
        await slow.read()
        assert slow.error is not None
        assert served.statistics.llm.cancelled[CancelReason.SLOW_READER] == 1


async def test_rows_of_slow_readers_go_to_others_if_there_is_no_room(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(rows=1) as served:
        slow = served.submit(llm_request("slow", sampling={"max_tokens": 100}))
        await trio.sleep(2)
        assert (await served.submit_and_read("other")).text == alone("other", 8)
        await slow.read()
        assert slow.text == alone("slow", 100)
