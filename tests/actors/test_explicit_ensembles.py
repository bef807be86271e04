"""Ensembles and the models they use, when any of them is loaded or unloaded on request."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_ensemble_loading import ensemble_of
from tests.support.controlling import (
    IDENTITY,
    add_model,
    answer,
    ask,
    configure,
    controlled,
    index,
)
from tests.support.fake_device import FakeDevices
from tritrio.protocol.errors import RequestError


def add_models(repository: Path) -> None:
    """Write models `a` and `b`, the ensemble `e` of both, and `o` of that ensemble."""
    for name in ("a", "b"):
        add_model(repository, name)
    add_model(repository, "e", ensemble_of("a", "b"))
    add_model(repository, "o", ensemble_of("e"))


def ready(lines: list[str]) -> str:
    return " ".join(line.split("/")[0] for line in lines if line.endswith("READY"))


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What was logged at one level."""
    return [record.getMessage() for record in caplog.records if record.levelno == level]


async def test_the_models_that_an_ensemble_needs_are_loaded_with_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    add_model(tmp_path, "other")
    async with controlled(tmp_path) as core:
        await core.control.load("o")
        assert ready(index(core)) == "a b e o"
        assert (await answer(core, "o")).error is None


async def test_loaded_models_are_not_loaded_again_for_an_ensemble(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("a",)) as core:
        version = core.router.table.find("a")
        configure(tmp_path, "a")
        await core.control.load("e")
        assert core.router.table.find("a") is version


@pytest.mark.parametrize(
    ("name", "with_needed", "left"),
    [
        ("o", False, "a b e"),
        ("o", True, "a"),  # nobody asked for b and e
        ("e", False, "a b"),
        ("b", False, "a"),
        ("b", True, "a"),
    ],
)
async def test_who_goes_with_a_model_that_is_unloaded(
    autojump_clock: MockClock, tmp_path: Path, name: str, with_needed: bool, left: str
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("a", "o")) as core:
        assert ready(index(core)) == "a b e o"
        await core.control.unload(name, unload_dependents=with_needed)
        await wait_all_tasks_blocked()
        assert ready(index(core)) == left
        assert {line.split(" ", 1)[1].partition(",")[0] for line in index(core)} == {
            "READY",
            "UNAVAILABLE unloaded",
        }
        assert core.router.ready()


async def test_an_ensemble_that_goes_with_a_model_names_it_until_it_is_unloaded_itself(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("o",)) as core:
        await core.control.unload("b")
        await wait_all_tasks_blocked()
        gone = "unloaded, since it needs model '{}', which is not loaded any more"
        assert index(core) == [
            "a/1 READY",
            "b/1 UNAVAILABLE unloaded",
            f"e/1 UNAVAILABLE {gone.format('b')}",
            f"o/1 UNAVAILABLE {gone.format('e')}",
        ]
        assert core.router.ready()
        assert [version.name for version in core.router.measured_models()] == ["a"]
        assert lines(caplog, logging.WARNING) == [
            f"ensemble 'e' is {gone.format('b')}",
            f"ensemble 'o' is {gone.format('e')}",
        ]
        await core.control.unload("e")
        assert index(core)[2] == "e/1 UNAVAILABLE unloaded"


async def test_a_model_that_another_ensemble_needs_stays(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    add_model(tmp_path, "second", ensemble_of("b"))
    async with controlled(tmp_path, startup_models=("e", "second")) as core:
        await core.control.unload("e", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert ready(index(core)) == "b second"


async def test_a_model_that_is_asked_for_after_all_is_not_implicit_any_more(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("e",)) as core:
        await core.control.load("b")
        await core.control.unload("e", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert ready(index(core)) == "b"


async def test_ensembles_come_back_with_the_model_that_they_need(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("o",)) as core:
        await core.control.unload("a")
        await wait_all_tasks_blocked()
        assert ready(index(core)) == "b"
        await core.control.load("a")
        assert ready(index(core)) == "a b e o"
        assert (await answer(core, "o")).error is None
        await core.control.unload("e")
        await core.control.unload("a")
        await core.control.load("a")
        assert ready(index(core)) == "a b"


async def test_an_ensemble_goes_on_with_a_model_that_was_loaded_anew(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    devices = FakeDevices(2.0)
    async with controlled(tmp_path, startup_models=("e",), device_factory=devices) as core:
        running = ask(core, "e")
        await trio.sleep(1)
        old = core.router.table.find("b")
        configure(tmp_path, "b")
        await core.control.load("b")
        assert (await running.receive()).error is None
        assert old.statistics.success.count == 0
        assert core.router.table.find("b").statistics.success.count == 1
        assert (await answer(core, "e")).error is None


async def test_an_ensemble_that_does_not_fit_a_new_model_any_more_is_unavailable_until_it_does(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("o",)) as core:
        configure(tmp_path, "b", IDENTITY.replace("TYPE_INT32", "TYPE_FP32"))
        gone = "unloaded, since its models have changed: Invalid argument: "
        await core.control.load("b")
        _, _, failed, needing, drained = index(core)
        assert failed.startswith(f"e/1 UNAVAILABLE {gone}tensor 't1' has data type INT32")
        assert needing.startswith(f"o/- UNAVAILABLE {gone}ensemble 'o' needs model 'e', which ")
        assert "tensor 't1' has data type INT32" in needing
        assert drained == "o/1 UNLOADING"
        assert core.router.ready()
        inner, outer = lines(caplog, logging.ERROR)
        assert inner.startswith(
            "model 'e' failed to load: version 1 is UNAVAILABLE: Invalid argument: tensor 't1' has "
        )
        assert inner.endswith("(model 'b')")
        assert outer.startswith("ensemble 'o' needs model 'e', which has no loaded version: ")
        configure(tmp_path, "b", IDENTITY.replace("TYPE_INT32", "TYPE_FP32") + "# as before")
        await core.control.load("b")
        assert index(core)[2] == failed
        assert core.router.ready()
        configure(tmp_path, "b")
        await core.control.load("b")
        assert ready(index(core)) == "a b e o"
        assert (await answer(core, "o")).error is None


async def test_an_ensemble_ends_before_the_models_that_it_uses(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("o",), device_factory=FakeDevices(2.0)) as core:
        replies = [ask(core, "o"), ask(core, "e")]
        await trio.sleep(1)
        await core.control.unload("b")
        assert {line.split()[0]: line.split()[1] for line in index(core)} == {
            "a/1": "READY",
            "b/1": "UNLOADING",
            "e/1": "UNLOADING",
            "o/1": "UNLOADING",
        }
        assert [(await reply.receive()).error for reply in replies] == [None, None]


async def test_an_ensemble_whose_model_fails_to_load_says_so(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    configure(tmp_path, "b", IDENTITY.replace("OUTPUT0", "OUT"))
    async with controlled(tmp_path) as core:
        with pytest.raises(RequestError, match="needs model 'b', which has no loaded version: Inv"):
            await core.control.load("e")
        assert ready(index(core)) == "a"
        configure(tmp_path, "b")
        await core.control.load("b")
        assert ready(index(core)) == "a b e"


@pytest.mark.parametrize("name", ["../../etc", "missing"])
async def test_an_ensemble_of_a_model_that_lies_nowhere_is_refused(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    add_model(tmp_path, "e", ensemble_of(name))
    async with controlled(tmp_path) as core:
        with pytest.raises(RequestError, match="there is no such model"):
            await core.control.load("e")


async def test_a_model_cannot_become_an_ensemble_of_those_that_need_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_models(tmp_path)
    async with controlled(tmp_path, startup_models=("e",)) as core:
        configure(tmp_path, "a", ensemble_of("e"))
        with pytest.raises(RequestError, match="uses itself"):
            await core.control.load("a")
        assert ready([line for line in index(core) if "READY" in line][1:2]) == "b"
        assert (await answer(core, "e")).error is None
