"""This server and the reference server, started side by side for the scripts that compare them."""

from __future__ import annotations

import contextlib
import http.client
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _reference import server_command
from _wheels import ROOT, FetchError

START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
      process: Its process; a reference server has children that run the models.
      urls: Its addresses: {protocol: HOST:PORT}.
    """

    process: subprocess.Popen[bytes]
    urls: dict[str, str]


@contextlib.contextmanager
def both_running(repository: Path, logs: Path) -> Iterator[tuple[Server, Server]]:
    """Ours and the reference server on one repository, their logs in the directory `logs`.

    Raises:
      FetchError: one did not start.
    """
    ours_command = [str(ROOT / ".venv" / "bin" / "python"), "-m", "tritrio"]
    ours_command.append(f"--model-repository={repository}")
    theirs_command, theirs_environment = server_command(str(repository), [])
    with (
        running(ours_command, dict(os.environ), logs / "ours.log") as ours,
        running(theirs_command, theirs_environment, logs / "theirs.log") as theirs,
    ):
        yield ours, theirs


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[Server]:
    """A server process on free loopback ports, ready; stopped on leaving."""
    ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
    flags = [f"--{name}-port={port}" for name, port in ports.items()]
    flags += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, *flags],
            cwd=log.parent,  # models import from the working directory; nothing lies in this one
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until_ready(process, ports["http"], log)
        yield Server(process, {name: f"127.0.0.1:{port}" for name, port in ports.items()})
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Ask for readiness until it is given.

    Raises:
      FetchError: the process ended, or was not ready in time.
    """
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == http.client.OK:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    state = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
    raise FetchError(f"{process.args!r} {state}; its log ends:\n{log.read_text()[-2000:]}")


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def machine() -> str:
    """The processor, the cores this process may use, and the Python that runs our server."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                processor = value.strip()
    python = subprocess.run(
        [str(ROOT / ".venv" / "bin" / "python"), "--version"],
        check=True,
        capture_output=True,
        text=True,
    )
    return f"{processor}, {len(os.sched_getaffinity(0))} cores, {python.stdout.strip()}"


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
