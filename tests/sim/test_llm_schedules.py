"""Random schedules: whatever clients of generated text do, the others' texts are as if alone.

Every text that is not cut short equals the text that is generated with nothing beside it, what was
sent of the others begins like theirs, nothing is left in the end, and every request counts once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st

from tests.support.llm import (
    LIMITS,
    STEP_S,
    FakeLlm,
    FakeLlmBackend,
    LlmServed,
    Reader,
    alone,
    llm_request,
    serving_llm,
)
from tests.support.schedules import run_virtually
from tritrio.backends.base import DeviceFaultError
from tritrio.backends.llm.steps import StepPlan

TICK_S = STEP_S / 4

PROMPTS = (
    "a",
    "the same beginning of",
    "the same beginning of another",
    "some quite long one. " * 2,
)


@dataclass(frozen=True)
class Ask:
    """One client.

    Attributes:
      at: Ticks before it asks.
      leave: Ticks after which it leaves, and a half; None if it stays.
      pace: Ticks between its reads.
      timeout: Ticks that it may wait in the queue; 0 for any number.
    """

    at: int
    prompt: str
    max_tokens: int
    n: int
    stream: bool
    leave: int | None
    pace: int
    timeout: int


@dataclass(frozen=True)
class Setting:
    """The engines, and what happens: a fault of model or device at a step, a stop at a tick."""

    instances: int
    rows: int
    step_tokens: int
    blocks: int
    prefix_caching: bool
    contiguous: bool
    fault: int | None
    breaks: int | None
    stop: int | None


ASKS = st.builds(
    Ask,
    at=st.integers(0, 120),
    prompt=st.sampled_from(PROMPTS),
    max_tokens=st.integers(1, 20),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    stream=st.booleans(),
    leave=st.none() | st.integers(0, 100),
    pace=st.sampled_from([0, 0, 1, 9]),
    timeout=st.sampled_from([0, 0, 0, 10]),
)

SETTINGS = st.builds(
    Setting,
    instances=st.sampled_from([1, 1, 2]),
    rows=st.integers(1, 3),
    step_tokens=st.sampled_from([1, 5, 32]),
    blocks=st.sampled_from([4, 5, 7, 12]),
    prefix_caching=st.booleans(),
    contiguous=st.booleans(),
    fault=st.none() | st.integers(1, 40),
    breaks=st.none() | st.integers(1, 40),
    stop=st.none() | st.integers(0, 200),
)


class Events:
    """What happens to the engines, and what has to hold at each step.

    Attributes:
      over: Whether nothing happens any more.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._steps = 0
        self.served: LlmServed | None = None
        self.over = False

    def of(self, model: FakeLlm) -> None:
        """Let a model have its part in it."""
        model.before = self._before

    def _before(self, _: StepPlan) -> None:
        assert self.served is not None
        setting = self._setting
        assert self.served.gauges[0] <= setting.instances * setting.rows
        assert self.served.gauges[2] <= setting.instances * setting.blocks * 160
        self._steps += 1
        if self.over:
            return
        if self._steps == setting.fault:
            raise ValueError("a fault")
        if self._steps == setting.breaks:
            raise DeviceFaultError("a broken device")


class _Run:
    """One scenario in progress."""

    def __init__(self, served: LlmServed, setting: Setting) -> None:
        self._served = served
        self._setting = setting
        self.asked = 0
        self.answered = 0
        self.left = 0

    async def client(self, ask: Ask) -> None:
        await trio.sleep(ask.at * TICK_S)
        sampling: dict[str, Any] = {"max_tokens": ask.max_tokens}
        if ask.n > 1:
            sampling |= {"n": ask.n, "temperature": 1.0, "seed": 1}
        request = llm_request(ask.prompt, stream=ask.stream, exclude_input=True, sampling=sampling)
        request.timeout_us = round(ask.timeout * TICK_S * 1e6)
        if self._setting.stop is not None and ask.at >= self._setting.stop:
            return
        reader = self._served.submit(request)
        self.asked += 1
        with trio.move_on_after(
            float("inf") if ask.leave is None else (ask.leave + 0.5) * TICK_S
        ) as scope:
            await reader.read(pause_s=ask.pace * TICK_S)
        self.left += scope.cancelled_caught and not reader.reply.done
        reader.reply.close()
        self._check(ask, reader, ended=not scope.cancelled_caught)

    def _check(self, ask: Ask, reader: Reader, *, ended: bool) -> None:
        expected = [
            alone(ask.prompt, ask.max_tokens, seed=seed if ask.n > 1 else 0)
            for seed in range(1, ask.n + 1)
        ]
        texts = reader.texts
        assert all(whole.startswith(text) for whole, text in zip(expected, texts, strict=False))
        if ended and reader.error is None:
            self.answered += 1
            assert texts == expected
        elif ended:
            assert "AssertionError" not in str(reader.error)
            setting = self._setting
            events = (setting.fault, setting.breaks, setting.stop)
            assert ask.timeout or any(event is not None for event in events), reader.error


async def scenario(asks: list[Ask], setting: Setting) -> None:
    limits = replace(
        LIMITS,
        rows=setting.rows,
        step_tokens=setting.step_tokens,
        tokens_per_row=64,
        kv_budget_bytes=160 * setting.blocks,
        prefix_caching=setting.prefix_caching,
        contiguous=setting.contiguous,
    )
    backend = FakeLlmBackend(limits)
    events = Events(setting)
    backend.at_load = events.of
    async with serving_llm(backend=backend, instances=setting.instances) as served:
        events.served = served
        run = _Run(served, setting)
        async with trio.open_nursery() as nursery:
            for ask in asks:
                nursery.start_soon(run.client, ask)
            if setting.stop is not None:
                await trio.sleep(setting.stop * TICK_S)
                served.stop_soon(20 * TICK_S)
        await trio.sleep(1)
        statistics = served.statistics
        assert statistics.success.count >= run.answered
        assert statistics.success.count + statistics.fail.count == run.asked
        assert statistics.pending_count == 0
        assert served.gauges == (0, 0, 0)
        llm = statistics.llm
        assert sum(llm.cancelled.values()) <= statistics.fail.count
        assert llm.output_tokens >= sum(llm.finished.values())
        if setting.stop is None:
            events.over = True
            later = await served.submit_and_read("later")
            assert later.text == alone("later", 8)


@pytest.mark.slow
@settings(max_examples=250, derandomize=True, deadline=None)
@given(asks=st.lists(ASKS, min_size=1, max_size=8), setting=SETTINGS, random=st.random_module())
def test_random_schedules(asks: list[Ask], setting: Setting, random: object) -> None:
    run_virtually(partial(scenario, asks, setting))
