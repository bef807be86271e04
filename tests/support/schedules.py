"""Runs a scenario on virtual time, from synchronous tests such as Hypothesis's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.testing import MockClock

from tests.support.limits import TEST_LIMIT_S

T = TypeVar("T")


def run_virtually(scenario: Callable[[], Awaitable[T]]) -> T:
    """Run `scenario` on a clock that jumps; the order of ready tasks is Hypothesis's choice.

    trio registers its scheduler's randomness with Hypothesis, so with `st.random_module()` each
    example runs a schedule of its own, and a failing one is replayed.
    """

    async def limited() -> T:
        with trio.fail_after(TEST_LIMIT_S):
            return await scenario()

    return trio.run(limited, clock=MockClock(autojump_threshold=0))
