"""The SageMaker endpoint of the whole server: one model, or many that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.http_client import HttpClient, Response, infer_body, request_bytes
from tests.support.memory_server import MemoryServer, memory_server, write_models
from tritrio.actors.routing_table import ModelState
from tritrio.actors.sagemaker_models import SagemakerModels
from tritrio.options import SagemakerOptions
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.sagemaker import SagemakerSettings

BINARY = "application/vnd.sagemaker-triton.binary+json"
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


class Platform:
    """What stands between the endpoint and its clients."""

    def __init__(self, server: MemoryServer) -> None:
        self.client: HttpClient = server.http(frontend=server.parts.sagemaker)

    async def ask(
        self, path: str, body: bytes | None = None, *headers: str, method: str = ""
    ) -> Response:
        self.client.send(request_bytes(path, body, headers=headers, method=method))
        return await self.client.response()

    async def load(self, name: str, url: Path | str) -> Response:
        return await self.ask("/models", orjson.dumps({"model_name": name, "url": str(url)}))

    async def listed(self) -> dict[str, str]:
        models = (await self.ask("/models")).json["models"]
        return {model["modelName"]: model["modelUrl"] for model in models}


def options(**settings: Any) -> SagemakerOptions:
    return SagemakerOptions(settings=SagemakerSettings(**settings))


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
    """A directory as the platform unpacks it, whose model has a name of its own."""
    archive = write_models(tmp_path / "archive", only=("plain",))
    config = archive / "plain" / "config.pbtxt"
    config.write_text('name: "plain"\n' + config.read_text())
    return archive


# One model.


async def test_invocations_are_inferences_of_the_model_that_the_platform_names(
    plain: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(plain, sagemaker=options(default_model="plain")) as server:
        platform = Platform(server)
        assert (await platform.ask("/ping")).status == 200
        answer = await platform.ask("/invocations", BODY)
        assert (answer.status, answer.rows) == (200, [[7, 8]])
        assert server.counts("plain") == (1, 0, 0)
        refused = await platform.ask("/invocations", b"{}")
        assert refused.status == 400


async def test_content_types_measure_the_json_part_both_ways(
    plain: Path, autojump_clock: MockClock
) -> None:
    parameters = {"binary_data_size": 8}
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "parameters": parameters}
    head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    sized = f"Content-Type: {BINARY};json-header-size={len(head)}"
    async with memory_server(plain, sagemaker=options(default_model="plain")) as server:
        platform = Platform(server)
        answer = await platform.ask("/invocations", head + b"AAAABBBB", sized)
        kind, _, size = answer.headers["content-type"].partition(";json-header-size=")
        assert (kind, answer.body[int(size) :]) == (BINARY, b"AAAABBBB")
        assert "inference-header-content-length" not in answer.headers


async def test_a_large_answer_has_the_same_content_type(
    plain: Path, autojump_clock: MockClock
) -> None:
    head = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[7,8]}],'
    body = head + b'"parameters":{"binary_data_output":true}}' + b" " * 300_000
    async with memory_server(plain, sagemaker=options(default_model="plain")) as server:
        answer = await Platform(server).ask("/invocations", body)  # decoded on a thread
        assert answer.headers["content-type"].startswith(BINARY + ";json-header-size=")


async def test_a_ping_asks_whether_the_server_is_ready_or_alive(
    plain: Path, autojump_clock: MockClock
) -> None:
    (plain / "broken" / "1").mkdir(parents=True)
    (plain / "broken" / "config.pbtxt").write_text('backend: "nope"')
    for mode, status in (("ready", 400), ("live", 200)):
        async with memory_server(plain, sagemaker=options(ping_mode=mode)) as server:
            assert (await Platform(server).ask("/ping")).status == status


async def test_invocations_can_be_generate_calls(plain: Path, autojump_clock: MockClock) -> None:
    body = b'{"INPUT0":[7,8]}'
    settings = options(default_model="plain", inference_type="generate")
    async with memory_server(plain, sagemaker=settings) as server:
        answer = await Platform(server).ask("/invocations", body)
        assert answer.json["OUTPUT0"] == [7, 8]
    settings = options(default_model="plain", inference_type="generate_stream")
    async with memory_server(plain, sagemaker=settings) as server:
        client = Platform(server).client
        client.send(request_bytes("/invocations", body))
        assert (await client.head()).headers["content-type"].startswith("text/event-stream")
        assert (await client.chunk()).startswith(b"data: ")
        assert await client.chunk() == b""


async def test_invocations_without_a_model_say_what_names_it(
    plain: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(plain, sagemaker=options()) as server:
        answer = await Platform(server).ask("/invocations", BODY)
        assert answer.status == 404
        assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" in answer.json["error"]


async def test_the_paths_of_the_v2_protocol_mean_nothing_here(
    plain: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(plain, sagemaker=options(default_model="plain")) as server:
        platform = Platform(server)
        assert (await platform.ask("/v2/models/plain/infer", BODY)).status == 400
        assert (await platform.ask("/ping", b"")).status == 405
        assert (await platform.ask("/models/%zz")).status == 400
        assert server.counts("plain") == (0, 0, 0)


async def test_restrictions_and_the_limit_of_input_hold_here_too(
    plain: Path, archive: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(
        plain,
        sagemaker=options(default_model="plain"),
        model_control="explicit",
        startup_models=("plain",),
        http_restricted_apis=("inference,model-repository:k=v",),
        http_input_bytes_max=1000,
    ) as server:
        platform = Platform(server)
        assert (await platform.ask("/ping")).status == 200
        assert (await platform.ask("/invocations", BODY)).status == 403
        assert (await platform.ask("/invocations", BODY, "K: v")).status == 200
        assert (await platform.ask("/models")).status == 403
        assert (await platform.load("a", archive)).status == 403
        assert (await platform.ask("/models/a", method="DELETE")).status == 403
        body = orjson.dumps({"model_name": "a", "url": str(archive)})
        assert (await platform.ask("/models", body, "K: v")).status == 200
        assert (await platform.ask("/models/a/invoke", BODY)).status == 403
        assert (await platform.ask("/models/none/invoke", BODY)).status == 403
        assert (await platform.ask("/models/a/invoke", BODY, "K: v")).status == 200
        large = await platform.ask("/models", body + b" " * 1000, "K: v")
        assert (large.status, "--http-max-input-size" in large.json["error"]) == (400, True)


# Many models.


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
        "two": write_models(tmp_path / "two", only=("plain", "batched")),
        "one": write_models(tmp_path / "one", only=("plain",)),
    }
    places["empty"].mkdir()
    places["link"].symlink_to("/dev/shm")
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
