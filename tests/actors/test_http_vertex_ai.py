"""The Vertex AI endpoint of the whole server."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from trio.testing import MockClock

from tests.support.http_client import HttpClient, Response, infer_body, request_bytes
from tests.support.memory_server import MemoryServer, memory_server, write_models
from tritrio.listening import StartError
from tritrio.options import VertexAiOptions

OPTIONS = VertexAiOptions(predict_route="/predict", health_route="/health")
BINARY = "application/vnd.vertex-ai-triton.binary+json"
BODY = infer_body([[7, 8]])


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models", only=("plain",))


class Platform:
    """What stands between the endpoint and its clients."""

    def __init__(self, server: MemoryServer) -> None:
        self.client: HttpClient = server.http(frontend=server.parts.vertex_ai)

    async def ask(
        self,
        path: str,
        body: bytes | None = None,
        *headers: str,
        redirect: str = "",
        method: str = "",
    ) -> Response:
        lines = [*headers, *([f"X-Vertex-Ai-Triton-Redirect: {redirect}"] if redirect else [])]
        self.client.send(request_bytes(path, body, headers=lines, method=method))
        return await self.client.response()

    async def predict(self, body: bytes, *headers: str, redirect: str = "") -> Response:
        return await self.ask("/predict", body, *headers, redirect=redirect)


async def test_predictions_are_inferences_of_the_only_model(
    plain: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(plain, vertex_ai=OPTIONS) as server:
        platform = Platform(server)
        assert (await platform.ask("/health")).status == 200
        answer = await platform.predict(BODY)
        assert answer.status == 200
        assert answer.rows == [[7, 8]]
        assert server.counts("plain") == (1, 0, 0)


async def test_binary_tensors_come_behind_a_json_part_that_the_content_type_measures(
    plain: Path, autojump_clock: MockClock
) -> None:
    parameters = {"binary_data_size": 8}
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 2], "parameters": parameters}
    head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    async with memory_server(plain, vertex_ai=OPTIONS) as server:
        platform = Platform(server)
        sized = f"Content-Type: {BINARY};json-header-size={len(head)}"
        answer = await platform.predict(head + b"AAAABBBB", sized)
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/octet-stream"
        json_bytes = int(answer.headers["inference-header-content-length"])
        assert answer.body[json_bytes:] == b"AAAABBBB"
        raw = f"Content-Type: {BINARY};json-header-size=0"
        assert (await platform.predict(b"AAAABBBB", raw)).body.endswith(b"AAAABBBB")
        # The header of the v2 protocol means nothing here.
        ignored = f"Inference-Header-Content-Length: {len(head)}"
        assert (await platform.predict(head + b"AAAABBBB", ignored)).status == 400
        wrong = await platform.predict(b"AAAA", f"Content-Type: {BINARY};json-header-size=x")
        assert wrong.status == 400
        assert "json-header-size" in wrong.json["error"]
        assert (await platform.predict(BODY)).status == 200  # the connection goes on


async def test_other_calls_are_had_by_redirection(plain: Path, autojump_clock: MockClock) -> None:
    async with memory_server(plain, vertex_ai=OPTIONS) as server:
        platform = Platform(server)
        ready = await platform.predict(b"", redirect="v2/models/plain/ready")
        assert (ready.status, ready.body) == (200, b"")
        metadata = await platform.predict(b"", redirect="v2/models/plain")
        assert metadata.json["name"] == "plain"
        inference = await platform.predict(BODY, redirect="v2/models/plain/versions/1/infer")
        assert inference.rows == [[7, 8]]
        metrics = await platform.predict(b"", redirect="metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        line = b'nv_inference_request_success{model="plain",version="1"} 1.0'
        assert line in metrics.body.splitlines()


async def test_what_is_no_call_is_refused_and_says_why(
    plain: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(plain, vertex_ai=OPTIONS) as server:
        platform = Platform(server)
        load = await platform.predict(b"", redirect="v2/repository/models/plain/load")
        assert load.status == 403
        nothing = await platform.predict(b"", redirect="v2/nothing")
        assert (nothing.status, "'v2/nothing'" in nothing.json["error"]) == (400, True)
        other = await platform.ask("/v2/models/plain/infer", BODY)
        assert (other.status, "'/v2/models/plain/infer'" in other.json["error"]) == (400, True)
        assert (await platform.ask("/predict")).status == 405


async def test_restrictions_and_the_limit_of_input_hold_here_too(
    plain: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(
        plain,
        vertex_ai=OPTIONS,
        http_restricted_apis=("inference,statistics:k=v",),
        http_input_bytes_max=len(BODY),
    ) as server:
        platform = Platform(server)
        assert (await platform.predict(BODY)).status == 403
        assert (await platform.predict(BODY, "K: v")).status == 200
        assert (await platform.predict(b"", redirect="v2/models/stats")).status == 403
        assert (await platform.predict(b"", "K: v", redirect="v2/models/stats")).status == 200
        assert (await platform.ask("/health")).status == 200
        length = f"Content-Length: {len(BODY) + 1}"
        platform.client.send(request_bytes("/predict", None, headers=["K: v", length]))
        large = await platform.client.response()  # before the body
        assert (large.status, "--http-max-input-size" in large.json["error"]) == (400, True)


@pytest.mark.parametrize(
    ("default_model", "fact"),
    [
        ("", "exactly one model is ready; there are 4"),
        ("nope", "--vertex-ai-default-model names 'nope'"),
    ],
)
async def test_the_model_of_predictions_has_to_be_known_at_the_start(
    default_model: str, fact: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    models = write_models(tmp_path / "models")
    options = VertexAiOptions(
        predict_route="/predict", health_route="/health", default_model=default_model
    )
    with pytest.RaisesGroup(pytest.RaisesExc(StartError, match=fact)):
        async with memory_server(models, vertex_ai=options):
            pass


async def test_one_of_several_models_is_named(tmp_path: Path, autojump_clock: MockClock) -> None:
    models = write_models(tmp_path / "models")
    options = VertexAiOptions(predict_route="/p", health_route="/h", default_model="batched")
    async with memory_server(models, vertex_ai=options) as server:
        assert (await Platform(server).ask("/p", BODY)).json["model_name"] == "batched"
