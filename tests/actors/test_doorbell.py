"""Calls from other threads onto the event loop; these need real threads, so a real clock."""

from __future__ import annotations

import os

import trio

from tritrio.actors._doorbell import current_doorbell
from tritrio.backends.device_context import HostContext
from tritrio.backends.device_thread import DeviceThread


async def test_every_ring_is_answered_once_on_the_loop_in_order() -> None:
    ring = current_doorbell()
    heard: list[int] = []
    loop_task = trio.lowlevel.current_root_task()
    done = trio.Event()

    def hear(number: int) -> None:
        assert trio.lowlevel.current_root_task() is loop_task
        heard.append(number)
        if number == 9_999:
            done.set()

    def ring_often() -> None:
        for number in range(10_000):
            ring(hear, number)

    thread = DeviceThread("ringer", HostContext(), lambda *_: None)
    thread.start()
    thread.submit(lambda *_: None, ring_often)
    await done.wait()
    thread.stop()
    assert await trio.to_thread.run_sync(thread.join, 10.0)
    assert heard == list(range(10_000))


async def test_one_loop_has_one_doorbell() -> None:
    assert current_doorbell() is current_doorbell()


def test_each_run_closes_its_descriptor_and_a_late_ring_does_no_harm() -> None:
    async def get() -> object:
        ring = current_doorbell()
        answered = trio.Event()
        ring(answered.set)
        await answered.wait()
        return ring

    first = trio.run(get)
    before = len(os.listdir("/proc/self/fd"))
    second = trio.run(get)
    assert len(os.listdir("/proc/self/fd")) == before
    assert first is not second
    assert callable(first)
    first(lambda: None)
    assert len(os.listdir("/proc/self/fd")) == before
