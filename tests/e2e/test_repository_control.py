"""Models come and go on request: the official clients, curl, and clients that leave."""

from __future__ import annotations

import asyncio  # noqa: TID251 - two of the clients under test are built on it
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException

from tests.support.server_process import ServerProcess, running_server

from .models import SLOW_START, wait_until_exists, write_python_model
from .raw_http import ask, connect, request
from .test_tools import curl

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", i)]) for i in inputs]
"""
DOUBLE = ECHO.replace('Tensor("OUTPUT0", i)', 'Tensor("OUTPUT0", i * 2)')
CONFIG = json.dumps(
    {
        "backend": "python",
        "max_batch_size": 4,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": ["-1"]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": ["-1"]}],
    }
)
LIBRARIES = {
    "http": triton_http,
    "http.aio": triton_http_aio,
    "grpc": triton_grpc,
    "grpc.aio": triton_grpc_aio,
}

Client: TypeAlias = Callable[..., Any]
"""Calls a method of a client library by its name and returns its result."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("control")
    repository = directory / "models"
    repository.mkdir()
    for name in LIBRARIES:
        write_python_model(repository, f"echo {name}", ECHO)
    write_python_model(repository, "slow", SLOW_START, place=directory)
    write_python_model(repository, "curled", ECHO)
    with running_server(repository, directory / "log", "--model-control-mode=explicit") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(library: str, server: ServerProcess) -> Client:
    url = server.http_url if library.startswith("http") else server.grpc_url
    made = LIBRARIES[library].InferenceServerClient

    def call(method: str, *arguments: Any, **options: Any) -> Any:
        with closing(made(url)) as one:
            return getattr(one, method)(*arguments, **options)

    async def call_aio(method: str, *arguments: Any, **options: Any) -> Any:
        async with made(url) as one:
            return await getattr(one, method)(*arguments, **options)

    if library.endswith("aio"):
        return lambda *arguments, **options: asyncio.run(call_aio(*arguments, **options))
    return call


def state(client: Client, name: str) -> str | None:
    """The state of a model in the index; "" if it was never loaded, None if it is not there."""
    index = client("get_model_repository_index")
    if not isinstance(index, list):
        index = [
            {"name": entry.name, "state": entry.state, "reason": entry.reason}
            for entry in index.models
        ]
    states = [str(entry.get("state", "")) for entry in index if entry["name"] == name]
    return states[0] if states else None


def answer(client: Client, library: str, name: str, *values: float) -> list[float]:
    """What a model makes of a batch of one."""
    base = triton_http if library.startswith("http") else triton_grpc
    tensor = base.InferInput("INPUT0", [1, len(values)], "FP32")
    tensor.set_data_from_numpy(np.array([values], np.float32))
    result: np.ndarray[Any, Any] = client("infer", name, [tensor]).as_numpy("OUTPUT0")
    return [float(value) for value in result[0]]


def test_a_client_loads_and_unloads_what_lies_in_the_repository(
    client: Client, library: str
) -> None:
    name = f"echo {library}"
    assert state(client, name) == ""
    assert not client("is_model_ready", name)
    client("load_model", name)
    assert client("is_model_ready", name)
    assert state(client, name) == "READY"
    client("unload_model", name)
    assert not client("is_model_ready", name)
    assert state(client, name) in {"UNLOADING", "UNAVAILABLE"}


def test_a_client_brings_a_configuration(client: Client, library: str) -> None:
    name = f"echo {library}"
    client("load_model", name, config=CONFIG)
    assert answer(client, library, name, 1.5, 2) == [1.5, 2]
    client("load_model", name)
    with pytest.raises(InferenceServerException, match="shape"):
        answer(client, library, name, 1.5, 2)
    client("unload_model", name, unload_dependents=True)
    assert not client("is_model_ready", name)


def test_a_client_brings_a_whole_model(client: Client, library: str) -> None:
    name = f"brought by {library}"
    files = {"file:1/model.py": DOUBLE.encode(), "file:1/weights/all": bytes(range(256)) * 1536}
    client("load_model", name, config=CONFIG, files=files)
    assert answer(client, library, name, 1.5, 2) == [3, 4]
    client("unload_model", name)
    assert not client("is_model_ready", name)


def test_a_client_is_told_why_a_load_failed(client: Client, library: str) -> None:
    with pytest.raises(InferenceServerException, match="'nobody'"):
        client("load_model", "nobody")
    broken = {"file:1/model.py": b"raise ValueError('no weights here')"}
    with pytest.raises(InferenceServerException, match="no weights here"):
        client("load_model", f"broken {library}", config=CONFIG, files=broken)
    with pytest.raises(InferenceServerException, match="max_batch_size"):
        client("load_model", f"echo {library}", config='{"max_batch_size":"many"}')


def test_curl_loads_with_a_configuration_and_unloads(server: ServerProcess, tmp_path: Path) -> None:
    url = f"{server.http_url}/v2/repository"
    (tmp_path / "body").write_text(json.dumps({"parameters": {"config": CONFIG}}))
    assert curl(f"{url}/models/curled/load", "--data-binary", f"@{tmp_path / 'body'}") == b""
    ready = json.loads(curl(f"{url}/index", "-d", '{"ready":true}'))
    assert {"name": "curled", "version": "1", "state": "READY"} in ready
    config = json.loads(curl(f"{server.http_url}/v2/models/curled/config"))
    assert config["max_batch_size"] == 4
    assert curl(f"{url}/models/curled/unload", "-X", "POST") == b""
    refused = ask(server.http_port, "GET", "/v2/models/curled/ready")
    assert refused.status == 400


def test_a_configuration_that_is_no_string_is_refused_with_a_hint(server: ServerProcess) -> None:
    body = b'{"parameters":{"config":{"backend":"python"}}}'
    answer = ask(server.http_port, "POST", "/v2/repository/models/curled/load", body)
    assert answer.status == 400
    assert "write the configuration as JSON text into a string" in answer.error()


def test_a_load_goes_on_when_its_client_leaves(server: ServerProcess) -> None:
    place = server.log_path.parent
    with connect(server.http_port) as connection:
        connection.sendall(request("POST", "/v2/repository/models/slow/load"))
        wait_until_exists(place / "started", server)
    (place / "go").touch()
    # A second load has its turn once the first one has ended, and has nothing to do then.
    (place / "started").unlink()
    assert ask(server.http_port, "POST", "/v2/repository/models/slow/load").status == 200
    assert not (place / "started").exists()
    assert ask(server.http_port, "GET", "/v2/models/slow/ready").status == 200
