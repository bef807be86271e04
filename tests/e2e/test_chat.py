"""The chat in a terminal: Ctrl-C stops an answer, and the server sees it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.chat_server import (
    LIMIT_S,
    chat_server,
    end_event,
    send_document,
    streams,
    text_event,
)
from tests.support.server_process import POLL_S, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@dataclass
class Terminal:
    """A chat that runs in a terminal."""

    process: subprocess.Popen[bytes]
    fd: int
    shown: bytes = b""

    def expect(self, text: bytes) -> bytes:
        """Wait until a text is shown; what was shown up to it."""
        while text not in self.shown:
            ready, _, _ = select.select([self.fd], [], [], LIMIT_S)
            assert ready, f"expected {text!r}, got {self.shown!r}"
            self.shown += os.read(self.fd, 4096)
        before, _, self.shown = self.shown.partition(text)
        return before

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def interrupt(self) -> None:
        """What Ctrl-C does, once it waits: Python may miss a signal just before it begins to."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        for _ in range(round(LIMIT_S / POLL_S)):
            if stat.read_text().rpartition(")")[2].split()[0] == "S":
                break
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_S)
        self.process.send_signal(signal.SIGINT)


@contextmanager
def terminal(cwd: Path, *arguments: str) -> Iterator[Terminal]:
    fd, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tritrio", "chat", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "dumb"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    try:
        yield Terminal(process, fd)
    finally:
        process.kill()
        process.wait()
        os.close(fd)


def test_ctrl_c_stops_an_answer_and_then_leaves(tmp_path: Path) -> None:
    with chat_server(streams()) as server, terminal(tmp_path, "--url", server.url) as shown:
        server.respond = lambda handler: server.until_left(handler, ["Once", " upon\x1b[2J"])
        shown.expect(b"Chatting with story")
        shown.expect(b"> ")
        shown.type(b"Tell!\n")
        shown.expect(b"Once upon[2J")
        shown.interrupt()
        shown.expect(b"(stopped)")
        assert server.left.wait(LIMIT_S)

        server.respond = streams(text_event("a time."), b"data: [DONE]\n\n")
        shown.expect(b"> ")
        shown.type(b"Go on\n")
        shown.expect(b"a time.")
        assert [message["content"] for message in server.bodies[1]["messages"]] == [
            "Tell!",
            "Once upon\x1b[2J",
            "Go on",
        ]

        shown.expect(b"> ")
        shown.interrupt()
        assert shown.process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("leaves", [b"\x04", b"/quit\n"])
def test_a_failure_does_not_end_the_chat(tmp_path: Path, leaves: bytes) -> None:
    failure = b'data: {"error": {"message": "out of memory"}}\n\n'
    with (
        chat_server(streams(failure)) as server,
        terminal(tmp_path, "--url", server.url, "--model", "m") as shown,
    ):
        shown.expect(b"> ")
        shown.type(b"Tell!\n")
        shown.expect(b"tritrio chat: out of memory")
        server.respond = streams(text_event("Once."), b"data: [DONE]\n\n")
        shown.expect(b"> ")
        shown.type(b"Again\n")
        shown.expect(b"Once.")
        assert [message["content"] for message in server.bodies[1]["messages"]] == ["Again"]
        shown.expect(b"> ")
        shown.type(b"/reset\n")
        shown.expect(b"> ")
        shown.type(b"Anew\n")
        shown.expect(b"Once.")
        assert [message["content"] for message in server.bodies[2]["messages"]] == ["Anew"]
        shown.expect(b"> ")
        shown.type(leaves)
        assert shown.process.wait(LIMIT_S) == 0


def test_commands_are_not_sent_and_what_is_too_much_is_said(tmp_path: Path) -> None:
    cut = streams(text_event("Once"), end_event("length"), b"data: [DONE]\n\n")
    error = {"error": {"message": "too many tokens", "code": "context_length_exceeded"}}
    with (
        chat_server(cut) as server,
        terminal(tmp_path, "--url", server.url) as shown,
    ):
        for command in (b"/help\n", b"/clear\n"):
            shown.expect(b"> ")
            shown.type(command)
            shown.expect(b"/reset begins anew, /quit leaves")
        shown.expect(b"> ")
        shown.type(b" /etc?\n")
        shown.expect(b"(the answer was cut")
        assert [body["messages"][0]["content"] for body in server.bodies] == ["/etc?"]
        server.respond = lambda handler: send_document(handler, 400, error)
        shown.expect(b"> ")
        shown.type(b"On\n")
        shown.expect(b"too many tokens; /reset begins anew")
