"""How a server process stops, whoever is connected to it."""

from __future__ import annotations

import queue
import signal
import socket
import struct
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.server_process import HOST, ServerProcess, running_server

from .models import copy_example, wait_until_exists
from .raw_http import ask, connect, exchange, infer_body, is_closed, receive, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HTTP_SERVERS = ["tritrio", "hypercorn"]
EXIT_SLACK_S = 10.0
"""What a busy machine may add to an exit timeout; a hang is longer than this."""


def infer_request(model: str, values: list[float], shape: list[int] | None = None) -> bytes:
    return request("POST", f"/v2/models/{model}/infer", infer_body(values, shape))


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except OSError:
        return True
    return False


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


@pytest.mark.parametrize("http_server", HTTP_SERVERS)
@pytest.mark.parametrize("exit_timeout_s", [0, 25])
def test_unfinished_requests_and_idle_channels_do_not_hold_up_the_exit(
    http_server: str, exit_timeout_s: int, repository: Path, tmp_path: Path
) -> None:
    copy_example(repository, "identity")
    flags = [f"--exit-timeout-secs={exit_timeout_s}", f"--http-server={http_server}"]
    data = infer_request("identity", [1, 2], [1, 2])
    with (
        running_server(repository, tmp_path / "log", *flags) as server,
        connect(server.http_port) as head,
        connect(server.http_port) as body,
        triton_grpc.InferenceServerClient(server.grpc_url) as client,
    ):
        assert client.is_server_ready()
        assert exchange(head, "GET", "/v2/health/ready").status == 200
        head.sendall(data[:20])
        body.sendall(data[:-1])
        assert ask(server.http_port, "GET", "/v2/health/ready").status == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(EXIT_SLACK_S) == 0
    assert "Traceback" not in server.log()


def test_client_that_does_not_read_is_no_failed_exit(repository: Path, tmp_path: Path) -> None:
    copy_example(repository, "identity")
    with running_server(repository, tmp_path / "log", "--exit-timeout-secs=25") as server:
        connection = leave_unread_http(server)
        try:
            connection.recv(1)  # the answer is on its way
            server.send_signal(signal.SIGTERM)
            assert server.wait(15) == 0
        finally:
            connection.close()
    assert "Traceback" not in server.log()


def open_descriptors(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_descriptors_of_closed_metrics_connections_are_released(
    repository: Path, tmp_path: Path
) -> None:
    """Those of every kind side by side: some are noticed only once their idle time is over."""
    with running_server(repository, tmp_path / "log") as server:
        before = open_descriptors(server)
        connections = [
            (connect(server.metrics_port), how, data)
            for how in ("FIN", "RST")
            for data in (b"", b"GET /metrics HT", request("GET", "/metrics"))
            for _ in range(40)
        ]
        for connection, _, data in connections:
            connection.sendall(data)
        assert ask(server.metrics_port, "GET", "/metrics").status == 200
        for connection, how, _ in connections:
            if how == "RST":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        for _ in range(100):
            if open_descriptors(server) <= before:
                break
            assert not server.has_ended(0.1), server.log()
        assert open_descriptors(server) <= before
        assert server.stop() == 0


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
        if http_server == "tritrio":
            assert receive(connection).status == 503
            assert "cut off: HTTP has 1 connection, gRPC has 0 connections" in server.log()
    assert "the exit timeout has passed: what is left is cut off: HTTP has " in server.log()
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


def wait_until_inferred(http_url: str, count: int) -> None:
    """Ask for the statistics until `identity` has executed so often."""
    with triton_http.InferenceServerClient(http_url) as client:
        for _ in range(2000):
            (statistics,) = client.get_inference_statistics("identity")["model_stats"]
            if statistics["inference_count"] >= count:
                return
    raise AssertionError(f"expected {count} inferences, got {statistics['inference_count']}")


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
            wait_until_inferred(server.http_url, 4)  # so that answers are owed
            server.send_signal(signal.SIGTERM)
            assert server.wait(1 + EXIT_SLACK_S) == 1
            call.cancel()
    assert "Traceback" not in server.log()
