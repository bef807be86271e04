"""Keys, forwarded headers and compressed answers with the clients that people use."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.support.server_process import ServerProcess, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HOST = "127.0.0.1"
LIMIT_S = 20.0
GRPC_KEY = {"triton-grpc-protocol-key": "secret"}
FLAGS = [
    "--http-restricted-api=inference,model-repository:Key=secret",
    "--grpc-restricted-protocol=inference,model-repository:Key=secret",
    "--http-header-forward-pattern=^x_",
    "--grpc-header-forward-pattern=^x_",
    "--grpc-infer-response-compression-level=high",
]
CONFIG = """
backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "FACTS" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers with the parameters of the request, COUNT times."""

    def execute(self, requests):
        answers = []
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]
            texts = np.array([request.parameters() or "{}"] * count, object)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("FACTS", texts)]))
        return answers
'''


@pytest.fixture(scope="module", params=["tritrio", "hypercorn"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp(request.param)
    (directory / "models" / "facts" / "1").mkdir(parents=True)
    (directory / "models" / "facts" / "config.pbtxt").write_text(CONFIG)
    (directory / "models" / "facts" / "1" / "model.py").write_text(MODEL)
    flags = [*FLAGS, f"--http-server={request.param}"]
    with running_server(directory / "models", directory / "log", *flags) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def inputs(module: Any, count: int = 1) -> list[Any]:
    tensor = module.InferInput("COUNT", [1], "INT32")
    tensor.set_data_from_numpy(np.array([count], np.int32))
    return [tensor]


def facts(result: Any) -> Any:
    return json.loads(result.as_numpy("FACTS")[0])


def test_http_clients_need_the_key_and_their_headers_keep_their_case(
    server: ServerProcess,
) -> None:
    with tritonclient.http.InferenceServerClient(f"{HOST}:{server.http_port}") as client:
        assert client.is_server_ready()
        given = inputs(tritonclient.http)
        with pytest.raises(InferenceServerException, match="'key'") as caught:
            client.infer("facts", given)
        assert caught.value.status() == "403"
        with pytest.raises(InferenceServerException, match="'key'"):
            client.get_model_repository_index()
        headers = {"kEy": "secret", "X_User": "Ann", "Other": "1"}
        assert facts(client.infer("facts", given, headers=headers)) == {"X_User": "Ann"}
        assert client.get_model_repository_index(headers=headers)[0]["name"] == "facts"


def test_grpc_clients_need_the_key(server: ServerProcess) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        assert client.is_server_ready()
        given = inputs(tritonclient.grpc)
        with pytest.raises(InferenceServerException, match="'triton-grpc-protocol-key'") as caught:
            client.infer("facts", given)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        headers = {**GRPC_KEY, "x_user": "Ann"}
        assert facts(client.infer("facts", given, headers=headers)) == {"x_user": "Ann"}


def test_each_request_of_a_stream_gets_its_headers(server: ServerProcess) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        client.start_stream(
            lambda result, error: answers.put((result, error)),
            headers={"x_user": "Ann", **GRPC_KEY},
        )
        for _ in range(2):
            client.async_stream_infer("facts", inputs(tritonclient.grpc))
        for _ in range(2):
            result, error = answers.get(timeout=LIMIT_S)
            assert error is None
            assert facts(result) == {"x_user": "Ann"}
        client.stop_stream()


def test_a_stream_without_the_key_ends_at_once(server: ServerProcess) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        _, error = answers.get(timeout=LIMIT_S)
        assert "'triton-grpc-protocol-key'" in str(error)
        client.stop_stream()


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("count", [1, 100_000])
def test_grpc_clients_read_compressed_answers(
    server: ServerProcess, algorithm: str | None, count: int
) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        result = client.infer(
            "facts",
            inputs(tritonclient.grpc, count),
            headers={**GRPC_KEY, "x_user": "Ann"},
            compression_algorithm=algorithm,
        )
    assert list(result.as_numpy("FACTS")) == [b'{"x_user": "Ann"}'] * count


def test_a_client_without_codings_reads_plain_answers(server: ServerProcess) -> None:
    options = [("grpc.compression_enabled_algorithms_bitset", 1)]  # identity
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}", options) as channel:
        request = tritonclient.grpc.service_pb2.ModelInferRequest(model_name="facts")
        tensor = request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
        tensor.contents.int_contents.append(1000)
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        data = method(request.SerializeToString(), metadata=list(GRPC_KEY.items()), timeout=LIMIT_S)
    assert len(data) > 2000


def test_curl_shows_the_key_in_a_header(server: ServerProcess) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    url = f"http://{HOST}:{server.http_port}/v2/repository/index"
    command = [curl, "--silent", "--max-time", "20", "--request", "POST", url]
    refused = subprocess.run(command, check=True, capture_output=True)
    assert list(json.loads(refused.stdout)) == ["error"]
    allowed = subprocess.run([*command, "-H", "Key: secret"], check=True, capture_output=True)
    assert json.loads(allowed.stdout)[0]["name"] == "facts"


def test_a_faulty_flag_ends_the_start_with_a_sentence_about_it(tmp_path: Path) -> None:
    flag = "--http-restricted-api=helth:key=value"
    (tmp_path / "models").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tritrio", "--model-repository", str(tmp_path / "models"), flag],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert flag.partition("=")[0] in last
    assert "Traceback" not in done.stderr
