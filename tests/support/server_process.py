"""A real server process on free loopback ports: start, readiness, log, stop by process id."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
POLL_S = 0.02
READY_LIMIT_S = 30.0
"""Far more than a start takes, for a machine that is busy with other tests."""
STOP_LIMIT_S = 30.0
SERVED = re.compile(r"(HTTP|gRPC|metrics) is served on 127\.0\.0\.1:(\d+)")


class NotReadyError(Exception):
    """The server ended, or was not ready in time; the message holds its log."""


@dataclass(slots=True)
class ServerProcess:
    """A running server.

    Attributes:
      process: The process, started in a session of its own.
      log_path: What it prints.
      http_port: Its HTTP port; 0 until it is ready, or without HTTP.
      grpc_port: Its gRPC port, likewise.
      metrics_port: Its metrics port, likewise.
    """

    process: subprocess.Popen[bytes]
    log_path: Path
    http_port: int = 0
    grpc_port: int = 0
    metrics_port: int = 0

    @property
    def http_url(self) -> str:
        """HOST:PORT, as clients take it."""
        return f"{HOST}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """HOST:PORT, as clients take it."""
        return f"{HOST}:{self.grpc_port}"

    def log(self) -> str:
        """Everything it has printed so far."""
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, text: str, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until it has printed a text.

        Raises:
          NotReadyError: it ended or took too long.
        """
        for _ in range(round(limit_s / POLL_S)):
            if text in self.log():
                return
            if self.has_ended(POLL_S):
                break
        if text not in self.log():
            raise NotReadyError(f"expected {text!r} in the log, got:\n{self.log()}")

    def wait_until_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until it serves, and learn its ports; the ports open after the models have loaded.

        Raises:
          NotReadyError: it ended or took too long.
        """
        for kind in ("metrics", "gRPC", "HTTP"):
            if self._is_asked_for(kind):
                self.wait_for_log(f"{kind} is served on", limit_s)
        ports = {kind: int(port) for kind, port in SERVED.findall(self.log())}
        self.http_port = ports.get("HTTP", 0)
        self.grpc_port = ports.get("gRPC", 0)
        self.metrics_port = ports.get("metrics", 0)

    def _is_asked_for(self, kind: str) -> bool:
        arguments = self.process.args
        assert isinstance(arguments, list)
        return f"--allow-{kind.lower()}=false" not in arguments

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it ends within this time."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Its exit code; a server that goes on beyond the limit is killed, and that fails."""
        if not self.has_ended(limit_s):
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end within {limit_s} s:\n{self.log()}")
        code = self.process.returncode
        assert code is not None
        return code

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Ask it to end (SIGTERM) and return its exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait(limit_s)

    def rss_bytes(self) -> int:
        """Its resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


def start_server(repository: Path, log_path: Path, *flags: str) -> ServerProcess:
    """Start a server on free ports, without waiting for it."""
    command = [sys.executable, "-m", "tritrio", f"--model-repository={repository}"]
    for name in ("http", "grpc", "metrics"):
        command.append(f"--{name}-address={HOST}")
        if not any(flag.startswith(f"--{name}-port=") for flag in flags):
            command.append(f"--{name}-port=0")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, *flags],
            cwd=log_path.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return ServerProcess(process, log_path)


@contextmanager
def running_server(
    repository: Path, log_path: Path, *flags: str, ready_limit_s: float = READY_LIMIT_S
) -> Iterator[ServerProcess]:
    """A ready server; whatever happens, no process is left in the end.

    A failure in the block prints the log. A server that still runs is stopped.
    """
    server = start_server(repository, log_path, *flags)
    try:
        server.wait_until_ready(ready_limit_s)
        yield server
    except BaseException:
        print(f"the server's log:\n{server.log()}")  # noqa: T201 - pytest shows it
        raise
    finally:
        if not server.has_ended():
            server.send_signal(signal.SIGTERM)
            if not server.has_ended(STOP_LIMIT_S):
                server.process.kill()
                server.process.wait()
