"""Models of one name in several repositories, and the ensembles that use them."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_core import running
from tests.actors.test_ensemble_loading import ensemble_of
from tests.actors.test_polling import at, polling
from tests.support.controlling import IDENTITY, add_model, answer, ask, configure, controlled, index
from tests.support.fake_device import FakeDevices
from tritrio.actors.core import Core
from tritrio.actors.model_control import LoadOverride
from tritrio.protocol.errors import ErrorCode, RequestError

CONFIG_JSON = json.dumps(
    {
        "backend": "identity",
        "max_batch_size": 4,
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    }
)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Three repositories: the model `m` lies in two of them, an ensemble `e…` of it in each."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    add_model(one, "m")
    add_model(two, "m")
    add_model(one, "e1", ensemble_of("m"))
    add_model(two, "e2", ensemble_of("m"))
    add_model(three, "e3", ensemble_of("m"))
    return one, two, three


def refusal_of(core: Core, name: str) -> RequestError:
    with pytest.raises(RequestError) as refused:
        core.router.table.find(name)
    return refused.value


def executed(core: Core) -> dict[tuple[str, str], int]:
    """Return how many requests each model has answered, by namespace and name."""
    return {
        (Path(version.namespace).name, version.name): version.statistics.success.count
        for version in core.router.table.ready_versions()
    }


# A server that loads all models at its start.


async def test_requests_need_a_name_that_one_model_has(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    add_model(places[0], "only")
    async with running(*places, namespaces=True) as core:
        refused = refusal_of(core, "m")
        assert refused.code is ErrorCode.INVALID_ARG
        assert refused.message == (
            "expected a name that one model has, got 'm', which 2 models have; only a namespace "
            "tells them apart, and requests name none"
        )
        for version in ("", "1"):
            with pytest.raises(RequestError, match="which 2 models have"):
                core.router.table.statistics_of("m", version)
        assert core.router.table.versions_ready("m") == []
        assert (await answer(core, "only")).error is None
        assert [entry.name for entry in core.router.table.index()] == [
            *("e1", "m", "only"),
            "e3",
            *("e2", "m"),
        ]


async def test_an_ensemble_uses_the_model_of_its_own_namespace(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, _, _ = places
    async with running(*places, namespaces=True) as core:
        for name, count in (("e1", 1), ("e2", 2)):
            for _ in range(count):
                assert (await answer(core, name)).error is None
        assert executed(core) == {
            ("one", "m"): 1,
            ("one", "e1"): 1,
            ("two", "m"): 2,
            ("two", "e2"): 2,
        }
        scheduling = core.router.table.find("e1").config.ensemble_scheduling
        assert scheduling is not None
        assert scheduling.step[0].model_namespace == str(one)


async def test_an_ensemble_elsewhere_uses_the_only_model_of_a_name_and_none_of_several(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, _, three = places
    async with running(*places, namespaces=True) as core:
        [line] = [line for line in index(core) if line.startswith("e3")]
        assert line.startswith(
            "e3/- UNAVAILABLE Invalid argument: ensemble 'e3' needs model 'm': expected a name "
            "that one model has, got 'm', which 2 models have"
        )
    async with running(one, three, namespaces=True) as core:
        assert (await answer(core, "e3")).error is None
        assert executed(core)["one", "m"] == 1


async def test_an_ensemble_finds_an_ensemble_of_its_own_namespace(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, two, _ = places
    for place, inner in ((one, "e1"), (two, "e2")):
        add_model(place, "inner", ensemble_of(inner))
        add_model(place, f"a_{place.name}", ensemble_of("inner"))
    async with running(one, two, namespaces=True) as core:
        assert (await answer(core, "a_two")).error is None
        assert executed(core)["two", "m"] == 1
        assert executed(core)["one", "m"] == 0


async def test_an_ensemble_is_decoupled_as_the_model_of_its_own_namespace(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, two, _ = places
    configure(one, "m", IDENTITY + "model_transaction_policy { decoupled: true }")
    async with running(one, two, namespaces=True) as core:
        assert core.router.table.find("e1").spec.decoupled
        assert not core.router.table.find("e2").spec.decoupled


async def test_versions_say_their_namespace_and_the_log_names_models_with_it(
    autojump_clock: MockClock, places: tuple[Path, ...], caplog: pytest.LogCaptureFixture
) -> None:
    one, two, _ = places
    caplog.set_level(logging.INFO)
    async with running(one, two, namespaces=True) as core:
        shown = {(version.namespace, version.name) for version in core.router.measured_models()}
        assert shown == {(str(one), "m"), (str(one), "e1"), (str(two), "m"), (str(two), "e2")}
    assert f"model {one}::m version 1 is READY" in caplog.messages


async def test_without_namespaces_a_name_in_two_repositories_is_refused(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    async with running(*places) as core:
        [line] = [line for line in index(core) if line.startswith("m/")]
        assert line.startswith(
            "m/- UNAVAILABLE Invalid argument: model 'm' must lie in one repository only, found "
        )
        assert core.router.measured_models() == []


# Models that are loaded and unloaded on request.


async def test_a_load_and_an_unload_are_of_all_models_of_a_name(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    async with controlled(*places, namespaces=True) as core:
        assert refusal_of(core, "m").code is ErrorCode.NOT_FOUND
        await core.control.load("m")
        assert executed(core) == {("one", "m"): 0, ("two", "m"): 0}
        assert refusal_of(core, "m").code is ErrorCode.INVALID_ARG
        await core.control.load("e1")
        await core.control.unload("m")
        await wait_all_tasks_blocked()
        assert executed(core) == {}
        assert refusal_of(core, "m").code is ErrorCode.NOT_FOUND
        await core.control.load("m")
        assert executed(core) == {("one", "m"): 0, ("two", "m"): 0, ("one", "e1"): 0}


async def test_a_load_that_fails_in_one_namespace_says_so_and_the_other_serves(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    _, two, _ = places
    configure(two, "m", "max_batch_size: oops")
    async with controlled(*places, namespaces=True) as core:
        with pytest.raises(RequestError, match="oops"):
            await core.control.load("m")
        assert executed(core) == {("one", "m"): 0}
        assert refusal_of(core, "m").code is ErrorCode.INVALID_ARG  # or the wrong one answered


async def test_what_an_ensemble_needs_is_loaded_with_it(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    async with controlled(*places, namespaces=True) as core:
        with pytest.raises(RequestError, match="which 2 models have"):
            await core.control.load("e3")
        await core.control.load("e2")
        assert (await answer(core, "e2")).error is None
        assert executed(core)["two", "m"] == 1


async def test_an_ensemble_waits_for_a_new_one_of_its_own_namespace(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, two, _ = places
    add_model(two, "inner")
    async with controlled(one, two, namespaces=True, startup_models=("inner",)) as core:
        add_model(one, "inner", ensemble_of("m"))
        add_model(one, "a_outer", ensemble_of("inner"))
        await core.control.load("a_outer")
        scheduling = core.router.table.find("a_outer").config.ensemble_scheduling
        assert scheduling is not None
        assert scheduling.step[0].model_namespace == str(one)


async def test_a_model_elsewhere_that_is_ready_is_not_loaded_again_for_an_ensemble(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, _, three = places
    async with controlled(one, three, namespaces=True, startup_models=("m",)) as core:
        version = core.router.table.find("m")
        configure(one, "m")
        await core.control.load("e3")
        assert core.router.table.find("m") is version


async def test_models_of_a_name_that_was_asked_for_stay_when_an_ensemble_goes(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    async with controlled(*places, namespaces=True, startup_models=("m", "e1")) as core:
        await core.control.unload("e1", unload_dependents=True)
        await wait_all_tasks_blocked()
        assert executed(core) == {("one", "m"): 0, ("two", "m"): 0}


async def test_a_model_that_lies_in_its_repository_no_more_is_forgotten_beside_another(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, two, _ = places
    async with controlled(one, two, namespaces=True, startup_models=("m",)) as core:
        shutil.rmtree(two / "m")
        await core.control.unload("m")
        await wait_all_tasks_blocked()
        assert index(core) == ["e1/- UNKNOWN", "m/1 UNAVAILABLE unloaded", "e2/- UNKNOWN"]


async def test_files_replace_the_only_model_of_a_name_and_none_of_several(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, two, three = places
    brought = LoadOverride(CONFIG_JSON, {"1/weights": b"some"})
    async with controlled(one, two, namespaces=True) as core:
        with pytest.raises(RequestError, match="which 2 models have") as refused:
            await core.control.load("m", brought)
        assert refused.value.code is ErrorCode.INVALID_ARG
    async with controlled(one, three, namespaces=True) as core:
        await core.control.load("m")
        await core.control.load("m", brought)
        assert executed(core) == {("one", "m"): 0}
        assert core.router.table.find("m").config.max_batch_size == 4


async def test_what_files_brought_goes_once_a_repository_has_a_model_of_the_name(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, _, three = places
    async with controlled(three, namespaces=True) as core:
        await core.control.load("m", LoadOverride(CONFIG_JSON, {"1/weights": b"some"}))
        assert executed(core) == {("", "m"): 0}
        shutil.copytree(one / "m", three / "m")
        await core.control.load("m")
        await wait_all_tasks_blocked()
        assert executed(core) == {("three", "m"): 0}
        assert core.router.table.find("m").config.max_batch_size == 8


async def test_the_start_loads_all_models_of_a_name_and_the_index_looks_for_others(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    _, two, three = places
    async with controlled(*places, namespaces=True, startup_models=("m", "e3", "no")) as core:
        add_model(three, "m")
        shutil.rmtree(two / "e2")
        lines = [
            (Path(entry.key).parent.name, entry.name, entry.state.value)
            for entry in await core.index.entries()
        ]
        assert lines == [
            ("one", "e1", "UNKNOWN"),
            ("one", "m", "READY"),
            ("three", "e3", "UNAVAILABLE"),
            ("three", "m", "UNKNOWN"),
            ("two", "m", "READY"),
            ("", "no", "UNAVAILABLE"),
        ]
        add_model(three, "no")
        await core.control.load("no")
        assert core.router.table.find("no").namespace == str(three)


async def test_a_repository_that_is_given_twice_is_one_namespace(
    autojump_clock: MockClock, tmp_path: Path, places: tuple[Path, ...]
) -> None:
    one, two, _ = places
    link = tmp_path / "link"
    link.symlink_to(one)
    async with controlled(link, two, one, namespaces=True, startup_models=("e1",)) as core:
        entries = await core.index.entries()
        assert [entry.key for entry in entries] == [
            f"{link}/e1",
            f"{link}/m",
            f"{two}/e2",
            f"{two}/m",
        ]
        assert core.router.table.find("e1").namespace == str(link)


async def test_the_steps_of_an_ensemble_that_ends_find_the_model_that_ends_with_it(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    configure(places[0], "e1", ensemble_of("m", "m"))
    devices = FakeDevices(2.0)
    async with controlled(*places, namespaces=True, device_factory=devices) as core:
        await core.control.load("e1")
        start_s = trio.current_time()
        reply = ask(core, "e1")
        await trio.sleep(1)
        await core.control.unload("m")
        assert (await reply.receive()).error is None
        assert trio.current_time() - start_s == 4


# A server that follows its repositories.


async def test_a_second_model_of_a_name_comes_and_goes_while_the_server_runs(
    autojump_clock: MockClock, places: tuple[Path, ...]
) -> None:
    one, two, three = places
    shutil.rmtree(two / "m")
    shutil.rmtree(two / "e2")
    async with polling(one, two, three, namespaces=True) as core:
        first = core.router.table.find("m")
        assert (await answer(core, "e3")).error is None
        shutil.copytree(one / "m", two / "m")
        await at(16)
        assert refusal_of(core, "m").code is ErrorCode.INVALID_ARG
        assert "which 2 models have" in next(line for line in index(core) if "e3" in line)
        assert (await answer(core, "e1")).error is None
        shutil.rmtree(two / "m")
        await at(32)
        assert core.router.table.find("m") is first
        assert (await answer(core, "e3")).error is None
        configure(one, "m", IDENTITY.replace("size: 8", "size: 64"))
        await at(48)
        assert core.router.table.find("m").config.max_batch_size == 64
        assert (await answer(core, "e1")).error is None
        assert trio.current_time() == 48


async def test_an_ensemble_that_could_not_be_changed_is_tried_again_once_its_model_has_come(
    autojump_clock: MockClock, places: tuple[Path, ...], caplog: pytest.LogCaptureFixture
) -> None:
    one, _, three = places
    async with polling(one, three, namespaces=True) as core:
        configure(three, "e3", ensemble_of("x"))
        await at(16)
        [line] = [line for line in index(core) if line.startswith("e3")]
        assert line.startswith("e3/1 READY Invalid argument: ensemble 'e3' needs model 'x'")
        assert f"model '{three}::e3': ensemble 'e3' needs model 'x'" in caplog.text
        shutil.copytree(one / "m", one / "x")
        await at(32)
        assert (await answer(core, "e3")).error is None
        assert executed(core)["one", "x"] == 1
