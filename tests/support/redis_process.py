"""A real redis server on a free loopback port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server_process import HOST, POLL_S, ROOT

SCRIPT = ROOT / "scripts" / "redis-server"
START_LIMIT_S = 30.0


def missing_redis() -> str:
    """Why there is no redis server here; "" if there is one."""
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "--version"], check=False, capture_output=True, text=True
    )
    return "" if found.returncode == 0 else found.stderr.strip() or "redis-server does not run"


class RedisProcess:
    """One redis server; it keeps nothing on disk.

    Attributes:
      port: Its port, the same after each start.
    """

    def __init__(self, directory: Path, *flags: str) -> None:
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port: int = free.getsockname()[1]
        self._directory = directory
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, str(SCRIPT), "--port", str(self.port), "--bind", HOST]
        command += ["--save", "", "--daemonize", "no", *self._flags]
        with (self._directory / "redis.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        for _ in range(round(START_LIMIT_S / POLL_S)):
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            break
        raise AssertionError((self._directory / "redis.log").read_text())

    def stop(self) -> None:
        """End it; what it holds is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(START_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def freeze(self) -> None:
        """Let it hang: connections stay, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running_redis(directory: Path, *flags: str) -> Iterator[RedisProcess]:
    """A redis server that listens; whatever happens, no process is left in the end."""
    redis = RedisProcess(directory, *flags)
    redis.start()
    try:
        yield redis
    finally:
        redis.stop()
