"""How a server process starts, and fails to."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import (
    HOST,
    ROOT,
    ServerProcess,
    running_server,
    start_server,
)

from .models import BROKEN, SLOW_START, copy_example, wait_until_exists, write_python_model
from .raw_http import ask, infer_body

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RSS_MAX_BYTES = 150 * 1024**2


def test_start_log_says_what_is_served_and_where(repository: Path, tmp_path: Path) -> None:
    copy_example(repository, "identity")
    with running_server(repository, tmp_path / "log", "--model-control-mode=none") as server:
        assert "model identity version 1 is READY" in server.log()
        for name, port in (
            ("HTTP", server.http_port),
            ("gRPC", server.grpc_port),
            ("metrics", server.metrics_port),
        ):
            assert f'{name} is served on {HOST}:{port}"\n' in server.log()
        assert ask(server.http_port, "GET", "/v2/health/ready").status == 200
        assert server.rss_bytes() < RSS_MAX_BYTES
        assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_no_socket_gets_the_number_of_a_standard_descriptor_that_was_closed(
    repository: Path, tmp_path: Path
) -> None:
    copy_example(repository, "identity")
    log = tmp_path / "log"
    program = f'exec "{sys.executable}" -m tritrio "$@" <&- >&- 2>&-'
    flags = [f"--model-repository={repository}", f"--http-address={HOST}", "--http-port=0"]
    process = subprocess.Popen(
        [
            "sh",
            "-c",
            program,
            "sh",
            *flags,
            "--allow-grpc=false",
            "--allow-metrics=false",
            f"--log-file={log}",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    server = ServerProcess(process, log)
    try:
        wait_until_exists(log, server)
        server.wait_for_log("HTTP is served on")
        open_files = Path(f"/proc/{process.pid}/fd")
        assert [os.readlink(open_files / name) for name in "012"] == ["/dev/null"] * 3
        assert server.stop() == 0
    finally:
        process.kill()
        process.wait()


def test_what_is_switched_off_is_neither_served_nor_announced(
    repository: Path, tmp_path: Path
) -> None:
    flags = ["--allow-grpc=false", "--allow-metrics=false"]
    with running_server(repository, tmp_path / "log", *flags) as server:
        assert "gRPC" not in server.log()
        assert "metrics" not in server.log()
        assert ask(server.http_port, "GET", "/v2/health/ready").status == 200
        assert server.stop() == 0


def test_start_with_everything_switched_off_fails(repository: Path, tmp_path: Path) -> None:
    flags = [f"--allow-{name}=false" for name in ("http", "grpc", "metrics")]
    line = failed_start(tmp_path, repository, *flags)
    assert line == "tritrio: nothing is served: all endpoints are switched off"


def test_empty_repository_is_served_and_ready(repository: Path, tmp_path: Path) -> None:
    with running_server(repository, tmp_path / "log") as server:
        assert ask(server.http_port, "GET", "/v2/health/ready").status == 200
        assert ask(server.http_port, "POST", "/v2/repository/index").json() == []
        assert (
            f"there are no models in {repository}; the files of a model lie in MODEL/VERSION below "
            "it, such as MODEL/1/model.onnx"
        ) in server.log()


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
        ("--http-address=no.such.host.invalid", ["HTTP", "no.such.host.invalid"]),
        ("--grpc-address=two..dots", ["gRPC", "two..dots"]),
        ("--log-file=/no/such/file", ["--log-file", "can be written", "'/no/such/file'"]),
    ],
)
def test_bad_flag_ends_the_start_with_one_line_that_names_it(
    flag: str, facts: list[str], repository: Path, tmp_path: Path
) -> None:
    line = failed_start(tmp_path, repository, flag)
    assert line.startswith("tritrio: ")
    assert [fact for fact in facts if fact not in line] == []


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
    assert line == f"tritrio: HTTP and gRPC cannot both be served on {HOST}, port 18765"


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
