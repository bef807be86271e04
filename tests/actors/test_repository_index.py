"""The repository index: what lies in the repositories when it is asked for, and what was served."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_core import at_once, running
from tests.support.controlling import IDENTITY, add_model, add_version, configure, controlled
from tritrio.actors.core import Core
from tritrio.actors.model_control import LoadOverride
from tritrio.actors.repository_index import INDEX_LOOK_MAX_S, RepositoryIndex
from tritrio.actors.router import Router
from tritrio.actors.routing_table import UNLOADED, FailedVersion, IndexEntry, ModelEntry
from tritrio.actors.served_models import PAST_VERSIONS_MAX, ServedModels
from tritrio.protocol.errors import RequestError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BROKEN = IDENTITY.replace("OUTPUT0", "OUT")
GHOST = LoadOverride(
    json.dumps(
        {
            "backend": "identity",
            "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
        }
    ),
    {"1/weights": b"x"},
)


def lines(entries: list[IndexEntry]) -> list[str]:
    return [
        f"{entry.name}/{entry.version or '-'} {entry.state.value} {entry.reason}".rstrip()
        for entry in entries
    ]


async def listed(core: Core, *, ready_only: bool = False) -> list[str]:
    """What a client is told."""
    return lines(await core.index.entries(ready_only=ready_only))


async def test_directories_are_listed_by_name_from_when_they_are_there(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    add_model(one, "b")
    two.mkdir()
    async with controlled(one, two, startup_models=("b",)) as core:
        add_model(two, "a", BROKEN)
        (two / "file").write_text("no model")
        assert await listed(core) == ["a/- UNKNOWN", "b/1 READY"]
        assert await listed(core, ready_only=True) == ["b/1 READY"]
        assert core.router.ready()
        with pytest.raises(RequestError):
            core.router.table.find("a")
        shutil.rmtree(two / "a")
        assert await listed(core) == ["b/1 READY"]


async def test_without_explicit_control_nothing_is_looked_for(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with running(tmp_path) as core:
        add_model(tmp_path, "b")
        shutil.rmtree(tmp_path / "a")
        assert await listed(core) == ["a/1 READY"]


async def test_what_serves_without_a_directory_is_not_listed_until_it_has_one(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path) as core:
        await core.control.load("a")
        await core.control.load("ghost", GHOST)
        assert await listed(core) == ["a/1 READY"]
        shutil.rmtree(tmp_path / "a")
        assert await listed(core) == []
        assert core.router.table.versions_ready("a") == ["1"]
        assert core.router.ready()
        add_model(tmp_path, "ghost")
        assert await listed(core, ready_only=True) == ["ghost/1 READY"]
        await core.control.unload("ghost")
        await core.control.unload("a")
        await wait_all_tasks_blocked()
        assert await listed(core) == ["ghost/1 UNAVAILABLE unloaded"]


async def test_what_keeps_the_server_from_being_ready_is_listed_wherever_it_lies(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", BROKEN)
    async with controlled(tmp_path, startup_models=("a", "missing")) as core:
        shutil.rmtree(tmp_path / "a")
        first, second = await listed(core)
        assert first.startswith("a/1 UNAVAILABLE Invalid argument: ")
        assert second.startswith("missing/- UNAVAILABLE Internal: ")
        assert not core.router.ready()
        for name in ("a", "missing"):
            await core.control.unload(name)
        assert await listed(core) == []
        assert core.router.ready()


async def test_of_a_repository_that_cannot_be_read_what_was_known_stays(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    add_model(one, "a")
    add_model(two, "b")
    async with controlled(one, two, startup_models=("a",)) as core:
        one.rename(tmp_path / "away")
        assert await listed(core) == ["a/1 READY", "b/- UNKNOWN"]  # as of the start
        (tmp_path / "away").rename(one)
        add_model(one, "c")
        assert await listed(core) == ["a/1 READY", "b/- UNKNOWN", "c/- UNKNOWN"]
        one.rename(tmp_path / "away")
        add_model(two, "d")
        assert await listed(core) == ["a/1 READY", "b/- UNKNOWN", "c/- UNKNOWN", "d/- UNKNOWN"]
        assert await listed(core) == ["a/1 READY", "b/- UNKNOWN", "c/- UNKNOWN", "d/- UNKNOWN"]
        told = [each.message for each in caplog.records if "may be out of date" in each.message]
        assert [str(one) in message for message in told] == [True, True]  # once each time
        (tmp_path / "away").rename(one)
        shutil.rmtree(one / "a")
        assert await listed(core) == ["b/- UNKNOWN", "c/- UNKNOWN", "d/- UNKNOWN"]


class SlowDisk:
    """A disk whose looks take virtual seconds, and are counted."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.looks = 0

    async def __call__(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        self.looks += 1
        await trio.sleep(self.seconds)
        return await at_once(job, *args)


async def test_requests_share_the_next_look_and_one_that_began_before_is_not_enough(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    disk = SlowDisk(1.0)
    asked = RepositoryIndex(router=Router(), repositories=[tmp_path], run_in_thread=disk)
    seen: list[tuple[float, list[str]]] = []
    start_s = trio.current_time()

    async def ask() -> None:
        entries = await asked.entries()
        seen.append((trio.current_time() - start_s, [entry.name for entry in entries]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.5)
        for _ in range(10):
            nursery.start_soon(ask)
        await trio.sleep(1)
        add_model(tmp_path, "a")
    assert disk.looks == 2
    assert seen == [(1.0, []), *[(2.0, ["a"])] * 10]


async def test_a_client_that_leaves_takes_no_look_away_from_others(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    disk = SlowDisk(1.0)
    asked = RepositoryIndex(router=Router(), repositories=[tmp_path], run_in_thread=disk)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5):
            nursery.start_soon(asked.entries)
            await asked.entries()
        assert lines(await asked.entries()) == ["a/- UNKNOWN"]


async def test_a_disk_that_hangs_costs_one_thread_and_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real threads; what hangs is the listing of the directory."""
    hanging, go_on = threading.Event(), threading.Event()
    listings: list[Path] = []

    def list_slowly(repository: Path) -> list[Path]:
        listings.append(repository)
        hanging.set()
        assert go_on.wait(30)
        return [repository / "new"]

    async def on_thread(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        return await trio.to_thread.run_sync(job, *args, abandon_on_cancel=True)

    monkeypatch.setattr("tritrio.actors.repository_index.list_repository", list_slowly)
    router = Router()
    router.apply(ModelEntry("old"))
    asked = RepositoryIndex(router=router, repositories=[tmp_path], run_in_thread=on_thread)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asked.entries)
        await trio.to_thread.run_sync(hanging.wait)
        nursery.cancel_scope.cancel()
    assert lines(await asked.entries()) == ["old/- UNKNOWN"]
    assert len(listings) == 1
    go_on.set()
    with trio.fail_after(30):
        while lines(await asked.entries()) != ["new/- UNKNOWN"]:
            await trio.lowlevel.checkpoint()


async def test_nobody_waits_longer_than_a_look_may_take(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router()
    router.apply(ModelEntry("old"))
    disk = SlowDisk(1e6)
    asked = RepositoryIndex(router=router, repositories=[tmp_path], run_in_thread=disk)
    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(asked.entries)
    assert trio.current_time() - start_s == INDEX_LOOK_MAX_S
    assert "could not be listed within 5 s" in caplog.text


async def test_every_version_that_was_served_stays_as_unloaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path) as core:
        for version in ("1", "2", "3"):
            add_version(tmp_path, "a", version)
            await core.control.load("a")
            await wait_all_tasks_blocked()
        past = ["a/1 UNAVAILABLE unloaded", "a/2 UNAVAILABLE unloaded"]
        assert await listed(core) == [*past, "a/3 READY"]
        assert core.router.ready()
        assert [version.version for version in core.router.measured_models()] == ["3"]
        with pytest.raises(RequestError, match="version 1 is not ready"):
            core.router.table.find("a", "1")

        configure(tmp_path, "a", BROKEN)
        with pytest.raises(RequestError):
            await core.control.load("a")
        before, after = (await listed(core))[:2], (await listed(core))[2]
        assert before == past
        assert after.startswith("a/3 READY Invalid argument: ")
        assert core.router.ready()

        await core.control.unload("a")
        await wait_all_tasks_blocked()
        assert await listed(core) == [*past, "a/3 UNAVAILABLE unloaded"]
        configure(tmp_path, "a", "oops: 1")
        with pytest.raises(RequestError):
            await core.control.load("a")
        failed, *others = await listed(core)
        assert failed.startswith("a/- UNAVAILABLE Invalid argument: ")
        assert others == [*past, "a/3 UNAVAILABLE unloaded"]
        assert not core.router.ready()

        configure(tmp_path, "a")
        add_version(tmp_path, "a", "2")
        shutil.rmtree(tmp_path / "a" / "3")
        await core.control.load("a")
        assert await listed(core) == [past[0], "a/2 READY", "a/3 UNAVAILABLE unloaded"]
        assert core.router.ready()


def test_a_failure_says_more_of_why_a_model_is_not_ready_than_an_unload_before_it() -> None:
    router = Router()
    models = ServedModels(publish=router.apply, withdraw=router.withdraw)
    models.show("a", {1: FailedVersion("1", UNLOADED)})
    assert models.why_not_ready("a") == UNLOADED
    models.show("a", {2: FailedVersion("2", "Internal: not today")})
    assert [entry.version for entry in router.table.index()] == ["1", "2"]
    assert models.why_not_ready("a") == "Internal: not today"


async def test_a_version_that_failed_is_gone_once_the_model_is_loaded_without_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", BROKEN)
    async with controlled(tmp_path) as core:
        with pytest.raises(RequestError):
            await core.control.load("a")
        configure(tmp_path, "a")
        add_version(tmp_path, "a", "2")
        await core.control.load("a")
        assert await listed(core) == ["a/2 READY"]
        assert core.router.ready()


async def test_the_oldest_versions_are_forgotten_beyond_the_bound(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path) as core:
        latest = PAST_VERSIONS_MAX + 5
        for version in range(1, latest + 1):
            add_version(tmp_path, "a", str(version))
            await core.control.load("a")
            await wait_all_tasks_blocked()
            shutil.rmtree(tmp_path / "a" / str(version))
        assert await listed(core) == [
            *(f"a/{number} UNAVAILABLE unloaded" for number in range(4, latest)),
            f"a/{latest} READY",
        ]
