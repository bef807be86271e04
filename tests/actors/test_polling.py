"""The repositories are followed: what is noticed when, and what stays as it is."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock

from tests.actors.test_core import at_once, running
from tests.actors.test_ensemble_loading import ensemble_of
from tests.support.controlling import (
    IDENTITY,
    add_model,
    add_version,
    answer,
    ask,
    configure,
    index,
    touch,
)
from tests.support.fake_device import FakeDevices
from tritrio.actors.core import Core
from tritrio.protocol.errors import ErrorCode, RequestError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ALL = "version_policy { all {} }" + IDENTITY
BROKEN = IDENTITY.replace("OUTPUT0", "OUT")


@asynccontextmanager
async def polling(*repositories: Path, **options: Any) -> AsyncIterator[Core]:
    """A core that looks at its repositories every 15 seconds; the start ends at 0."""
    async with running(*repositories, model_control="poll", **options) as core:
        assert trio.current_time() == 0
        yield core


async def at(time_s: float) -> None:
    """Wait for a virtual time, and for all that happens at it."""
    await trio.sleep_until(time_s)
    await trio.testing.wait_all_tasks_blocked()


async def test_what_comes_changes_and_goes_is_noticed_and_carried_out_once_it_has_settled(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", ALL)
    async with polling(tmp_path) as core:
        one = core.router.table.find("a", "1")
        add_model(tmp_path, "b")
        add_version(tmp_path, "a", "2")
        await at(15.9)
        assert index(core) == ["a/1 READY"]
        await at(16)
        assert index(core) == ["a/1 READY", "a/2 READY", "b/1 READY"]
        assert core.router.table.find("a", "1") is one
        shutil.rmtree(tmp_path / "b")
        shutil.rmtree(tmp_path / "a" / "2")
        await at(31.9)
        assert index(core) == ["a/1 READY", "a/2 READY", "b/1 READY"]
        await at(32)
        assert index(core) == ["a/1 READY", "a/2 UNAVAILABLE unloaded"]
        assert core.router.ready()
        configure(tmp_path, "a", ALL.replace("size: 8", "size: 64"))
        await at(48)
        assert core.router.table.find("a").config.max_batch_size == 64
        assert core.router.table.find("a", "1") is not one


async def test_a_repository_that_is_a_link_is_followed_where_it_leads_now(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for checkout in ("one", "two"):
        add_model(tmp_path / checkout, "a")
    configure(tmp_path / "two", "a", IDENTITY.replace("size: 8", "size: 64"))
    current, following = tmp_path / "current", tmp_path / "following"
    current.symlink_to("one")
    async with polling(current) as core:
        following.symlink_to("two")
        following.rename(current)
        shutil.rmtree(tmp_path / "one")
        await at(16)
        assert core.router.table.find("a").config.max_batch_size == 64


async def test_a_swap_loses_no_request(autojump_clock: MockClock, tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    async with polling(tmp_path, device_factory=FakeDevices(4.0)) as core:
        await at(14)
        old = ask(core, "a")
        add_version(tmp_path, "a", "2")
        shutil.rmtree(tmp_path / "a" / "1")
        await at(15.5)
        queued = ask(core, "a")
        await at(16)
        new = ask(core, "a")
        assert index(core) == ["a/1 UNLOADING", "a/2 READY"]
        versions = [(await reply.receive()).model_version for reply in (old, new, queued)]
        assert versions == ["1", "2", "1"]
        assert trio.current_time() == 22


async def test_what_still_grows_is_not_loaded(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with polling(tmp_path) as core:
        add_model(tmp_path, "a")
        with (tmp_path / "a" / "1" / "weights").open("wb") as file:
            while trio.current_time() < 19.5:
                file.write(b"more")
                file.flush()
                assert index(core) == []
                await trio.sleep(0.75)
        await at(19.9)
        assert index(core) == []
        await at(20)
        assert index(core) == ["a/1 READY"]


async def test_a_broken_change_keeps_what_serves_and_is_tried_again_once_it_is_mended(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    devices = FakeDevices()
    async with polling(tmp_path, device_factory=devices) as core:
        version = core.router.table.find("a")
        configure(tmp_path, "a", BROKEN)
        await at(16)
        [line] = index(core)
        assert line.startswith("a/1 READY Invalid argument: model 'a'")
        assert core.router.table.find("a") is version
        made = len(devices.made)
        await at(100)
        assert len(devices.made) == made
        assert index(core) == [line]
        configure(tmp_path, "a", BROKEN.replace("size: 8", "size: 4"))
        await at(120)
        assert len(devices.made) == made + 1
        configure(tmp_path, "a")
        await at(140)
        assert index(core) == ["a/1 READY"]  # as it was at the start, so nothing was loaded
        assert core.router.table.find("a") is version
        configure(tmp_path, "a", IDENTITY.replace("size: 8", "size: 4"))
        await at(160)
        assert core.router.table.find("a").config.max_batch_size == 4


async def test_a_model_that_failed_at_the_start_is_loaded_once_it_changes_and_not_before(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", BROKEN)
    add_model(tmp_path, "b", "max_batch_size: oops")
    devices = FakeDevices()
    async with polling(tmp_path, device_factory=devices) as core:
        made = len(devices.made)
        await at(50)
        assert len(devices.made) == made
        assert not core.router.ready()
        configure(tmp_path, "a")
        shutil.rmtree(tmp_path / "b")
        await at(65)
        assert index(core) == ["a/1 READY"]
        assert core.router.ready()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: touch(model / "config.pbtxt"),
        lambda model: (model / "config.pbtxt").write_text(IDENTITY),
        lambda model: (model / ".config.pbtxt.swp").write_text("b0VIM"),
        lambda model: (model / "1" / "weights~").write_text("older"),
        lambda model: (model / "1" / ".weights.tmp").write_text("half"),
        lambda model: os.utime(model / "1"),
    ],
)
async def test_what_only_looks_like_a_change_reloads_nothing(
    autojump_clock: MockClock, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    model = add_model(tmp_path, "a")
    async with polling(tmp_path) as core:
        version = core.router.table.find("a")
        change(model)
        await at(40)
        assert core.router.table.find("a") is version


async def test_a_content_that_changed_while_its_time_did_not_is_loaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    path = add_model(tmp_path, "a") / "config.pbtxt"
    touch(path)
    async with polling(tmp_path) as core:
        before = path.stat()
        with path.open("r+") as file:
            file.write(IDENTITY.replace("size: 8", "size: 4"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        await at(16)
        assert core.router.table.find("a").config.max_batch_size == 4


async def test_a_repository_that_cannot_be_read_changes_nothing_and_is_told_of_once(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, away = (tmp_path / name for name in ("one", "two", "away"))
    add_model(one, "a")
    add_model(two, "b")
    async with polling(one, two) as core:
        one.rename(away)
        shutil.rmtree(two / "b")
        await at(60)
        assert index(core) == ["a/1 READY", "b/1 READY"]
        told = [record for record in caplog.records if "until it can be read" in record.message]
        assert len(told) == 1
        away.rename(one)
        await at(77)
        assert index(core) == ["a/1 READY"]


async def test_a_model_in_two_repositories_keeps_serving_from_the_first_until_it_is_unique(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    add_model(one, "a")
    two.mkdir()
    async with polling(one, two) as core:
        version = core.router.table.find("a")
        add_model(two, "a")
        await at(16)
        assert index(core)[0].startswith("a/1 READY Invalid argument: model 'a' must lie in one")
        shutil.rmtree(two / "a")
        await at(32)
        assert index(core) == ["a/1 READY"]
        assert core.router.table.find("a") is version


async def test_an_ensemble_waits_for_a_model_that_comes_later(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "e", ensemble_of("a"))
    async with polling(tmp_path) as core:
        assert index(core) == ["a/1 READY", "e/1 READY"]
        configure(tmp_path, "e", ensemble_of("b"))
        await at(16)
        assert "needs model 'b'" in index(core)[1]
        assert index(core)[1].startswith("e/1 READY")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        await at(32)
        assert index(core) == ["a/1 READY", "b/1 READY", "e/1 READY"]
        shutil.rmtree(tmp_path / "b")
        await at(48)
        [_, gone] = index(core)
        assert gone.startswith("e/1 UNAVAILABLE unloaded, since it needs model 'b'")
        assert core.router.ready()


async def test_loads_and_unloads_on_request_are_refused(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with polling(tmp_path) as core:
        for ask_for in (core.control.load, core.control.unload):
            with pytest.raises(RequestError, match="needs the explicit model control") as refused:
                await ask_for("a")
            assert refused.value.code is ErrorCode.UNAVAILABLE


async def test_an_interval_of_zero_is_no_polling(autojump_clock: MockClock, tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    async with polling(tmp_path, poll_s=0.0) as core:
        add_model(tmp_path, "b")
        await at(1000)
        assert index(core) == ["a/1 READY"]


async def test_a_stop_ends_a_look_and_a_load_at_once(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = False

    async def in_thread(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        if stuck:
            await trio.sleep_forever()
        return await at_once(job, *args)

    add_model(tmp_path, "a")
    async with polling(tmp_path, run_in_thread=in_thread) as core:
        stuck = True
        await at(100)
        assert [record.message for record in caplog.records] == [
            "a look at the model repositories takes longer than 60 s"
        ]
        await core.stop()
        assert trio.current_time() == 100
    async with running(
        tmp_path, model_control="poll", device_factory=FakeDevices(other_s=50.0)
    ) as core:
        start_s = trio.current_time()
        add_version(tmp_path, "a", "2")
        await at(start_s + 20)
        assert await core.stop()
        assert trio.current_time() - start_s <= 50 + 50


async def test_nothing_is_changed_once_a_stop_has_begun(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with polling(tmp_path, exit_timeout_s=50.0) as core:
        add_model(tmp_path, "b")
        await at(15.5)
        core.begin_shutdown()
        await at(40)
        assert index(core) == ["a/1 READY"]


async def test_the_answers_go_on_while_a_change_is_loaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with polling(tmp_path, poll_s=1.0) as core:
        add_version(tmp_path, "a", "2")
        seen = []
        await trio.sleep(0.125)
        while trio.current_time() < 4:
            seen.append((await answer(core, "a")).model_version)
            await trio.sleep(0.25)
        assert seen == ["1"] * 8 + ["2"] * 8


async def test_the_log_says_which_versions_are_ready_after_a_configuration_was_mended(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tritrio")
    add_model(tmp_path, "a")
    add_model(tmp_path, "b", BROKEN)
    async with polling(tmp_path) as core:
        configure(tmp_path, "a", BROKEN)
        await at(16)
        [failed] = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert failed.startswith("model 'a' failed to load: version 1 is UNAVAILABLE: Invalid")
        assert failed.count("'a'") == 1
        caplog.clear()
        configure(tmp_path, "a")
        configure(tmp_path, "b")
        await at(32)
        assert index(core) == ["a/1 READY", "b/1 READY"]
        assert sorted(caplog.messages) == [
            "model 'a' is loaded, and was before",
            "model b version 1 is READY",
            "models have changed: 'a', 'b'",
        ]
