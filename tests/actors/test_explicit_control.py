"""Models that are loaded and unloaded on request: states, errors, and what stays as it is."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_core import running
from tests.support.controlling import (
    IDENTITY,
    add_model,
    add_version,
    answer,
    ask,
    configure,
    controlled,
    index,
    touch,
)
from tests.support.fake_device import FakeDevices
from tritrio.actors._device_link import Device
from tritrio.backends.base import InstancePlace
from tritrio.protocol.errors import ErrorCode, RequestError

ALL = "version_policy { all {} }" + IDENTITY
INSTANCES = "instance_group [ { kind: KIND_CPU count: 2 } ]"
BROKEN = IDENTITY.replace("OUTPUT0", "OUT")


async def test_nothing_is_loaded_before_it_is_asked_for(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path, "b", BROKEN)
    async with controlled(tmp_path) as core:
        assert index(core) == ["a/- UNKNOWN", "b/- UNKNOWN"]
        assert core.router.ready()
        await core.control.load("a")
        assert index(core) == ["a/1 READY", "b/- UNKNOWN"]
        assert (await answer(core, "a")).error is None
        await core.control.unload("a")
        await wait_all_tasks_blocked()
        assert index(core) == ["a/1 UNAVAILABLE unloaded", "b/- UNKNOWN"]
        assert core.router.ready()
        assert core.router.measured_models() == []


async def test_some_models_are_loaded_at_the_start(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        add_model(tmp_path, name)
    async with controlled(tmp_path, startup_models=("c", "a", "c")) as core:
        assert index(core) == ["a/1 READY", "b/- UNKNOWN", "c/1 READY"]
    async with controlled(tmp_path, startup_models=("*",)) as core:
        assert index(core) == ["a/1 READY", "b/1 READY", "c/1 READY"]


async def test_a_model_that_is_to_be_loaded_at_the_start_and_lies_nowhere_is_a_failure(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path, startup_models=("a", "b", "../a")) as core:
        missing = (
            "cannot be loaded: expected a directory of that name in a model repository, found it "
            "in none of 1"
        )
        assert index(core) == [
            f"../a/- UNAVAILABLE Internal: model '../a' {missing}",
            "a/1 READY",
            f"b/- UNAVAILABLE Internal: model 'b' {missing}",
        ]
        assert not core.router.ready()


async def test_without_explicit_control_loads_and_unloads_are_refused(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with running(tmp_path) as core:
        for ask_for in (core.control.load, core.control.unload):
            with pytest.raises(RequestError, match="needs the explicit model control") as refused:
                await ask_for("a")
            assert refused.value.code is ErrorCode.UNAVAILABLE
        assert index(core) == ["a/1 READY"]


@pytest.mark.parametrize(
    "name", ["", " ", "\t", "..", ".", " ..", "../x", "a/b", "a\\b", "x/", "a\0", "x" * 256]
)
async def test_names_that_are_none_are_refused_and_nothing_is_looked_for(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    add_model(tmp_path, "a")
    add_model(tmp_path / "inner", "b")
    async with controlled(tmp_path / "inner", tmp_path) as core:
        with pytest.raises(RequestError) as refused:
            await core.control.load(name)
        assert refused.value.code is ErrorCode.INVALID_ARG
        await core.control.unload(name)  # no error


@pytest.mark.parametrize("name", ["...", "..m", "m..1", "x" * 255, "model.version1"])
async def test_odd_names_are_names(autojump_clock: MockClock, tmp_path: Path, name: str) -> None:
    async with controlled(tmp_path) as core:
        with pytest.raises(RequestError, match="found it in none of") as missing:
            await core.control.load(name)
        assert missing.value.code is ErrorCode.INTERNAL
        assert index(core) == []
        await core.control.unload(name)
        add_model(tmp_path, name)
        await core.control.load(name)
        assert index(core) == [f"{name}/1 READY"]


async def test_a_load_without_a_change_does_nothing(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", ALL, ("1", "2"))
    async with controlled(tmp_path) as core:
        await core.control.load("a")
        before = [core.router.table.find("a", version) for version in ("1", "2")]
        await answer(core, "a")
        await core.control.load("a")
        assert [core.router.table.find("a", version) for version in ("1", "2")] == before
        touch(tmp_path / "a" / "config.pbtxt")
        await core.control.load("a")
        after = [core.router.table.find("a", version) for version in ("1", "2")]
        assert not set(before) & set(after)
        assert [version.statistics.success.count for version in after] == [0, 0]
        assert core.router.measured_models() == after


async def test_versions_whose_files_did_not_change_stay_loaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", ALL, ("1", "2"))
    async with controlled(tmp_path) as core:
        await core.control.load("a")
        one, two = (core.router.table.find("a", version) for version in ("1", "2"))
        add_version(tmp_path, "a", "3")
        await core.control.load("a")
        assert core.router.table.versions_ready("a") == ["1", "2", "3"]
        add_version(tmp_path, "a", "2")
        shutil.rmtree(tmp_path / "a" / "3")
        await core.control.load("a")
        await wait_all_tasks_blocked()
        assert index(core) == ["a/1 READY", "a/2 READY", "a/3 UNAVAILABLE unloaded"]
        assert core.router.table.find("a", "1") is one
        assert core.router.table.find("a", "2") is not two


async def test_a_newer_version_takes_the_place_of_the_latest(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path) as core:
        await core.control.load("a")
        add_version(tmp_path, "a", "2")
        await core.control.load("a")
        await wait_all_tasks_blocked()
        assert index(core) == ["a/1 UNAVAILABLE unloaded", "a/2 READY"]
        assert core.router.ready()
        shutil.rmtree(tmp_path / "a" / "2")
        await core.control.load("a")
        await wait_all_tasks_blocked()
        assert index(core) == ["a/1 READY", "a/2 UNAVAILABLE unloaded"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BROKEN, "model 'a' failed to load: version 1 is UNAVAILABLE: Invalid argument: an id"),
        ("max_batch_size: oops", "config.pbtxt:1:"),
        ("version_policy { specific { versions: [ 7 ] } }" + IDENTITY, "version_policy selects"),
    ],
)
async def test_a_load_that_fails_keeps_what_serves_and_says_why(
    autojump_clock: MockClock, tmp_path: Path, config: str, words: str
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path) as core:
        await core.control.load("a")
        version = core.router.table.find("a")
        configure(tmp_path, "a", config)
        for _ in range(2):
            with pytest.raises(RequestError) as failed:
                await core.control.load("a")
            assert failed.value.code is ErrorCode.INVALID_ARG
            assert words in failed.value.message
            assert core.router.table.find("a") is version
            [line] = index(core)
            assert line.startswith("a/1 READY Invalid argument: ")
            assert core.router.ready()
        assert (await answer(core, "a")).error is None
        configure(tmp_path, "a")
        await core.control.load("a")
        assert index(core) == ["a/1 READY"]
        assert core.router.table.find("a") is not version


async def test_a_first_load_that_fails_counts_for_readiness_until_the_model_is_unloaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a", BROKEN)
    add_model(tmp_path, "b", "max_batch_size: oops")
    async with controlled(tmp_path) as core:
        for name in ("a", "b"):
            with pytest.raises(RequestError):
                await core.control.load(name)
            assert not core.router.ready()
            await core.control.unload(name)
            await wait_all_tasks_blocked()
            assert core.router.ready()
        assert index(core) == ["a/1 UNAVAILABLE unloaded", "b/- UNAVAILABLE unloaded"]


async def test_a_model_in_two_repositories_is_not_loaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path / "one", "a")
    (tmp_path / "two").mkdir()
    async with controlled(tmp_path / "one", tmp_path / "two") as core:
        await core.control.load("a")
        add_model(tmp_path / "two", "a")
        with pytest.raises(RequestError, match="must lie in one repository only") as refused:
            await core.control.load("a")
        assert refused.value.code is ErrorCode.INTERNAL
        assert index(core)[0].startswith("a/1 READY Invalid argument: model 'a' must lie in one")
        await core.control.unload("a")
        with pytest.raises(RequestError, match="must lie in one repository only"):
            await core.control.load("a")
        assert index(core)[0].startswith("a/- UNAVAILABLE Invalid argument: model 'a' must lie")


async def test_a_model_that_lies_nowhere_any_more_is_forgotten_once_it_is_unloaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path) as core:
        await core.control.load("a")
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(RequestError, match="found it in none of"):
            await core.control.load("a")
        assert index(core) == ["a/1 READY"]
        await core.control.unload("a")
        await wait_all_tasks_blocked()
        assert index(core) == []
        add_model(tmp_path, "a")
        await core.control.load("a")
        assert index(core) == ["a/1 READY"]


async def test_an_unload_returns_at_once_and_finishes_what_is_queued(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path, device_factory=FakeDevices(5.0)) as core:
        await core.control.load("a")
        replies = [ask(core, "a") for _ in range(3)]
        start_s = trio.current_time()
        await core.control.unload("a")
        assert trio.current_time() == start_s
        assert index(core) == ["a/1 UNLOADING"]
        assert core.router.ready()
        with pytest.raises(RequestError, match="model 'a' version 1 is not ready"):
            ask(core, "a", "1")
        assert [(await reply.receive()).error for reply in replies] == [None] * 3
        await wait_all_tasks_blocked()
        assert index(core) == ["a/1 UNAVAILABLE unloaded"]


async def test_a_model_is_loaded_again_while_it_still_drains(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path, device_factory=FakeDevices(50.0)) as core:
        await core.control.load("a")
        old = ask(core, "a")
        await core.control.unload("a")
        await core.control.load("a")
        assert index(core) == ["a/1 READY"]
        new = ask(core, "a")
        assert (await old.receive()).error is None
        await wait_all_tasks_blocked()
        assert index(core) == ["a/1 READY"]
        assert (await new.receive()).error is None


async def test_a_first_load_is_shown_and_a_reload_is_not(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path, device_factory=FakeDevices(other_s=2.0)) as core:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.control.load, "a")
            await trio.sleep(1)
            assert index(core) == ["a/1 LOADING"]
            assert not core.router.ready()
            assert core.router.live()
        configure(tmp_path, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.control.load, "a")
            await trio.sleep(1)
            assert index(core) == ["a/1 READY"]
            assert core.router.ready()


async def test_a_named_configuration_goes_before_the_plain_one(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        add_model(tmp_path, name)
    (tmp_path / "a" / "configs").mkdir()
    (tmp_path / "a" / "configs" / "big.pbtxt").write_text(IDENTITY.replace("size: 8", "size: 64"))
    async with controlled(tmp_path, config_name="big", startup_models=("*",)) as core:
        sizes = [core.router.table.find(name).config.max_batch_size for name in ("a", "b")]
        assert sizes == [64, 8]
        (tmp_path / "a" / "configs" / "big.pbtxt").write_text("max_batch_size: oops")
        with pytest.raises(RequestError, match=r"configs/big\.pbtxt:1:"):
            await core.control.load("a")


@pytest.mark.parametrize("more", [False, True])
async def test_a_change_that_is_taken_back_leaves_the_versions_and_no_reason(
    autojump_clock: MockClock, tmp_path: Path, more: bool
) -> None:
    directory = add_model(tmp_path, "a", ALL)
    async with controlled(tmp_path, startup_models=("a",)) as core:
        version = core.router.table.find("a")
        config, kept = directory / "config.pbtxt", tmp_path / "kept"
        config.rename(kept)
        configure(tmp_path, "a", "max_batch_size: oops")
        with pytest.raises(RequestError, match="oops"):
            await core.control.load("a")
        assert "oops" in index(core)[0]
        kept.rename(config)
        if more:
            add_version(tmp_path, "a", "2")
        await core.control.load("a")
        assert index(core) == ["a/1 READY", "a/2 READY"][: 1 + more]
        assert core.router.table.find("a", "1") is version


async def test_the_log_says_what_became_of_a_version_that_another_one_was_to_replace(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tritrio")
    add_model(tmp_path, "a", ALL)

    async def said_of(load: Callable[[str], Awaitable[None]]) -> list[str]:
        caplog.clear()
        with suppress(RequestError):
            await load("a")
        await wait_all_tasks_blocked()
        return [record.getMessage() for record in caplog.records]

    async with controlled(tmp_path, startup_models=("a",)) as core:
        configure(tmp_path, "a", ALL.replace("size: 8", "size: 4"))
        assert await said_of(core.control.load) == [
            "model a version 1 is READY",
            "model 'a' is loaded",
            "model a version 1 is unloaded as it was before, since a later load has replaced it",
        ]
        configure(tmp_path, "a", ALL.replace("size: 8", "size: 4") + INSTANCES)
        assert await said_of(core.control.load) == [
            "model a version 1 is READY with other instances",
            "model 'a' is loaded",
        ]
        assert await said_of(core.control.load) == ["model 'a' is loaded, and was before"]
        assert await said_of(core.control.unload) == ["model a version 1 is unloaded"]


async def test_a_good_version_that_goes_with_one_that_failed_says_so_in_the_log(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tritrio")
    add_model(tmp_path, "a", ALL)
    devices = FakeDevices()

    def make(place: InstancePlace) -> Device:
        if len(devices.made) == 2:  # the second one of the second load
            raise RequestError(ErrorCode.INTERNAL, "there is no room")
        return devices(place)

    async with controlled(tmp_path, startup_models=("a",), device_factory=make) as core:
        add_version(tmp_path, "a", "1")
        add_version(tmp_path, "a", "2")
        with pytest.raises(RequestError, match=r"to load: version \d is UNAVAILABLE: [^;]*;\n$"):
            await core.control.load("a")
        await wait_all_tasks_blocked()
        ended = [text.partition(" is ")[2] for text in caplog.messages if "unloaded" in text]
        assert ended == [
            "unloaded again, since its model failed to load; what served before goes on"
        ]
        assert (await answer(core, "a")).error is None
