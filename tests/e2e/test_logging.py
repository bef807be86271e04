"""What a real server writes into its log."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.server_process import ServerProcess, running_server, start_server

from .models import copy_example, wait_until_exists, write_python_model
from .raw_http import ask, connect, receive, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TALKS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info('said "so"')
        pb_utils.Logger.log_verbose("quietly")
        arrays = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a)]) for a in arrays]
"""
LINE = re.compile(r'[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w.]+:\d+\] "(.*)"')


def body(request_id: str) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
    return json.dumps({"id": request_id, "inputs": [tensor]}).encode()


def test_the_log_of_a_start_has_a_table_of_models_and_warnings_about_options(
    repository: Path, tmp_path: Path
) -> None:
    copy_example(repository, "identity")
    flags = ["--http-thread-count=9", "--strict-model-config=false"]
    with running_server(repository, tmp_path / "log", *flags) as server:
        assert server.stop() == 0
    lines = server.log().splitlines()
    table = [
        "+----------+---------+--------+",
        "| Model    | Version | Status |",
        "+----------+---------+--------+",
        "| identity | 1       | READY  |",
        "+----------+---------+--------+",
    ]
    start = lines.index(table[0])
    assert lines[start : start + len(table)] == table
    for option in ("--http-thread-count", "--strict-model-config"):
        assert sum(option in line for line in lines) == 1
    others = [line for line in lines if line not in table]
    said = [found[1] for line in others if (found := LINE.fullmatch(line))]
    for state in ("READY", "unloaded"):
        assert said.count(f"model identity version 1 is {state}") == 1
    assert [line for line in others if not LINE.fullmatch(line)] == []


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_lines_of_a_python_model_say_which_request_they_are_about(
    mode: str, repository: Path, tmp_path: Path
) -> None:
    write_python_model(repository, "talks", TALKS)
    if mode == "process":
        with (repository / "talks" / "config.pbtxt").open("a") as config:
            config.write('parameters { key: "EXECUTION_MODE" value { string_value: "process" } }\n')
    flags = ["--log-format=json", "--log-verbose=1"]
    with running_server(repository, tmp_path / "log", *flags) as server:
        answer = ask(server.http_port, "POST", "/v2/models/talks/infer", body("r-7"))
        assert answer.status == 200
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log().splitlines()]
    about = {"request_id": "r-7", "model": "talks"}
    (said,) = [line for line in lines if line["message"] == 'said "so"']
    assert {
        **about,
        "version": "1",
        "level": "INFO",
        "logger": "tritrio.model",
    }.items() <= said.items()
    (quiet,) = [line for line in lines if line["message"] == "quietly"]
    assert quiet["level"] == "VERBOSE"
    (call,) = [line for line in lines if "/infer" in line["message"]]
    assert about.items() <= call.items()
    assert re.fullmatch(r"HTTP POST /v2/models/talks/infer 200, \d+\.\d{3} ms", call["message"])


def test_clients_change_the_log_while_it_is_written_to_a_file(
    repository: Path, tmp_path: Path
) -> None:
    write_python_model(repository, "talks", TALKS)
    path = tmp_path / "lines"
    with (
        running_server(repository, path, f"--log-file={path}") as server,
        triton_http.InferenceServerClient(server.http_url) as http,
        triton_grpc.InferenceServerClient(server.grpc_url) as grpc,
    ):
        infer = "/v2/models/talks/infer"
        settings: dict[str, Any] = http.get_log_settings()
        assert settings["log_file"] == str(path)
        http.update_log_settings({"log_verbose_level": 1})
        assert ask(server.http_port, "POST", infer, body("loud")).status == 200
        grpc.update_log_settings({"log_info": False, "log_verbose_level": 0})
        assert ask(server.http_port, "POST", infer, body("silent")).status == 200
        grpc.update_log_settings({"log_info": True})
        assert server.stop() == 0
    lines = path.read_text().splitlines()
    about_loud = [line.partition('] "')[2] for line in lines if "loud" in line]
    assert [text[:22] for text in about_loud] == [
        "[request id: loud] sai",
        "[request id: loud] qui",
        "[request id: loud] HTT",
    ]
    assert "silent" not in path.read_text()
    assert lines[-1].endswith('] "stopped"')


def test_a_stop_says_every_second_what_it_waits_for(
    repository: Path, gate: Path, tmp_path: Path
) -> None:
    with (
        running_server(repository, tmp_path / "log", "--exit-timeout-secs=25") as server,
        connect(server.http_port) as connection,
    ):
        connection.sendall(request("POST", "/v2/models/gate/infer", body("")))
        wait_until_exists(gate / "started", server)
        server.send_signal(signal.SIGTERM)
        server.wait_for_log("stopping: 24 s are left, 1 model versions live, ")
        assert "HTTP has 1 connection, gRPC has 0 connections" in server.log()
        (gate / "go").touch()
        assert receive(connection).status == 200
        assert server.wait() == 0


@contextmanager
def logging_to_a_pipe(repository: Path, tmp_path: Path) -> Iterator[tuple[ServerProcess, int, int]]:
    """A server that logs to a pipe: itself, its HTTP port, and the end that it was read from."""
    copy_example(repository, "identity")
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    flags = ["--http-port=0", f"--log-file={path}", "--log-verbose=1"]
    server = start_server(repository, tmp_path / "log", *flags)
    try:
        text = b""
        while b"HTTP is served on" not in text:
            assert not server.has_ended(0.02), server.log()
            try:
                text += os.read(reader, 65536)
            except BlockingIOError:
                continue
        port = int(text.decode().partition("HTTP is served on 127.0.0.1:")[2].partition('"')[0])
        yield server, port, reader
    finally:
        server.process.kill()
        server.process.wait()


def test_a_reader_of_the_log_that_is_gone_ends_no_server(repository: Path, tmp_path: Path) -> None:
    with logging_to_a_pipe(repository, tmp_path) as (server, port, reader):
        os.close(reader)
        for _ in range(3):
            assert ask(port, "GET", "/v2/health/ready").status == 200
        assert server.stop() == 0


def test_a_reader_of_the_log_that_stopped_reading_holds_no_exit_up(
    repository: Path, tmp_path: Path
) -> None:
    with logging_to_a_pipe(repository, tmp_path) as (server, port, reader):
        writer = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:  # until it is full
                os.write(writer, bytes(4096))
        assert ask(port, "GET", "/v2/health/ready").status == 200
        assert server.stop() == 0
        os.close(writer)
        os.close(reader)
