"""The SageMaker endpoint of the whole server: one model, its pings and its invocations."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from trio.testing import MockClock

from tests.support.http_client import infer_body, request_bytes
from tests.support.memory_server import memory_server, write_models
from tests.support.sagemaker import Platform, options, write_archive

BINARY = "application/vnd.sagemaker-triton.binary+json"
BODY = infer_body([[7, 8]])


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models", only=("plain",))


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
    plain: Path, tmp_path: Path, autojump_clock: MockClock
) -> None:
    archive = write_archive(tmp_path)
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
