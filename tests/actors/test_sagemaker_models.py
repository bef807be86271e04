"""Models that SageMaker loads and unloads: names, directories, faults, and clients that leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.http_client import infer_body, request_bytes
from tests.support.memory_server import MemoryServer, memory_server, write_models
from tests.support.sagemaker import Platform, options, write_archive
from tritrio.actors import repository_control
from tritrio.actors._repository_scan import ScanSettings
from tritrio.actors.model_control import LoadOverride
from tritrio.actors.model_finder import ModelFinder
from tritrio.actors.routing_table import ModelState
from tritrio.actors.sagemaker_models import SagemakerModels
from tritrio.actors.served_models import ServedModels
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.testing.fake_device import at_once

BODY = infer_body([[7, 8]])
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [ {
  model_name: "plain" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" }
} ] }
"""
FAILS = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("CUDA out of memory, as if")

    def execute(self, requests):
        return []
"""


def index(server: MemoryServer) -> dict[str, ModelState | None]:
    return {entry.name: entry.state for entry in server.core.router.table.index()}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models", only=("plain",))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path)


async def test_a_request_to_load_is_short(empty: Path, autojump_clock: MockClock) -> None:
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        answer = await Platform(server).load("x" * 70_000, "/x")
        assert (answer.status, "may have 65536 bytes" in answer.json["error"]) == (400, True)


async def test_a_model_is_loaded_under_the_name_that_the_platform_gives_it(
    empty: Path, archive: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        platform = Platform(server)
        assert (await platform.ask("/models")).json == {"models": []}
        assert (await platform.load("hash", archive)).status == 200
        assert await platform.listed() == {"hash": str(archive)}
        one = await platform.ask("/models/hash")
        assert one.json == {"modelName": "hash", "modelUrl": str(archive)}
        answer = await platform.ask("/models/hash/invoke", BODY)
        assert (answer.json["model_name"], answer.rows) == ("hash", [[7, 8]])
        assert (await platform.ask("/models/hash", method="DELETE")).status == 200
        assert await platform.listed() == {}
        assert (await platform.ask("/models/hash/invoke", BODY)).status == 404
        assert (await platform.ask("/models/hash")).status == 404
        assert (await platform.ask("/models/hash", method="DELETE")).status == 404
        await trio.sleep(1)
        assert index(server) == {}
        assert (await platform.load("hash", archive)).status == 200  # and once more


async def test_a_name_or_a_directory_that_is_known_is_a_conflict(
    plain: Path, archive: Path, tmp_path: Path, autojump_clock: MockClock
) -> None:
    other = write_models(tmp_path / "other", only=("plain",))
    async with memory_server(plain, sagemaker=options(), model_control="explicit") as server:
        platform = Platform(server)
        assert (await platform.load("plain", archive)).status == 409  # in the repository
        assert (await platform.load("x", plain)).status == 409  # the repository itself
        assert (await platform.load("hash", archive)).status == 200
        assert (await platform.load("hash", other)).status == 409
        assert (await platform.load("hash2", f"{archive}/")).status == 409
        assert await platform.listed() == {"hash": str(archive)}


async def test_a_name_that_lies_nowhere_and_serves_is_a_conflict(
    empty: Path, archive: Path, autojump_clock: MockClock
) -> None:
    config = '{"backend":"identity","input":[],"output":[]}'
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        await server.core.control.load("hash", LoadOverride(config, {"1/x": b""}))
        assert (await Platform(server).load("hash", archive)).status == 409


def test_a_name_is_registered_once(tmp_path: Path) -> None:
    models = ServedModels(publish=lambda _: None, withdraw=lambda _: None)
    finder = ModelFinder(
        repositories=[], settings=ScanSettings(), run_in_thread=at_once, models=models
    )
    finder.register(tmp_path / "a", {"m": tmp_path / "a" / "m"})
    with pytest.raises(RequestError, match="the model 'm' is registered already"):
        finder.register(tmp_path / "b", {"m": tmp_path / "b" / "m"})
    finder.unregister(tmp_path / "a")
    finder.register(tmp_path / "b", {"m": tmp_path / "b" / "m"})


async def test_of_two_loads_of_one_name_at_a_time_one_wins(
    empty: Path, archive: Path, tmp_path: Path, autojump_clock: MockClock
) -> None:
    other = write_models(tmp_path / "other", only=("plain",))
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        first, second = Platform(server), Platform(server)
        answers: list[int] = []

        async def load(platform: Platform, place: Path) -> None:
            answers.append((await platform.load("hash", place)).status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, first, archive)
            nursery.start_soon(load, second, other)
        assert sorted(answers) == [200, 409]
        assert len(await first.listed()) == 1


async def test_an_ensemble_comes_and_goes_with_its_models(
    empty: Path, archive: Path, autojump_clock: MockClock
) -> None:
    (archive / "top" / "1").mkdir(parents=True)
    (archive / "top" / "config.pbtxt").write_text(ENSEMBLE)
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        platform = Platform(server)
        assert (await platform.load("hash", archive)).status == 200
        assert index(server) == {"hash": ModelState.READY, "plain": ModelState.READY}
        answer = await platform.ask("/models/hash/invoke", BODY)
        assert (answer.json["model_name"], answer.rows) == ("hash", [[7, 8]])
        target = "X-Amzn-SageMaker-Target-Model: plain"
        answer = await platform.ask("/models/hash/invoke", BODY, target)
        assert answer.json["model_name"] == "plain"
        assert (await platform.ask("/models/hash", method="DELETE")).status == 200
        await trio.sleep(1)
        assert index(server) == {}


async def test_an_unload_is_answered_once_the_last_request_and_the_model_have_ended(
    empty: Path, archive: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(
        empty, seconds={"hash": 2.0}, sagemaker=options(), model_control="explicit"
    ) as server:
        busy, platform = Platform(server), Platform(server)
        await platform.load("hash", archive)
        start_s = trio.current_time()
        busy.client.send(request_bytes("/models/hash/invoke", BODY))
        await wait_all_tasks_blocked()
        gone = await platform.ask("/models/hash", method="DELETE")
        assert (gone.status, gone.at_s - start_s) == (200, 2.0)
        assert (await busy.client.response()).rows == [[7, 8]]


async def test_an_unload_that_is_not_even_begun_changes_nothing(
    empty: Path, archive: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        platform = Platform(server)
        await platform.load("hash", archive)
        with monkeypatch.context() as full:
            full.setattr(repository_control, "OPERATIONS_MAX", 0)
            refused = await platform.ask("/models/hash", method="DELETE")
            assert (refused.status, "wait already" in refused.json["error"]) == (503, True)
            other = write_archive(empty)
            assert (await platform.load("other", other)).status == 400
        assert await platform.listed() == {"hash": str(archive)}
        assert (await platform.ask("/models/hash/invoke", BODY)).rows == [[7, 8]]
        assert (await platform.load("other", other)).status == 200  # nothing was left of it
        assert (await platform.ask("/models/hash", method="DELETE")).status == 200


async def test_of_a_load_that_fails_nothing_is_left(
    empty: Path, tmp_path: Path, autojump_clock: MockClock
) -> None:
    broken = tmp_path / "broken"
    (broken / "m" / "1").mkdir(parents=True)
    (broken / "m" / "config.pbtxt").write_text('backend: "python"')
    (broken / "m" / "1" / "model.py").write_text(FAILS)
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        platform = Platform(server)
        answer = await platform.load("hash", broken)
        assert (answer.status, "CUDA out of memory" in answer.json["error"]) == (507, True)
        assert await platform.listed() == {}
        await trio.sleep(1)
        assert index(server) == {}
        assert (await platform.ask("/ping")).status == 200


@pytest.mark.parametrize(
    ("name", "url", "fact"),
    [
        ("a", "/no/such", "No such file or directory"),
        ("a", "relative", "an absolute path"),
        ("a", "{empty}", "found none"),
        ("a", "{link}", "outside /dev, /proc, /sys"),
        ("a", "{inner}", "outside /dev, /proc, /sys"),
        ("a", "{two}", "found ['batched', 'plain']"),
        ("../a", "{one}", "a model name without directories"),
        ("a/b", "{one}", "a model name without directories"),
        (" ", "{one}", "got an empty one"),
    ],
)
@pytest.mark.usefixtures("autojump_clock")
async def test_what_cannot_be_loaded_is_refused_and_says_why(
    name: str, url: str, fact: str, empty: Path, tmp_path: Path
) -> None:
    places = {
        "empty": empty / "none",
        "link": tmp_path / "link",
        "inner": tmp_path / "inner",
        "two": write_models(tmp_path / "two", only=("plain", "batched")),
        "one": write_models(tmp_path / "one", only=("plain",)),
    }
    places["empty"].mkdir()
    places["link"].symlink_to("/dev/shm")
    places["inner"].mkdir()
    (places["inner"] / "m").symlink_to("/proc/self")
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        platform = Platform(server)
        answer = await platform.load(name, url.format(**places))
        assert (answer.status, fact in answer.json["error"]) == (400, True), answer.json
        assert await platform.listed() == {}


async def test_models_come_and_go_under_explicit_control_only(
    plain: Path, archive: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(plain, sagemaker=options()) as server:
        answer = await Platform(server).load("hash", archive)
        assert (answer.status, "explicit" in answer.json["error"]) == (400, True)


async def test_failures_of_inferences_have_the_statuses_that_the_platform_knows(
    empty: Path, archive: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(empty, sagemaker=options(), model_control="explicit") as server:
        platform = Platform(server)
        await platform.load("hash", archive)
        target = "X-Amzn-SageMaker-Target-Model: unknown"
        assert (await platform.ask("/models/hash/invoke", BODY, target)).status == 400
        await server.core.control.unload("hash")  # behind the platform's back
        gone = await platform.ask("/models/hash/invoke", BODY)
        assert (gone.status, "no version" in gone.json["error"]) == (400, True)
        assert (await platform.ask("/models/hash", method="DELETE")).status == 200


async def test_a_load_goes_on_when_whoever_asked_leaves(
    empty: Path, archive: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(empty, model_control="explicit") as server:
        core = server.core
        models = SagemakerModels(core.registers, core.run_in_thread)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(models.load, "hash", str(archive))
            while index(server).get("hash") is None:
                await trio.lowlevel.checkpoint()
            assert models.loaded == {}
            nursery.cancel_scope.cancel()
        with pytest.raises(RequestError) as caught:
            await models.load("hash", str(archive))
        assert caught.value.code is ErrorCode.ALREADY_EXISTS
        await trio.sleep(1)
        assert models.loaded == {"hash": str(archive)}
        assert index(server) == {"hash": ModelState.READY}
