"""A task's reusable wakeup."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tritrio.actors._wakeup import Wakeup


async def test_set_before_wait_is_not_lost_and_several_are_one(autojump_clock: MockClock) -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    await wakeup.wait()
    with trio.move_on_after(1) as scope:
        await wakeup.wait()
    assert scope.cancelled_caught


async def test_set_wakes_the_waiting_task_each_time(autojump_clock: MockClock) -> None:
    wakeup = Wakeup()
    woken_s: list[float] = []

    async def sleeper() -> None:
        for _ in range(3):
            await wakeup.wait()
            woken_s.append(trio.current_time() - start_s)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        for _ in range(3):
            await trio.sleep(0.25)
            wakeup.set()
            await wait_all_tasks_blocked()
    assert woken_s == [0.25, 0.5, 0.75]


async def test_a_cancelled_wait_leaves_the_wakeup_usable(autojump_clock: MockClock) -> None:
    wakeup = Wakeup()
    with trio.move_on_after(0.5):
        await wakeup.wait()
    wakeup.set()
    await wakeup.wait()


async def test_wait_is_a_checkpoint_even_if_set() -> None:
    wakeup = Wakeup()
    wakeup.set()
    with trio.CancelScope() as scope:
        scope.cancel()
        await wakeup.wait()
    assert scope.cancelled_caught
