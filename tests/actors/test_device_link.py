"""The way to a real thread and back; on the real clock, since a virtual one sees no threads."""

from __future__ import annotations

import threading

import pytest
import trio

from tritrio.actors import _device_link
from tritrio.actors._device_link import DeviceHungError, DeviceLink
from tritrio.backends.base import InstancePlace


async def test_jobs_run_on_one_thread_of_the_instance_and_return_or_raise() -> None:
    device = DeviceLink(InstancePlace("model_0"))
    device.start()
    names = [await device.run(lambda: threading.current_thread().name) for _ in range(3)]
    assert names == ["model_0"] * 3
    assert await device.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await device.run(divmod, 7, 0)
    with pytest.raises(SystemExit):
        await device.run(raise_exit)
    assert await device.run(divmod, 7, 2) == (3, 1)
    device.stop()
    device.stop()


def raise_exit() -> None:
    raise SystemExit(3)


async def test_a_cancelled_call_waits_for_its_job() -> None:
    device = DeviceLink(InstancePlace("model_0"))
    device.start()
    go, done = threading.Event(), threading.Event()

    def job() -> None:
        go.wait(30)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run, job)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        trio.lowlevel.current_trio_token().run_sync_soon(go.set)
    assert done.is_set()
    assert not device.abandoned
    assert await device.run(divmod, 7, 2) == (3, 1)
    device.stop()


async def test_a_job_over_its_limit_is_abandoned_and_its_late_result_goes_nowhere() -> None:
    device = DeviceLink(InstancePlace("model_0"))
    device.start()
    go = threading.Event()
    results: list[bool] = []
    with pytest.raises(DeviceHungError, match=r"0\.01 s"):
        await device.run(go.wait, 30, then=results.append, hang_s=0.01)
    assert (device.abandoned, device.hangs) == (True, True)
    go.set()
    while device.hangs:
        await trio.lowlevel.checkpoint()
    assert device.abandoned
    assert results == []
    device.stop()


async def test_a_job_that_hangs_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device_link, "ABANDON_AFTER_S", 0.0)
    device = DeviceLink(InstancePlace("model_0"))
    device.start()
    go = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run, go.wait, 30)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert device.abandoned
    go.set()
    device.stop()
