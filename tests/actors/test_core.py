"""Repositories on disk, from scan to shutdown, with the devices faked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.builders import infer_request
from tests.support.fake_device import FakeDevices
from tritrio.actors._model_preparation import PreparationSettings
from tritrio.actors._model_services import ModelServices
from tritrio.actors._repository_scan import scan_repository
from tritrio.actors.core import Core, CoreOptions, run_core
from tritrio.actors.messages import Infer
from tritrio.actors.reply import Reply
from tritrio.actors.repository import Repository, RepositorySettings
from tritrio.actors.router import Router
from tritrio.actors.routing_table import ModelState
from tritrio.actors.served_models import ServedModels
from tritrio.protocol.errors import ErrorCode, RequestError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

IDENTITY = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


async def at_once(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
    """Runs scans on the loop: a virtual clock sees no threads."""
    await trio.lowlevel.checkpoint()
    return job(*args)


def add_model(
    repository: Path, name: str, config: str | None = IDENTITY, versions: tuple[str, ...] = ("1",)
) -> Path:
    directory = repository / name
    directory.mkdir(parents=True)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    for version in versions:
        (directory / version).mkdir()
    return directory


@asynccontextmanager
async def running(*repositories: Path, **options: Any) -> AsyncIterator[Core]:
    options.setdefault("device_factory", FakeDevices())
    options.setdefault("run_in_thread", at_once)
    async with trio.open_nursery() as nursery:
        core = await nursery.start(run_core, CoreOptions(repositories=repositories, **options))
        yield core
        await core.stop()


def states(core: Core) -> dict[str, ModelState]:
    return {
        f"{entry.name}/{entry.version}" if entry.version else entry.name: entry.state
        for entry in core.router.table.index()
    }


def reasons(core: Core) -> dict[str, str]:
    return {entry.name: entry.reason for entry in core.router.table.index() if entry.reason}


def submit(core: Core, name: str) -> Reply:
    request = infer_request(7)
    reply = Reply(request)
    core.router.table.find(name).submit(Infer(request, reply, trio.current_time()))
    return reply


async def test_every_model_is_ready_after_the_start(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "one")
    add_model(tmp_path, "two", "version_policy { all {} }" + IDENTITY, ("0", "3", "12"))
    (tmp_path / "README").write_text("files are ignored")
    async with running(tmp_path) as core:
        assert core.router.ready()
        assert states(core) == dict.fromkeys(
            ["one/1", "two/0", "two/3", "two/12"], ModelState.READY
        )
        response = await submit(core, "two").receive()
        assert response.error is None
        assert response.model_version == "12"
        assert response.outputs[0].array.tolist() == [[7, 7, 7, 7]]


async def test_a_failing_model_takes_no_other_down(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "good")
    add_model(tmp_path, "typo", "max_batch_size: oops")
    add_model(tmp_path, "other_name", 'name: "another"' + IDENTITY)
    add_model(tmp_path, "no_backend", "")
    add_model(tmp_path, "unknown_backend", 'backend: "abacus"')
    add_model(tmp_path, "no_version", IDENTITY, ())
    add_model(tmp_path, "not_selected", "version_policy { specific { versions: [4] } }" + IDENTITY)
    add_model(tmp_path, "no_dims", IDENTITY.replace("dims: [ -1 ]", ""))
    add_model(tmp_path, "bad_pair", IDENTITY.replace("OUTPUT0", "OUT"))
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    async with running(tmp_path) as core:
        found = states(core)
        assert found.pop("good/1") is ModelState.READY
        assert set(found.values()) == {ModelState.UNAVAILABLE}
        assert len(found) == 9
        why = reasons(core)
        assert "config.pbtxt:1:" in why["typo"]
        assert "abacus" in why["unknown_backend"]
        assert why["no_version"] == (
            "Invalid argument: model 'no_version' has no version directory, such as "
            f"'{tmp_path / 'no_version' / '1'}'"
        )
        assert "version_policy" in why["not_selected"]
        assert "OUT" in why["bad_pair"]
        assert "nowhere" in why["nowhere"]
        assert all(
            name in reason
            for name, reason in why.items()
            if name not in {"typo", "unknown_backend"}
        )
        assert not core.router.ready()
        assert (await submit(core, "good").receive()).error is None


async def test_a_crash_of_one_models_actors_takes_no_other_down(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "crashing")
    add_model(tmp_path, "other")
    async with running(tmp_path) as core:
        request = infer_request(0, rows=100)  # the frontends' checks refuse such a request
        reply = Reply(request)
        waiting = submit(core, "crashing")
        version = core.router.table.find("crashing")
        version.submit(Infer(request, reply, trio.current_time()))
        assert (await reply.receive()).error is not None
        await waiting.receive()
        await wait_all_tasks_blocked()
        assert states(core)["crashing/1"] is ModelState.UNAVAILABLE
        assert "AssertionError" in reasons(core)["crashing"]
        assert version.statistics.pending_count == 0
        assert (await submit(core, "other").receive()).error is None


async def test_a_name_in_two_repositories_is_not_loaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for repository in ("a", "b"):
        add_model(tmp_path / repository, "twice")
    add_model(tmp_path / "b", "once")
    async with running(tmp_path / "a", tmp_path / "b", tmp_path / "b") as core:
        assert states(core) == {"twice": ModelState.UNAVAILABLE, "once/1": ModelState.READY}
        assert str(tmp_path / "a" / "twice") in reasons(core)["twice"]


async def test_without_auto_completion_a_configuration_is_needed(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "bare", None)
    async with running(tmp_path, auto_complete_config=False) as core:
        assert "config.pbtxt" in reasons(core)["bare"]


async def test_a_repository_that_cannot_be_read_is_an_error(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        options = CoreOptions(repositories=(tmp_path / "missing",), run_in_thread=at_once)
        with pytest.raises(RequestError, match="missing"):
            await nursery.start(run_core, options)


async def test_only_canonical_numbers_are_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = ("01", "-1", "1_backup", "1 ", "9" * 29, ".ipynb_checkpoints", "latest")
    directory = add_model(tmp_path, "model", IDENTITY, ("0", "7", *odd))
    for name in ("configs", "warmup", "initial_state"):
        (directory / name).mkdir()
    (directory / "8").write_text("a file")
    (directory / "9").symlink_to(directory / "7")
    (directory / "7" / "model.bin").write_text("")
    [files] = scan_repository(tmp_path)
    assert files.versions == {0: (), 7: ("model.bin",), 9: ("model.bin",)}
    assert len(caplog.records) == len(odd) + 1
    assert "8' is ignored: a version must be a directory" in caplog.text


async def test_a_shutdown_refuses_new_requests_and_finishes_old_ones(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "model")
    async with trio.open_nursery() as nursery:
        options = CoreOptions(
            repositories=(tmp_path,),
            device_factory=FakeDevices(2.0),
            run_in_thread=at_once,
            exit_timeout_s=30,
        )
        core = await nursery.start(run_core, options)
        reply = submit(core, "model")
        await wait_all_tasks_blocked()
        start_s = trio.current_time()
        core.begin_shutdown()
        with pytest.raises(RequestError, match="exiting") as refused:
            submit(core, "model")
        assert refused.value.code is ErrorCode.UNAVAILABLE
        assert not core.router.ready()
        assert await core.stop()
        assert trio.current_time() - start_s == 2.0
        assert (await reply.receive()).error is None
        assert states(core) == {"model/1": ModelState.UNAVAILABLE}


async def test_the_exit_timeout_runs_from_the_begin_of_the_shutdown(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "model")
    async with trio.open_nursery() as nursery:
        options = CoreOptions(
            repositories=(tmp_path,),
            device_factory=FakeDevices(100.0),
            run_in_thread=at_once,
            exit_timeout_s=8,
        )
        core = await nursery.start(run_core, options)
        reply = submit(core, "model")
        await wait_all_tasks_blocked()
        start_s = trio.current_time()
        core.begin_shutdown()
        await trio.sleep(6)
        assert not await core.stop()
        assert trio.current_time() - start_s == 9.0  # patience for the hanging job included
        assert (await reply.receive()).error is not None


async def test_a_core_runs_on_real_threads(tmp_path: Path) -> None:
    add_model(tmp_path, "model", IDENTITY + "instance_group [ { count: 2 kind: KIND_CPU } ]")
    async with trio.open_nursery() as nursery:
        core = await nursery.start(run_core, CoreOptions(repositories=(tmp_path,)))
        for _ in range(20):
            response = await submit(core, "model").receive()
            assert response.outputs[0].array.tolist() == [[7, 7, 7, 7]]
        assert core.router.table.find("model").statistics.success.count == 20
        assert await core.stop()


async def test_versions_instances_and_models_load_side_by_side(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    config = "instance_group [ { count: 3 kind: KIND_CPU } ] version_policy { all {} }" + IDENTITY
    add_model(tmp_path, "one", config, ("1", "2"))
    add_model(tmp_path, "two", config)
    start_s = trio.current_time()
    async with running(tmp_path, device_factory=FakeDevices(other_s=2.0)) as core:
        assert trio.current_time() - start_s == 2.0
        assert core.router.ready()
        assert [shown.load_duration_s for shown in core.router.measured_models()] == [2.0] * 3


async def test_models_are_in_the_index_while_they_load(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """What a table looks like is taken from a publication in the middle of a load."""
    add_model(tmp_path, "model")
    router = Router()
    settings = RepositorySettings(
        repositories=(tmp_path,),
        preparation=PreparationSettings(),
        run_in_thread=at_once,
        services=ModelServices(device_factory=FakeDevices(other_s=2.0)),
    )
    models = ServedModels(publish=router.apply, withdraw=router.withdraw)
    repository = Repository(settings, models=models)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repository.run)
        await trio.sleep(1)
        [entry] = router.table.index()
        assert (entry.version, entry.state) == ("1", ModelState.LOADING)
        with pytest.raises(RequestError, match="not ready"):
            router.table.find("model", "1")
        await trio.sleep(2)
        assert router.table.find("model", "1").state is ModelState.READY
        await repository.stop(trio.current_time() + 1)
