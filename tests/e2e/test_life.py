"""A server process from its start to its exit."""

from __future__ import annotations

import queue
import re
import signal
import socket
import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.support.server_process import HOST, ServerProcess, running_server, start_server

from .models import BROKEN, GATE, SLOW_START, copy_example, write_python_model
from .raw_http import ask, connect, exchange, infer_body, is_closed, receive, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HTTP_SERVERS = ["tritrio", "hypercorn"]
RSS_MAX_BYTES = 150 * 1024**2
EXIT_SLACK_S = 10.0
"""What a busy machine may add to an exit timeout; a hang is longer than this."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path


@pytest.fixture
def gate(tmp_path: Path, repository: Path) -> Path:
    """A directory: the model `gate` has `started` there, and answers once there is `go`."""
    place = tmp_path / "gate"
    place.mkdir()
    write_python_model(repository, "gate", GATE, place=place)
    return place


def wait_until_exists(path: Path, server: ServerProcess) -> None:
    for _ in range(1500):
        if path.exists():
            return
        if server.has_ended(0.02):
            break
    pytest.fail(f"{path.name} never came:\n{server.log()}")


def infer_request(model: str, values: list[float], shape: list[int] | None = None) -> bytes:
    return request("POST", f"/v2/models/{model}/infer", infer_body(values, shape))


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except OSError:
        return True
    return False


# Start.


def test_start_log_says_what_is_served_and_where(repository: Path, tmp_path: Path) -> None:
    copy_example(repository, "identity")
    with running_server(repository, tmp_path / "log") as server:
        assert "model identity version 1 is READY" in server.log()
        for name, port in (
            ("HTTP", server.http_port),
            ("gRPC", server.grpc_port),
            ("metrics", server.metrics_port),
        ):
            assert f"{name} is served on {HOST}:{port}\n" in server.log()
        assert ask(server.http_port, "GET", "/v2/health/ready").status == 200
        assert server.rss_bytes() < RSS_MAX_BYTES
        assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_what_is_switched_off_is_neither_served_nor_announced(
    repository: Path, tmp_path: Path
) -> None:
    flags = ["--allow-grpc=false", "--allow-metrics=false"]
    with running_server(repository, tmp_path / "log", *flags) as server:
        assert "gRPC" not in server.log()
        assert "metrics" not in server.log()
        assert ask(server.http_port, "GET", "/v2/health/ready").status == 200
        assert server.stop() == 0


def test_empty_repository_is_served_and_ready(repository: Path, tmp_path: Path) -> None:
    with running_server(repository, tmp_path / "log") as server:
        assert ask(server.http_port, "GET", "/v2/health/ready").status == 200
        assert ask(server.http_port, "POST", "/v2/repository/index").json() == []


def failed_start(tmp_path: Path, repository: Path, *flags: str) -> str:
    """The last line of a start that must fail with exit code 1 and without a traceback."""
    server = start_server(repository, tmp_path / "log", *flags)
    assert server.wait() == 1
    assert "Traceback" not in server.log()
    return server.log().splitlines()[-1]


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("--http-port=abc", ["--http-port", "65535", "'abc'"]),
        ("--grpc-port=65536", ["--grpc-port", "65535", "'65536'"]),
        ("--exit-on-error=maybe", ["--exit-on-error", "true or false", "'maybe'"]),
        ("--exit-timeout-secs=-1", ["--exit-timeout-secs", "seconds", "'-1'"]),
        ("--http-max-input-size=0", ["--http-max-input-size", "above 0", "'0'"]),
        ("--http-server=nginx", ["--http-server", "nginx", "hypercorn"]),
        ("--backend-config=python", ["--backend-config", "<setting>=<value>", "'python'"]),
        ("--no-such-flag=1", ["--no-such-flag"]),
        ("surplus", ["surplus"]),
        ("--http-address=no.such.host.invalid", ["HTTP", "no.such.host.invalid"]),
        ("--log-verbose=-1", ["--log-verbose", "'-1'"]),
    ],
)
def test_bad_flag_ends_the_start_with_one_line_that_names_it(
    flag: str, facts: list[str], repository: Path, tmp_path: Path
) -> None:
    line = failed_start(tmp_path, repository, flag)
    assert line.startswith("tritrio: ")
    assert [fact for fact in facts if fact not in line] == []


def test_start_without_a_repository_names_the_flag(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from tritrio.cli import main

    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("tritrio: --model-repository is required")


@pytest.mark.parametrize("kind", ["nothing", "a file"])
def test_repository_that_is_no_directory_ends_the_start(kind: str, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    if kind == "a file":
        repository.touch()
    line = failed_start(tmp_path, repository)
    assert line.startswith("tritrio: expected a readable directory as model repository")
    assert str(repository) in line


def test_broken_model_ends_the_start_by_default(repository: Path, tmp_path: Path) -> None:
    copy_example(repository, "identity")
    write_python_model(repository, "broken", BROKEN)
    line = failed_start(tmp_path, repository)
    assert line.startswith("tritrio: ")
    assert "broken" in line
    assert "--exit-on-error" in line
    assert "no weights here" in (tmp_path / "log").read_text()


def test_broken_model_beside_a_good_one_is_reported_and_the_good_one_serves(
    repository: Path, tmp_path: Path
) -> None:
    copy_example(repository, "identity")
    write_python_model(repository, "broken", BROKEN)
    with running_server(repository, tmp_path / "log", "--exit-on-error=false") as server:
        port = server.http_port
        answer = ask(port, "POST", "/v2/models/identity/infer", infer_body([1, 2], [1, 2]))
        assert answer.json()["outputs"][0]["data"] == [1.0, 2.0]
        assert ask(port, "GET", "/v2/health/ready").status == 400
        index = {each["name"]: each for each in ask(port, "POST", "/v2/repository/index").json()}
        assert index["identity"]["state"] == "READY"
        assert index["broken"]["state"] == "UNAVAILABLE"
        assert "no weights here" in index["broken"]["reason"]
        assert server.stop() == 0


def test_model_for_a_gpu_is_refused_where_there_is_none(repository: Path, tmp_path: Path) -> None:
    write_python_model(repository, "fast", BROKEN, kind="KIND_GPU")
    with running_server(repository, tmp_path / "log", "--exit-on-error=false") as server:
        (entry,) = ask(server.http_port, "POST", "/v2/repository/index").json()
        assert entry["state"] == "UNAVAILABLE"
        assert "GPU" in entry["reason"]
        assert "no weights here" not in entry["reason"]


@pytest.mark.parametrize("name", ["http", "grpc", "metrics"])
def test_port_in_use_ends_the_start_and_is_named(
    name: str, repository: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = failed_start(tmp_path, repository, f"--{name}-port={port}")
    assert re.fullmatch(
        rf"tritrio: (HTTP|gRPC|metrics) cannot be served on {HOST}:{port}: .*in use.*", line
    )


def test_two_services_on_one_port_are_refused(repository: Path, tmp_path: Path) -> None:
    line = failed_start(tmp_path, repository, "--http-port=18765", "--grpc-port=18765")
    assert line == "tritrio: http and grpc cannot both be served on port 18765"


def test_signal_while_models_load_ends_the_start(repository: Path, tmp_path: Path) -> None:
    write_python_model(repository, "slow", SLOW_START, place=tmp_path)
    server = start_server(repository, tmp_path / "log", "--exit-timeout-secs=1")
    try:
        wait_until_exists(tmp_path / "started", server)
        server.send_signal(signal.SIGTERM)
        server.wait_for_log("got signal 15")
        (tmp_path / "go").touch()
        assert server.wait() == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert "is served on" not in server.log()
    assert "Traceback" not in server.log()


# Stop.


@pytest.mark.parametrize("http_server", HTTP_SERVERS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_finish_while_everybody_else_is_told_to_go(
    http_server: str, number: signal.Signals, repository: Path, gate: Path, tmp_path: Path
) -> None:
    with (
        running_server(repository, tmp_path / "log", f"--http-server={http_server}") as server,
        connect(server.http_port) as busy,
        connect(server.http_port) as idle,
    ):
        assert exchange(idle, "GET", "/v2/health/ready").status == 200
        busy.sendall(infer_request("gate", [1, 2]))
        wait_until_exists(gate / "started", server)

        server.send_signal(number)
        server.wait_for_log("stopping")
        assert is_closed(idle)
        assert refuses_connections(server.http_port)
        assert refuses_connections(server.grpc_port)
        metrics = ask(server.metrics_port, "GET", "/metrics")
        assert metrics.status == 200  # a drain can be watched
        server.send_signal(number)  # a second signal changes nothing
        assert not server.has_ended(0.2)

        (gate / "go").touch()
        answer = receive(busy)
        assert answer.status == 200
        if http_server == "tritrio":  # hypercorn closes without a word
            assert answer.headers["connection"] == "close"
        assert is_closed(busy)
        assert answer.json()["outputs"][0]["data"] == [1.0, 2.0]
        assert server.wait() == 0
    assert (gate / "finalized").exists()
    assert "Traceback" not in server.log()


def gate_input() -> list[triton_grpc.InferInput]:
    tensor = triton_grpc.InferInput("INPUT0", [2], "FP32")
    tensor.set_data_from_numpy(np.array([1, 2], np.float32))
    return [tensor]


def test_grpc_call_in_flight_finishes_while_new_ones_are_unavailable(
    repository: Path, gate: Path, tmp_path: Path
) -> None:
    with running_server(repository, tmp_path / "log") as server:
        results: list[triton_grpc.InferResult | Exception] = []
        with triton_grpc.InferenceServerClient(server.grpc_url) as client:
            assert client.is_server_ready()
            call = client.async_infer(
                "gate", gate_input(), lambda result, error: results.append(error or result)
            )
            wait_until_exists(gate / "started", server)
            server.send_signal(signal.SIGTERM)
            server.wait_for_log("stopping")
            with pytest.raises(triton_grpc.InferenceServerException) as caught:
                client.infer("gate", gate_input())
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            (gate / "go").touch()
            assert server.wait() == 0
            del call
        (result,) = results
        assert isinstance(result, triton_grpc.InferResult), result
        assert result.as_numpy("OUTPUT0").tolist() == [1, 2]
    assert (gate / "finalized").exists()


def test_open_stream_is_finished_and_then_ended(
    repository: Path, gate: Path, tmp_path: Path
) -> None:
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    message = triton_grpc.service_pb2.ModelInferRequest(model_name="gate")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[2])
    message.raw_input_contents.append(np.array([1, 2], np.float32).tobytes())
    with (
        running_server(repository, tmp_path / "log") as server,
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        stub = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        idle = stub.ModelStreamInfer(iter([]))
        call = stub.ModelStreamInfer(iter(requests.get, None))
        requests.put(message)
        wait_until_exists(gate / "started", server)
        server.send_signal(signal.SIGTERM)
        server.wait_for_log("stopping")
        (gate / "go").touch()
        answer = next(call).infer_response
        assert answer.raw_output_contents[0] == message.raw_input_contents[0]
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "the server is exiting"
        assert list(idle) == []
        assert server.wait(EXIT_SLACK_S) == 0
        requests.put(None)


@pytest.mark.parametrize("http_server", HTTP_SERVERS)
def test_request_of_a_client_that_left_is_not_executed(
    http_server: str, repository: Path, gate: Path, tmp_path: Path
) -> None:
    with (
        running_server(repository, tmp_path / "log", f"--http-server={http_server}") as server,
        connect(server.http_port) as busy,
    ):
        busy.sendall(infer_request("gate", [1]))
        wait_until_exists(gate / "started", server)  # the only instance is occupied
        for how in ("FIN", "RST"):
            leaver = connect(server.http_port)
            leaver.sendall(infer_request("gate", [2]))
            wait_until_pending(server, 1)
            if how == "RST":
                leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaver.close()
            wait_until_pending(server, 0)
        (gate / "go").touch()
        assert receive(busy).status == 200
        (stats,) = ask(server.http_port, "GET", "/v2/models/gate/stats").json()["model_stats"]
        assert stats["execution_count"] == 1
        assert server.stop() == 0


def wait_until_pending(server: ServerProcess, count: int) -> None:
    """Wait until so many requests are queued, by the server's own gauge."""
    line = f'nv_inference_pending_request_count{{model="gate",version="1"}} {count}'
    for _ in range(500):
        if line in ask(server.metrics_port, "GET", "/metrics").body.decode():
            return
        assert not server.has_ended(0.02), server.log()
    pytest.fail(f"never saw {line}")


@pytest.mark.parametrize("http_server", HTTP_SERVERS)
def test_model_that_hangs_is_left_behind_when_the_exit_timeout_has_passed(
    http_server: str, repository: Path, gate: Path, tmp_path: Path
) -> None:
    flags = ["--exit-timeout-secs=1", f"--http-server={http_server}"]
    with (
        running_server(repository, tmp_path / "log", *flags) as server,
        connect(server.http_port) as connection,
    ):
        connection.sendall(infer_request("gate", [1]))
        wait_until_exists(gate / "started", server)
        server.send_signal(signal.SIGTERM)
        assert server.wait(1 + EXIT_SLACK_S) == 1
    assert "exit timeout" in server.log()
    assert "Traceback" not in server.log()


LARGE_BYTES = 32 * 1024**2
"""More than the sockets of both sides hold, so that a client that does not read is noticed."""


def leave_unread_http(server: ServerProcess) -> socket.socket:
    """Ask for a large answer and never read it."""
    body = np.zeros(LARGE_BYTES // 4, np.float32).tobytes()
    connection = connect(server.http_port)
    headers = {"Inference-Header-Content-Length": "0"}
    connection.sendall(request("POST", "/v2/models/identity/infer", body, headers))
    return connection


@pytest.mark.parametrize("http_server", HTTP_SERVERS)
def test_http_client_that_never_reads_cannot_hold_up_the_exit(
    http_server: str, repository: Path, tmp_path: Path
) -> None:
    copy_example(repository, "identity")
    flags = ["--exit-timeout-secs=1", f"--http-server={http_server}"]
    with running_server(repository, tmp_path / "log", *flags) as server:
        connection = leave_unread_http(server)
        try:
            connection.recv(1)  # the answer is on its way
            server.send_signal(signal.SIGTERM)
            assert server.wait(1 + EXIT_SLACK_S) == 1
        finally:
            connection.close()
    assert "Traceback" not in server.log()


def test_grpc_client_that_never_reads_cannot_hold_up_the_exit(
    repository: Path, tmp_path: Path
) -> None:
    copy_example(repository, "identity")
    with running_server(repository, tmp_path / "log", "--exit-timeout-secs=1") as server:
        options = [("grpc.http2.lookahead_bytes", 16384), ("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(server.grpc_url, options=options) as channel:
            # A stream whose messages nobody takes: flow control stops the server.
            stub = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
            message = triton_grpc.service_pb2.ModelInferRequest(model_name="identity")
            message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 2**18])
            message.raw_input_contents.append(bytes(2**20))
            call = stub.ModelStreamInfer(iter([message] * 32))
            next(call)
            server.send_signal(signal.SIGTERM)
            assert server.wait(1 + EXIT_SLACK_S) == 1
            call.cancel()
    assert "Traceback" not in server.log()
