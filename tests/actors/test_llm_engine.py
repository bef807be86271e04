"""The engine on virtual time: who is generated when, and what becomes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.llm import (
    LIMITS,
    STEP_S,
    TOKEN_S,
    FakeLlm,
    FakeLlmBackend,
    alone,
    llm_request,
    serving_llm,
)
from tritrio.actors.llm_engine import LOOK_AHEAD
from tritrio.actors.rate_limiter import RateLimiter
from tritrio.backends.base import DeviceFaultError
from tritrio.backends.llm.steps import StepPlan
from tritrio.protocol.errors import ErrorCode, FailureReason
from tritrio.protocol.llm_statistics import CancelReason
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.sampling_params import FinishReason

LONG = "the quick brown fox jumps over the lazy dog. " * 3


async def test_tokens_come_one_a_step(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        reader = await served.submit_and_read("hello", sampling={"max_tokens": 4})
        assert reader.text == alone("hello", 4)
        first_s = STEP_S + 5 * TOKEN_S
        assert reader.at_s == [first_s + step * STEP_S for step in range(4)]
        assert reader.finish == "length"
        assert served.gauges == (0, 0, 0)


async def test_requests_join_and_leave_between_steps(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        first = served.ask("hello", sampling={"max_tokens": 6})
        await trio.sleep(STEP_S + 5 * TOKEN_S + STEP_S / 2)  # within the second step
        second = served.ask("abcd", sampling={"max_tokens": 2})
        await trio.sleep(10 * STEP_S)
        joined_s = 2 * STEP_S + 5 * TOKEN_S
        second_s = joined_s + STEP_S + 4 * TOKEN_S
        assert second.at_s == [second_s, second_s + STEP_S]
        assert first.at_s[:4] == [joined_s - STEP_S, joined_s, second_s, second_s + STEP_S]
        assert [first.text, second.text] == [alone("hello", 6), alone("abcd", 2)]


async def test_admission_is_in_order_of_arrival(autojump_clock: MockClock) -> None:
    """With one row, more requests than the engine has seats for are served one by one."""
    async with serving_llm(rows=1) as served:
        readers = [served.ask(letter, sampling={"max_tokens": 3}) for letter in "abcdef"]
        await trio.sleep(100 * STEP_S)
        took_s = 3 * STEP_S + TOKEN_S
        assert [reader.ended_s for reader in readers] == [took_s * n for n in range(1, 7)]
        assert [reader.text for reader in readers] == [alone(letter, 3) for letter in "abcdef"]
        queue = served.statistics.llm.queue
        assert queue.sum == sum(took_s * n for n in range(6))
        assert served.statistics.queue.ns == sum(int(took_s * n * 1e9) for n in range(6))


async def test_lower_priority_levels_are_admitted_first(autojump_clock: MockClock) -> None:
    batching = pb.ModelDynamicBatching(priority_levels=2, default_priority_level=2)
    config = pb.ModelConfig(dynamic_batching=batching)
    async with serving_llm(rows=1, config=config) as served:
        readers = []
        for letter, priority in (("a", 2), ("b", 2), ("c", 1), ("d", 2)):
            request = llm_request(letter, sampling={"max_tokens": 1})
            request.priority = priority
            readers.append(served.submit(request))
            served.nursery.start_soon(readers[-1].read)
            await wait_all_tasks_blocked()
        await trio.sleep(100 * STEP_S)
        order = sorted(range(4), key=lambda index: readers[index].ended_s)
        assert order == [0, 2, 1, 3]


async def test_the_engine_takes_a_few_requests_more_than_it_has_rows(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(rows=2) as served:
        for letter in "abcdefgh":
            served.ask(letter)
        await wait_all_tasks_blocked()
        assert served.statistics.pending_count == 8 - (2 + LOOK_AHEAD)


async def test_a_short_prompt_is_not_kept_waiting_by_a_long_one(autojump_clock: MockClock) -> None:
    async with serving_llm(step_tokens=8) as served:
        long = served.ask(LONG, sampling={"max_tokens": 1})
        await wait_all_tasks_blocked()
        short = served.ask("abc", sampling={"max_tokens": 1})
        await trio.sleep(1)
        assert short.ended_s <= 3 * (STEP_S + 8 * TOKEN_S)
        assert long.ended_s > 16 * STEP_S
        assert long.text == alone(LONG, 1)


async def test_a_long_prompt_delays_its_neighbours_by_one_part_at_most(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(step_tokens=8) as served:
        neighbours = [served.ask(letter, sampling={"max_tokens": 40}) for letter in "ab"]
        await trio.sleep(4 * STEP_S)
        long = served.ask(LONG, sampling={"max_tokens": 1})
        await trio.sleep(2)
        for reader in neighbours:
            gaps = [later - earlier for earlier, later in pairwise(reader.at_s)]
            assert max(gaps) == STEP_S + 6 * TOKEN_S
            assert min(gaps) == STEP_S
        parts = -(-len(LONG) // 6)
        assert long.at_s[0] < (6 + parts) * (STEP_S + 6 * TOKEN_S)
        assert long.text == alone(LONG, 1)


async def test_texts_survive_preemption(autojump_clock: MockClock) -> None:
    budget_bytes = 10 * 112  # seven blocks of 16 tokens for what takes twelve
    async with serving_llm(kv_budget_bytes=budget_bytes, tokens_per_row=100) as served:
        readers = [served.ask(letter, sampling={"max_tokens": 44}) for letter in "abcd"]
        await trio.sleep(10)
        assert [reader.text for reader in readers] == [alone(letter, 44) for letter in "abcd"]
        assert served.statistics.llm.preemptions > 0
        assert served.gauges == (0, 0, 0)


async def test_a_fault_of_the_model_fails_the_texts_of_one_step(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_llm() as served:

        def fail_at_third(plan: StepPlan) -> None:
            if len(served.llm.plans) == 3:
                raise ValueError("no luck")

        served.llm.before = fail_at_third
        lost = [served.ask(letter) for letter in "ab"]
        await trio.sleep(3 * STEP_S + 4 * TOKEN_S)
        for reader in lost:
            assert reader.error is not None
            assert reader.error.code is ErrorCode.INTERNAL
            assert reader.error.message == (
                "model instance 'model_0' failed with ValueError: no luck"
            )
        # The second came while the first step was done.
        assert [len(reader.at_s) for reader in lost] == [2, 1]
        assert served.gauges == (0, 0, 0)
        later = await served.submit_and_read("c")
        assert later.text == alone("c", 8)
        statistics = served.statistics
        assert statistics.failures[FailureReason.BACKEND] == 2
        assert (statistics.llm.failed, statistics.success.count) == (2, 1)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "model instance 'model_0' failed with ValueError: no luck (faults so far: 1)",
    )
    assert record.exc_info
    assert "in fail_at_third" in caplog.text


async def test_it_says_that_it_batches_continuously(autojump_clock: MockClock) -> None:
    async with serving_llm(rows=2) as served:
        for letter in "abcdef":
            served.ask(letter, sampling={"max_tokens": 100})
        await trio.sleep(3 * STEP_S)
        explain = served.model.version.explain
        assert explain is not None
        shown = explain()
        assert shown is not None
        (level,) = shown["rules"].pop("levels")
        assert (level["level"], level["queued"]) == (1, 2)
        assert shown == {
            "scheduler": "continuous",
            "rules": {
                "rows": 2,
                "tokens_per_row": 256,
                "step_tokens": 32,
                "prefix_caching": False,
                "preserve_ordering": False,
            },
            "running": 2,
            "waiting": 2,
            "paused": 0,
            "kv_used_bytes": 2 * 16 * 10,
            "kv_cached_bytes": 0,
            "kv_budget_bytes": 10 * 4 * 256,
        }


def breaks_at(step: int, *, times: int = 1) -> Callable[[FakeLlm], None]:
    """Let the devices of so many instances break at a step that reads or goes on."""
    left = [times]

    def at_load(model: FakeLlm) -> None:
        def before(_: StepPlan) -> None:
            if left[0] and len(model.plans) == step:
                left[0] -= 1
                raise DeviceFaultError("a broken device")

        model.before = before

    return at_load


async def test_what_a_broken_device_was_at_goes_to_another_instance_unless_it_had_a_response(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    backend = FakeLlmBackend()
    backend.at_load = breaks_at(3)
    async with serving_llm(backend=backend, instances=2) as served:
        readers = [served.ask(letter, stream=letter < "e") for letter in "abcdefgh"]
        await trio.sleep(10)
        lost = [reader for reader in readers if reader.error is not None]
        assert lost  # those of "a" to "d" that were with the first to break
        for reader in lost:
            assert reader.error is not None
            assert "did not survive the request: a broken device" in reader.error.message
            assert 1 <= len(reader.at_s) <= 2
        for letter, reader in zip("abcdefgh", readers, strict=True):
            if reader not in lost:
                assert reader.text == (letter if letter >= "e" else "") + alone(letter, 8)
        assert not {*readers[4:]} & {*lost}
        assert served.statistics.success.count == 8 - len(lost)
        assert served.gauges == (0, 0, 0)


async def test_a_lonely_engine_that_breaks_fails_what_it_began_and_does_the_rest_once_restarted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    backend = FakeLlmBackend(replace(LIMITS, rows=1))
    backend.at_load = breaks_at(3)
    async with serving_llm(backend=backend) as served:
        readers = [served.ask(letter, stream=False) for letter in "abcdefgh"]
        await trio.sleep(100)
        assert readers[0].error is not None
        assert [reader.text for reader in readers[1:]] == [
            letter + alone(letter, 8) for letter in "bcdefgh"
        ]
        assert (served.statistics.success.count, served.statistics.fail.count) == (7, 1)
        assert served.statistics.pending_count == 0


async def test_a_request_that_was_given_back_is_forgotten_when_its_client_leaves(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    backend = FakeLlmBackend(replace(LIMITS, rows=1))
    backend.at_load = breaks_at(3)
    async with serving_llm(backend=backend) as served:
        served.devices.loads_take(1.0)
        first = served.ask("a")
        await wait_all_tasks_blocked()
        waiting = served.submit(llm_request("b"))
        await trio.sleep(3 * STEP_S + TOKEN_S)
        await wait_all_tasks_blocked()
        assert first.error is not None
        assert (served.statistics.pending_count, served.statistics.fail.count) == (1, 1)
        waiting.reply.close()
        await wait_all_tasks_blocked()
        assert (served.statistics.pending_count, served.statistics.fail.count) == (0, 2)


async def test_a_request_is_retried_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    backend = FakeLlmBackend()
    backend.at_load = breaks_at(1, times=2)
    async with serving_llm(backend=backend, instances=3) as served:
        reader = served.ask("a")
        await trio.sleep(100)
        assert reader.error is not None
        later = await served.submit_and_read("b")
        assert later.text == alone("b", 8)


async def test_a_step_that_hangs_costs_its_requests_and_a_restart(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    steps: list[StepPlan] = []

    def seconds(plan: StepPlan) -> float:
        steps.append(plan)
        return 100.0 if len(steps) == 2 else STEP_S

    async with serving_llm(step_seconds=seconds, hang_s=1.0) as served:
        reader = served.ask("a")
        await trio.sleep(30)
        assert reader.error is not None
        assert "did not finish within 1 s" in reader.error.message
        assert reader.ended_s == STEP_S + 1.0
        later = await served.submit_and_read("b")
        assert later.text == alone("b", 8)


async def test_a_stop_lets_texts_end(autojump_clock: MockClock) -> None:
    async with serving_llm(rows=1) as served:
        readers = [served.ask(letter, sampling={"max_tokens": 4}) for letter in "abcdef"]
        await trio.sleep(STEP_S)
        served.stop_soon(60.0)
        await trio.sleep(59)
        assert [reader.text for reader in readers] == [alone(letter, 4) for letter in "abcdef"]
    assert served.elapsed_s() < 61


async def test_a_stop_cuts_off_what_has_not_ended_by_its_deadline(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(rows=1) as served:
        readers = [served.ask(letter, sampling={"max_tokens": 100}) for letter in "abcdef"]
        await trio.sleep(STEP_S)
        served.stop_soon(10 * STEP_S)
        await trio.sleep(20)
        first, *others = readers
        assert first.error is not None
        assert first.error.code is ErrorCode.UNAVAILABLE
        assert first.text == alone("a", 100)[: len(first.text)]
        assert 8 <= len(first.text) <= 12
        assert all(reader.error is not None and not reader.at_s for reader in others)
        counts = served.statistics
        assert (counts.success.count, counts.fail.count, counts.pending_count) == (0, 6, 0)
        assert served.statistics.llm.cancelled[CancelReason.SHUTDOWN] == 6


async def test_an_instance_that_is_removed_ends_its_texts_and_takes_no_others(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(instances=2, rows=1) as served:
        readers = [served.ask(letter, sampling={"max_tokens": 20}) for letter in "abcd"]
        await trio.sleep(STEP_S)
        config = served.config(instances=1)
        assert await served.model.commit(await served.model.load_update(config))
        later = [served.ask(letter, sampling={"max_tokens": 20}) for letter in "ef"]
        await trio.sleep(10)
        texts = [reader.text for reader in (*readers, *later)]
        assert texts == [alone(letter, 20) for letter in "abcdef"]
        assert len(served.statistics.llm.engines) == 1
        [stopped] = [device.place.name for device in served.devices.made if device.stopped]
        [removed] = [model for model in served.backend.made if model.name == stopped]
        prompts = {start.prompt for plan in removed.plans for start in plan.joins}
        assert prompts
        assert not prompts & {(5,), (6,)}  # "e" and "f"


async def test_an_engine_has_its_permit_from_its_first_text_to_its_last(
    autojump_clock: MockClock,
) -> None:
    """Of two instances that need the same resource only one generates at a time."""
    resources = [pb.ModelRateLimiterResource(name="R", count=1)]
    group = pb.ModelRateLimiter(resources=resources)
    limiter = RateLimiter({("R", None): 1})
    async with serving_llm(instances=2, rows=1, rate_limiter=group, limiter=limiter) as served:
        readers = [served.ask(letter, sampling={"max_tokens": 8}) for letter in "abcdef"]
        await trio.sleep(10)
        assert [reader.text for reader in readers] == [alone(letter, 8) for letter in "abcdef"]
        took_s = 8 * STEP_S + TOKEN_S
        assert [reader.ended_s for reader in readers] == [took_s * n for n in range(1, 7)]
        group_of_another = pb.ModelInstanceGroup(rate_limiter=group)
        another = limiter.register("another", group_of_another, 0, lambda: None)
        assert another.ask()  # nothing is generated
        waiting = served.ask("g", sampling={"max_tokens": 8})
        await trio.sleep(1)
        assert not waiting.choices
        another.release()
        await trio.sleep(1)
        assert waiting.text == alone("g", 8)


async def test_the_tokenizer_of_a_loaded_model_is_known(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        assert served.model.version.text is served.llm.text


async def test_steps_and_tokens_are_counted(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        await served.submit_and_read("hello", sampling={"max_tokens": 4})
        await trio.sleep(1)
        llm, statistics = served.statistics.llm, served.statistics
        assert (llm.prompt_tokens, llm.output_tokens) == (5, 4)
        first_s = STEP_S + 5 * TOKEN_S
        assert (llm.first_token.sum, sum(llm.first_token.counts)) == (first_s, 1)
        assert (llm.inter_token.sum, sum(llm.inter_token.counts)) == (3 * STEP_S, 3)
        assert (llm.request.sum, llm.finished[FinishReason.LENGTH]) == (first_s + 3 * STEP_S, 1)
        assert (llm.decode.ns, llm.prefill.ns, llm.sample.ns) == (8000, 4000, 2000)
        assert sum(llm.step.counts) == 4  # not the one that only forgets the text
        assert statistics.execution_count == 4
        assert statistics.batches.keys() == {1}
        assert statistics.compute_infer.ns == int((first_s + 3 * STEP_S) * 1e9)
        assert sum(each.success.count for each in statistics.responses.values()) == 4
