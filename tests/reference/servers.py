"""The two servers as processes: free ports, start, readiness, stop."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
FLAGS = ["--exit-on-error=false", "--strict-readiness=false"]
"""One model cannot be loaded on purpose; the rest must be served."""
COMPLETE = ["--disable-auto-complete-config"]
"""For models whose configurations say everything: the reference starts a second process for each to
ask it, which takes most of its start."""
START_ATTEMPTS_MAX = 600
ATTEMPT_INTERVAL_S = 0.1
"""A minute to start: the reference starts a process a model, which takes it ten seconds."""
STOP_LIMIT_S = 20.0
LOG_TAIL_BYTES = 6000


class StartError(Exception):
    """A server ended, or did not answer in time, while it was starting."""


class Ports(NamedTuple):
    http: int
    grpc: int
    metrics: int


@dataclass(slots=True)
class Server:
    """A running server and where it listens; `log` is what it prints."""

    process: subprocess.Popen[bytes]
    ports: Ports
    log: Path

    def log_tail(self) -> str:
        """The end of what it has printed."""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def check_running(self) -> None:
        """Assert that it has not ended, so that one crash is not taken for many differences."""
        assert self.process.poll() is None, f"ended: {self.process.args!r}\n{self.log_tail()}"

    def wait_until_ready(self, attempts_max: int = START_ATTEMPTS_MAX) -> None:
        """Poll until the readiness endpoint says yes.

        Raises:
          StartError: with the log, if the process ends or the attempts are used up.
        """
        for _ in range(attempts_max):
            if self._is_ready() or self.ended_within(ATTEMPT_INTERVAL_S):
                break
        if self.process.poll() is not None or not self._is_ready():
            raise StartError(f"{self.process.args!r} did not start:\n{self.log_tail()}")

    def ended_within(self, limit_s: float) -> bool:
        """Whether it ends within this time."""
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.ports.http, timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Ask it to end, wait, and return its exit status; a server that hangs is killed."""
        self.process.terminate()
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def free_ports() -> Ports:
    """Ports nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in Ports._fields]
        for one in sockets:
            one.bind((HOST, 0))
        return Ports(*(one.getsockname()[1] for one in sockets))


def need_reference() -> None:
    """Install the reference server if need be; skip the test if that is impossible."""
    if reason := _why_no_reference():
        pytest.skip(f"no reference server: {reason}")


def _why_no_reference() -> str | None:
    if reason := os.environ.get("TRITRIO_NO_REFERENCE"):
        return reason
    command = [sys.executable, str(ROOT / "scripts" / "reference-server"), "--install-only"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else "it could not be installed, and no reason was given"


def start_reference(
    repository: Path, log: Path, *more: str, flags: Sequence[str] = FLAGS
) -> Server:
    """Start the reference on `repository`, without waiting for it."""
    script = str(ROOT / "scripts" / "reference-server")
    command = [sys.executable, script, str(repository), *flags, "--allow-gpu-metrics=false", *more]
    return _start(command, log)


def start_ours(repository: Path, log: Path, *more: str, flags: Sequence[str] = FLAGS) -> Server:
    """Start our server on `repository`, without waiting for it."""
    command = [sys.executable, "-m", "tritrio", "--model-repository", str(repository)]
    command += [*flags, "--allow-client-shm=true"]  # which the reference always does
    return _start([*command, *more], log)


def _start(command: list[str], log: Path) -> Server:
    ports = free_ports()
    for name, port in ports._asdict().items():
        command += [f"--{name}-port={port}", f"--{name}-address={HOST}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            # Not the root: the reference's models would import our triton_python_backend_utils.
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Server(process, ports, log)


class Servers(NamedTuple):
    """The two servers, on the same repository."""

    reference: Server
    ours: Server


@contextmanager
def both(
    repository: Path, *more: str, flags: Sequence[str] = FLAGS, patience_s: float = STOP_LIMIT_S
) -> Iterator[Servers]:
    """Serve one repository with both, with the same flags; see `running`."""
    need_reference()
    reference = start_reference(
        repository, repository.with_name("reference.log"), *more, flags=flags
    )
    ours = start_ours(repository, repository.with_name("ours.log"), *more, flags=flags)
    with running(reference, ours, patience_s=patience_s) as servers:
        yield servers


@contextmanager
def running(
    reference: Server,
    ours: Server,
    *,
    attempts_max: int = START_ATTEMPTS_MAX,
    patience_s: float = STOP_LIMIT_S,
) -> Iterator[Servers]:
    """Two servers that were started, once they are ready; ours has to end well.

    Args:
      reference: The reference.
      ours: Our server.
      attempts_max: How often each is asked whether it is ready.
      patience_s: How long the reference may take to end.
    """
    try:
        ours.wait_until_ready(attempts_max)
        reference.wait_until_ready(attempts_max)
        yield Servers(reference, ours)
    finally:
        reference.process.terminate()  # both end side by side
        status = ours.stop()
        reference.stop(patience_s)
    assert status == 0, ours.log_tail()
