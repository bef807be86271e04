"""Instances that come and go in a version that runs: what is executed when, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_core import running
from tests.actors.test_ensemble_loading import ensemble_of
from tests.support.controlling import (
    IDENTITY,
    add_model,
    add_version,
    ask,
    configure,
    controlled,
    index,
)
from tests.support.fake_device import FakeDevices
from tritrio.actors._device_link import Device
from tritrio.actors.core import Core
from tritrio.actors.reply import Reply
from tritrio.backends.base import Batch, InstancePlace
from tritrio.protocol.errors import RequestError
from tritrio.protocol.requests import InferRequest

RESOURCE = 'rate_limiter { resources { name: "R" count: %d } }'


def instances(count: int, more: str = "") -> str:
    return IDENTITY + f"instance_group [ {{ kind: KIND_CPU count: {count} {more} }} ]"


async def answered_s(*replies: Reply) -> list[float]:
    """Return when each reply has come; all must be good."""
    times_s: list[float] = []
    for reply in replies:
        assert (await reply.receive()).error is None
        times_s.append(trio.current_time())
    return times_s


def ended(devices: FakeDevices) -> list[str]:
    """Return the names of the instances that have ended."""
    return sorted(device.place.name for device in devices.made if device.stopped)


async def counts(core: Core) -> tuple[int, int]:
    """Return how many requests have ended well, and how many instances there are."""
    await wait_all_tasks_blocked()
    version = core.router.table.find("a")
    assert version.explain is not None
    shown = version.explain()
    assert shown is not None
    return version.statistics.success.count, sum(shown["instances"].values())


async def test_a_new_instance_takes_what_is_queued_once_it_is_loaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(1))
    devices = FakeDevices(10.0)
    async with controlled(tmp_path, device_factory=devices, startup_models=("a",)) as core:
        version = core.router.table.find("a")
        replies = [ask(core, "a") for _ in range(3)]
        configure(tmp_path, "a", instances(2))
        devices.loads_take(2.0)
        await core.control.load("a")
        assert trio.current_time() == 2
        assert core.router.table.find("a") is version
        assert version.config.instance_group[0].count == 2
        assert await answered_s(*replies) == [10, 12, 20]
        assert await counts(core) == (3, 2)
        assert len(devices.made) == 2
        await core.control.load("a")
        assert len(devices.made) == 2


async def test_an_instance_that_is_removed_finishes_its_batch_and_takes_no_other(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(3))
    devices = FakeDevices(10.0)
    async with controlled(tmp_path, device_factory=devices, startup_models=("a",)) as core:
        version = core.router.table.find("a")
        await wait_all_tasks_blocked()
        executing = [ask(core, "a") for _ in range(3)]
        await trio.sleep(1)
        configure(tmp_path, "a", instances(1))
        await core.control.load("a")
        assert trio.current_time() == 1
        queued = [ask(core, "a") for _ in range(2)]
        await wait_all_tasks_blocked()
        assert ended(devices) == []
        assert await answered_s(*executing, *queued) == [10, 10, 10, 20, 30]
        assert ended(devices) == ["a_0_1", "a_0_2"]
        assert core.router.table.find("a") is version
        assert await counts(core) == (5, 1)
    assert ended(devices) == ["a_0_0", "a_0_1", "a_0_2"]


async def test_an_idle_instance_that_is_removed_ends_at_once(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(3))
    devices = FakeDevices()
    async with controlled(tmp_path, device_factory=devices, startup_models=("a",)) as core:
        await wait_all_tasks_blocked()
        configure(tmp_path, "a", instances(2))
        await core.control.load("a")
        await wait_all_tasks_blocked()
        assert ended(devices) == ["a_0_2"]
        assert trio.current_time() == 0
        assert await counts(core) == (0, 2)


async def test_instances_that_differ_are_made_anew_before_the_old_ones_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(2))
    devices = FakeDevices(1.0)
    async with controlled(tmp_path, device_factory=devices, startup_models=("a",)) as core:
        version = core.router.table.find("a")
        configure(tmp_path, "a", instances(1, 'name: "other"'))
        devices.loads_take(5.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.control.load, "a")
            await trio.sleep(4)
            assert await answered_s(ask(core, "a")) == [5]
        assert await answered_s(ask(core, "a")) == [6]
        names = [device.place.name for device in devices.made if not device.stopped]
        assert names == ["other_0"]
        assert core.router.table.find("a") is version


async def test_a_new_instance_that_fails_leaves_everything_as_it_was(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", "version_policy { all {} }" + instances(1), ("1", "2"))
    devices = FakeDevices(3.0)
    async with controlled(
        tmp_path, device_factory=devices, startup_models=("a",), load_max_s=5.0
    ) as core:
        before = [core.router.table.find("a", version) for version in ("1", "2")]
        configure(tmp_path, "a", "version_policy { all {} }" + instances(2))
        devices.loads_take(50.0)
        with pytest.raises(RequestError, match="did not load within 5 s"):
            await core.control.load("a")
        for number, line in enumerate(index(core), 1):
            assert line.startswith(f"a/{number} READY Unavailable: model instance 'a_0_1' did not")
        assert [core.router.table.find("a", version) for version in ("1", "2")] == before
        assert [version.config.instance_group[0].count for version in before] == [1, 1]
        assert await counts(core) == (0, 1)
        devices.loads_take(0.0)
        await core.control.load("a")
        assert index(core) == ["a/1 READY", "a/2 READY"]
        assert [core.router.table.find("a", version) for version in ("1", "2")] == before
        assert await counts(core) == (0, 2)


async def test_if_one_version_fails_the_new_instances_of_the_others_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", "version_policy { all {} }" + instances(1), ("1", "2"))
    devices = FakeDevices()
    loads_s = iter([0.0, 0.0, 2.0, 50.0])

    def make(place: InstancePlace) -> Device:
        devices.loads_take(next(loads_s))
        return devices(place)

    async with controlled(
        tmp_path, device_factory=make, startup_models=("a",), load_max_s=5.0
    ) as core:
        configure(tmp_path, "a", "version_policy { all {} }" + instances(2))
        with pytest.raises(RequestError, match="did not load within 5 s"):
            await core.control.load("a")
        assert ended(devices) == ["a_0_1", "a_0_1"]
        assert await counts(core) == (0, 1)
        versions = [core.router.table.find("a", version) for version in ("1", "2")]
        assert [version.config.instance_group[0].count for version in versions] == [1, 1]


async def test_the_rate_limiter_counts_the_instances_there_are(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    limits = {("R", None): 2}
    for name in ("a", "b"):
        add_model(tmp_path, name, instances(1, RESOURCE % 1))
    devices = FakeDevices(10.0)
    async with controlled(
        tmp_path, device_factory=devices, startup_models=("a", "b"), rate_limits=limits
    ) as core:
        version = core.router.table.find("a")
        configure(tmp_path, "a", instances(3, RESOURCE % 1))
        await core.control.load("a")
        await wait_all_tasks_blocked()
        assert await answered_s(*(ask(core, "a") for _ in range(3))) == [10, 10, 20]
        executing = [ask(core, "a") for _ in range(2)]
        await wait_all_tasks_blocked()
        configure(tmp_path, "a", instances(1, RESOURCE % 1))
        await core.control.load("a")
        other = ask(core, "b")  # what the removed one still executes with is not free
        queued = [ask(core, "a") for _ in range(2)]
        assert await answered_s(*executing, other, *queued) == [30, 30, 40, 40, 50]
        configure(tmp_path, "a", instances(1, RESOURCE % 3))
        with pytest.raises(RequestError, match="needs resource 'R'"):
            await core.control.load("a")
        assert core.router.table.find("a") is version
        assert await answered_s(ask(core, "a")) == [60]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (IDENTITY, "version_policy { all {} }" + IDENTITY, True),
        (instances(1), instances(2), True),
        (instances(1), instances(2) + "dynamic_batching { }", False),
        (instances(1), instances(1), False),  # its time is new
        (instances(1), instances(1, "passive: true"), False),  # refused, so both stay
        (instances(1) + "sequence_batching { }", instances(2) + "sequence_batching { }", False),
    ],
)
async def test_only_other_instances_and_another_choice_of_versions_load_nothing_anew(
    autojump_clock: MockClock, tmp_path: Path, old: str, new: str, same: bool
) -> None:
    add_model(tmp_path, "a", old)
    async with controlled(tmp_path, startup_models=("a",)) as core:
        version = core.router.table.find("a", "1")
        configure(tmp_path, "a", new)
        if "passive" in new:
            with pytest.raises(RequestError, match="not passive"):
                await core.control.load("a")
            same = True
        else:
            await core.control.load("a")
        assert (core.router.table.find("a", "1") is version) is same


async def test_a_version_that_is_added_with_instances_comes_together_with_them(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(1))
    async with controlled(tmp_path, startup_models=("a",)) as core:
        version = core.router.table.find("a")
        add_version(tmp_path, "a", "2")
        configure(tmp_path, "a", "version_policy { all {} }" + instances(2))
        await core.control.load("a")
        assert index(core) == ["a/1 READY", "a/2 READY"]
        assert core.router.table.find("a", "1") is version
        assert await counts(core) == (0, 2)


async def test_polling_changes_instances_too(autojump_clock: MockClock, tmp_path: Path) -> None:
    add_model(tmp_path, "a", instances(1))
    async with running(tmp_path, model_control="poll") as core:
        version = core.router.table.find("a")
        configure(tmp_path, "a", instances(2))
        await trio.sleep(16.5)
        assert core.router.table.find("a") is version
        assert await counts(core) == (0, 2)


async def test_a_removed_instance_that_dies_gives_its_request_to_another_and_is_not_restarted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(2))
    where: dict[str, InferRequest] = {}

    def seconds(place: InstancePlace, batch: Batch) -> float:
        where[place.name] = batch.requests[0]
        return 10.0

    devices = FakeDevices(seconds)
    async with controlled(tmp_path, device_factory=devices, startup_models=("a",)) as core:
        await wait_all_tasks_blocked()
        replies = {id(reply.request): reply for reply in [ask(core, "a") for _ in range(2)]}
        await wait_all_tasks_blocked()
        kept, removed = (where[name] for name in ("a_0_0", "a_0_1"))
        removed.id = "deadly"
        devices.deadly.add("deadly")
        configure(tmp_path, "a", instances(1))
        await core.control.load("a")
        await trio.sleep(10.5)
        devices.deadly.clear()
        assert await answered_s(replies[id(kept)], replies[id(removed)]) == [10.5, 20]
        assert len(devices.made) == 2
        assert await counts(core) == (2, 1)


async def test_an_instance_that_is_to_end_is_nobody_to_hand_a_request_over_to(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(2))
    where: dict[str, InferRequest] = {}

    def seconds(place: InstancePlace, batch: Batch) -> float:
        where[place.name] = batch.requests[0]
        return 10.0 if place.name == "a_0_0" else 20.0

    devices = FakeDevices(seconds)
    async with controlled(tmp_path, device_factory=devices, startup_models=("a",)) as core:
        await wait_all_tasks_blocked()
        replies = {id(reply.request): reply for reply in [ask(core, "a") for _ in range(2)]}
        await wait_all_tasks_blocked()
        lost, removed = (where[name] for name in ("a_0_0", "a_0_1"))
        lost.id = "deadly"
        devices.deadly.add("deadly")
        configure(tmp_path, "a", instances(1))
        await core.control.load("a")
        error = (await replies[id(lost)].receive()).error
        assert error is not None
        assert "did not survive the request" in error.message
        assert trio.current_time() == 10
        assert await answered_s(replies[id(removed)]) == [20]


async def test_a_removed_instance_needs_nothing_of_the_rate_limiter(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(1, RESOURCE % 2))
    add_model(tmp_path, "b", instances(1, RESOURCE % 1))
    async with controlled(
        tmp_path, device_factory=FakeDevices(10.0), startup_models=("a", "b"), rate_limits={}
    ) as core:
        configure(tmp_path, "a", instances(1, RESOURCE % 1))
        await core.control.load("a")
        await wait_all_tasks_blocked()
        first = ask(core, "a")
        await wait_all_tasks_blocked()
        assert await answered_s(first, ask(core, "b")) == [10, 20]


async def test_an_ensemble_goes_on_with_the_model_that_has_other_instances(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(1))
    add_model(tmp_path, "e", ensemble_of("a"))
    async with controlled(tmp_path, startup_models=("e",)) as core:
        version = core.router.table.find("e")
        configure(tmp_path, "a", instances(2))
        await core.control.load("a")
        assert core.router.table.find("e") is version
        assert await answered_s(ask(core, "e")) == [0]


async def test_a_stop_while_an_instance_loads_ends_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", instances(1))
    devices = FakeDevices(1.0)
    async with running(tmp_path, model_control="poll", poll_s=2.0, device_factory=devices) as core:
        configure(tmp_path, "a", instances(2))
        devices.loads_take(4.0)
        await trio.sleep(5)
        assert len(devices.made) == 2
        assert await core.stop()
        assert ended(devices) == ["a_0_0", "a_0_1"]
