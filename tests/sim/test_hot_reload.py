"""Models are replaced under load, in many schedules: no request is refused or lost."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import trio
from hypothesis import given, settings, strategies as st
from trio.testing import wait_all_tasks_blocked

from tests.support.controlling import (
    IDENTITY,
    add_model,
    add_version,
    answer,
    configure,
    controlled,
    index,
)
from tests.support.fake_device import FakeDevices
from tests.support.schedules import run_virtually
from tritrio.protocol.errors import RequestError

BROKEN = IDENTITY.replace("OUTPUT0", "OUT")
ALL = "version_policy { all {} }" + IDENTITY


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.random_module())
def test_no_request_notices_that_its_model_is_replaced(seed: int, schedule: object) -> None:
    del schedule  # trio's own choices
    chance = random.Random(seed)

    async def scenario() -> None:
        with tempfile.TemporaryDirectory() as place:
            repository = Path(place)
            add_model(repository, "a", ALL)
            devices = FakeDevices(lambda *_: chance.choice([0.0, 0.1, 2.0]), other_s=1.0)
            async with controlled(
                repository, device_factory=devices, startup_models=("a",)
            ) as core:
                answered = 0
                sending = True

                async def send() -> None:
                    nonlocal answered
                    while sending:
                        assert (await answer(core, "a", chance.choice(["", "1"]))).error is None
                        answered += 1
                        await trio.sleep(chance.choice([0.0, 0.05, 0.3]))

                async with trio.open_nursery() as nursery:
                    for _ in range(4):
                        nursery.start_soon(send)
                    for _ in range(8):
                        broken = chance.random() < 0.3
                        if chance.random() < 0.3:
                            add_version(repository, "a", str(chance.randint(1, 3)))
                        configure(repository, "a", BROKEN if broken else ALL)
                        try:
                            await core.control.load("a")
                        except RequestError:
                            assert broken
                        else:
                            assert not broken
                        await trio.sleep(chance.choice([0.0, 0.5, 3.0]))
                    sending = False
                assert answered > 20
                await trio.sleep(10)
                ready = [line for line in index(core) if "READY" in line]
                assert [str(each) for each in core.router.measured_models()] == [
                    f"<ModelVersion a version {line[2]} READY>" for line in ready
                ]

    run_virtually(scenario)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.random_module())
def test_a_storm_of_loads_and_unloads_ends_as_the_last_one_wanted(
    loads: list[bool], schedule: object
) -> None:
    del schedule

    async def scenario() -> None:
        with tempfile.TemporaryDirectory() as place:
            repository = Path(place)
            add_model(repository, "a")
            async with controlled(repository, device_factory=FakeDevices(other_s=1.0)) as core:
                async with trio.open_nursery() as nursery:
                    for load in loads:
                        change = core.control.load if load else core.control.unload
                        await _begin(nursery, change)
                await trio.sleep(5)
                await wait_all_tasks_blocked()
                wanted = "a/1 READY" if loads[-1] else "a/1 UNAVAILABLE unloaded"
                if not any(loads):
                    wanted = "a/- UNKNOWN"
                assert index(core) == [wanted]

    run_virtually(scenario)


async def _begin(nursery: trio.Nursery, change: object) -> None:
    """Ask for a change in a task of its own, and return once it has been asked for."""
    asked = trio.Event()

    async def run() -> None:
        asked.set()
        await change("a")  # type: ignore[operator]

    nursery.start_soon(run)
    await asked.wait()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.random_module())
def test_no_request_notices_that_instances_come_and_go(
    seed: int, limited: bool, schedule: object
) -> None:
    del schedule
    chance = random.Random(seed)

    def group(count: int) -> str:
        needs = 'rate_limiter { resources { name: "R" count: 1 } }'
        return IDENTITY + f"instance_group [ {{ kind: KIND_CPU count: {count} {needs} }} ]"

    async def scenario() -> None:
        with tempfile.TemporaryDirectory() as place:
            repository = Path(place)
            add_model(repository, "a", group(2))
            devices = FakeDevices(lambda *_: chance.choice([0.0, 0.1, 2.0]), other_s=1.0)
            async with controlled(
                repository,
                device_factory=devices,
                startup_models=("a",),
                rate_limits={("R", None): 2} if limited else None,
            ) as core:
                version = core.router.table.find("a")
                answered, sending, count = 0, True, 2

                async def send() -> None:
                    nonlocal answered
                    while sending:
                        assert (await answer(core, "a")).error is None
                        answered += 1
                        await trio.sleep(chance.choice([0.0, 0.05, 0.3]))

                async with trio.open_nursery() as nursery:
                    for _ in range(4):
                        nursery.start_soon(send)
                    for _ in range(8):
                        count = chance.choice([each for each in range(1, 6) if each != count])
                        configure(repository, "a", group(count))
                        await core.control.load("a")
                        await trio.sleep(chance.choice([0.0, 0.5, 3.0]))
                    sending = False
                await trio.sleep(10)
                assert core.router.table.find("a") is version
                assert version.statistics.success.count == answered >= 4
                assert sum(not device.stopped for device in devices.made) == count
            assert all(device.stopped for device in devices.made)

    run_virtually(scenario)
