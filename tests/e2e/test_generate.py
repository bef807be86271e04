"""Streams of events from a real server: as they come, to curl, and to clients that leave."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.server_process import HOST, ServerProcess, running_server

from .raw_http import ask, connect, receive, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
TICKER = """
import pathlib
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

PLACE = pathlib.Path({place!r})


class TritonPythonModel:
    '''Counts to COUNT in a thread per request; behind 0 it waits for the file `go`.'''

    def initialize(self, args):
        self.running = 0
        self.lock = threading.Lock()
        self.gauge = pb_utils.MetricFamily(
            name="running", description="requests", kind=pb_utils.MetricFamily.GAUGE
        ).Metric(labels={{}})

    def add(self, change):
        with self.lock:
            self.running += change
            self.gauge.set(self.running)

    def execute(self, requests):
        for request in requests:
            self.add(1)
            sender = request.get_response_sender()
            threading.Thread(target=self.count, args=(request, sender)).start()

    def count(self, request, sender):
        count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]
        for number in range(count):
            if request.is_cancelled():
                break
            tensor = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
            while not (PLACE / "go").exists() and not request.is_cancelled():
                time.sleep(0.005)
        self.add(-1)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
LEAVERS = 1000
AT_ONCE = 50
QUIET_POLL_S = 0.05
QUIET_POLLS_MAX = 400


@pytest.fixture
def ticker(tmp_path: Path, repository: Path) -> Path:
    """A directory for the file `go`; the repository has the model `ticker`."""
    directory = repository / "ticker" / "1"
    directory.mkdir(parents=True)
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    (directory / "model.py").write_text(TICKER.format(place=str(tmp_path)))
    return tmp_path


def stream_request(count: int) -> bytes:
    body = json.dumps({"COUNT": count}).encode()
    return request("POST", "/v2/models/ticker/generate_stream", body)


@pytest.mark.parametrize("http_server", ["tritrio", "hypercorn"])
def test_curl_sees_each_event_when_it_is_made(
    ticker: Path, repository: Path, tmp_path: Path, http_server: str
) -> None:
    flag = f"--http-server={http_server}"
    with running_server(repository, tmp_path / "log", flag) as server:
        url = f"http://{server.http_url}/v2/models/ticker/generate_stream"
        command = ["curl", "--no-buffer", "--silent", "--data", '{"COUNT": 3, "id": "r"}', url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
            assert curl.stdout is not None
            lines = [curl.stdout.readline(), curl.stdout.readline()]  # the model waits now
            (ticker / "go").touch()
            lines += curl.stdout.readlines()
            assert curl.wait(timeout=10) == 0
        expected = '{"NUMBER":%d,"id":"r","model_name":"ticker","model_version":"1"}'
        assert b"".join(lines).decode() == "".join(
            f"data: {expected % number}\n\n" for number in range(3)
        )


@pytest.mark.parametrize("http_server", ["tritrio", "hypercorn"])
def test_connection_goes_on_behind_a_stream_and_ends_when_its_client_wants_that(
    ticker: Path, repository: Path, tmp_path: Path, http_server: str
) -> None:
    (ticker / "go").touch()
    flag = f"--http-server={http_server}"
    with running_server(repository, tmp_path / "log", flag) as server:
        last = stream_request(1).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        for requests in ([stream_request(1), stream_request(1), last], [last]):
            with connect(server.http_port) as client:
                client.sendall(b"".join(requests))
                got = b"".join(iter(partial(client.recv, 4096), b""))  # until the server closes
            assert got.count(b'"NUMBER":0') == len(requests)
            assert got.endswith(b"\r\n0\r\n\r\n")
        assert server.stop() == 0


def running(server: ServerProcess) -> float:
    """How many requests the model works on, as it says itself."""
    text = ask(server.metrics_port, "GET", "/metrics").body.decode()
    names = ("running ", "running{")
    (line,) = [line for line in text.splitlines() if line.startswith(names)]
    return float(line.rpartition(" ")[2])


def descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def wait_until_quiet(server: ServerProcess, before: int) -> None:
    """Wait until the server has no more descriptors than before."""
    for _ in range(QUIET_POLLS_MAX):
        if descriptors(server) <= before:
            break
        assert not server.has_ended(QUIET_POLL_S), server.log()
    assert descriptors(server) <= before


def test_clients_that_leave_in_the_middle_leave_nothing_behind(
    ticker: Path, repository: Path, tmp_path: Path
) -> None:
    with running_server(repository, tmp_path / "log") as server:
        before = descriptors(server)
        for _ in range(LEAVERS // AT_ONCE):
            clients: list[socket.socket] = []
            for _ in range(AT_ONCE):
                client = socket.create_connection((HOST, server.http_port), timeout=10)
                client.sendall(stream_request(1_000_000))
                clients.append(client)
            for client in clients:
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
            for number, client in enumerate(clients):
                if number % 2:  # a reset in place of an orderly end
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
        wait_until_quiet(server, before)
        assert running(server) == 0
        (ticker / "go").touch()
        with connect(server.http_port) as last:
            last.sendall(stream_request(2))
            assert receive(last).status == 200
        assert "Traceback" not in server.log()
        assert server.stop() == 0


def test_hypercorn_lets_go_of_clients_that_leave_with_more_requests_behind_their_stream(
    ticker: Path, repository: Path, tmp_path: Path
) -> None:
    (ticker / "go").touch()
    with running_server(repository, tmp_path / "log", "--http-server=hypercorn") as server:
        before = descriptors(server)
        for _ in range(10):
            with connect(server.http_port) as client:
                client.sendall(stream_request(1_000_000) + stream_request(1))
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
        wait_until_quiet(server, before)
        assert server.stop() == 0
