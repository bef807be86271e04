"""What of the log is written where, and that nobody waits for it."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tritrio import logs as logs_module
from tritrio.logs import Logs
from tritrio.protocol.log_settings import LogSettings

LOG = logging.getLogger("tritrio.test")


@pytest.fixture(autouse=True)
def _plain_logging() -> Iterator[None]:
    levels = logging.getLogger().level, logging.getLogger("tritrio").level
    yield
    assert (logging.getLogger().level, logging.getLogger("tritrio").level) == levels


def messages(path: Path) -> list[str]:
    return [line.partition('] "')[2][:-1] for line in path.read_text().splitlines()]


def log_one_of_each() -> None:
    LOG.debug("verbose")
    LOG.info("info")
    LOG.warning("warning")
    LOG.error("error")


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({}, ["info", "warning", "error"]),
        ({"verbose_level": 1}, ["verbose", "info", "warning", "error"]),
        ({"info": False}, ["warning", "error"]),
        ({"warning": False}, ["info", "error"]),
        ({"error": False}, ["info", "warning"]),
        ({"info": False, "warning": False, "error": False, "verbose_level": 3}, ["verbose"]),
    ],
)
def test_each_kind_of_line_has_a_switch_of_its_own(
    settings: dict[str, int], written: list[str], tmp_path: Path
) -> None:
    start = LogSettings(file=str(tmp_path / "log"))
    changed = dataclasses.replace(start, **settings)  # type: ignore[arg-type]
    logs = Logs(changed)
    with logs.written():
        log_one_of_each()
        logs.update(start)
        log_one_of_each()
    assert messages(tmp_path / "log") == [*written, "info", "warning", "error"]


def test_a_change_of_the_format_holds_for_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs = Logs(LogSettings(file=str(path)))
    with logs.written():
        LOG.info("a")
    with logs.written():  # appends
        logs.update(LogSettings(format="json"))
        LOG.info("b")
    first, second = path.read_text().splitlines()
    assert first.startswith("I")
    assert second.startswith('{"time":')
    assert logs.settings == LogSettings(file=str(path), format="json")  # the file stays


@pytest.mark.parametrize(("level", "enabled"), [(0, False), (1, True), (2, True)])
def test_calls_are_logged_from_verbose_level_1_on(level: int, enabled: bool) -> None:
    settings = LogSettings(verbose_level=level)
    assert Logs(settings).calls.enabled is enabled
    changed = Logs(LogSettings(verbose_level=1 - level % 2))
    changed.update(settings)
    assert changed.calls.enabled is enabled


def test_escaping_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")
    path = tmp_path / "log"
    with Logs(LogSettings(file=str(path))).written():
        LOG.info('a "b"')
    assert path.read_text().endswith('] a "b"\n')


def test_what_is_logged_is_what_it_was_when_it_was_logged(tmp_path: Path) -> None:
    things = ["a"]
    path = tmp_path / "log"
    with Logs(LogSettings(file=str(path))).written():
        LOG.info("%s \udce9", things)
        things.append("b")
        try:
            raise ValueError("x")
        except ValueError:
            LOG.exception("failed")
    lines = path.read_text().splitlines()
    assert lines[0].endswith("\"['a'] \\udce9\"")
    assert lines[1].endswith('] "failed"')
    assert lines[-1] == "    ValueError: x"


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), Logs(LogSettings(file=str(tmp_path / "a/b"))).written():
        pass


def test_nobody_waits_for_a_file_that_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "QUEUED_LINES_MAX", 10)
    monkeypatch.setattr(logs_module, "FLUSH_S", 0.05)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    text = "x" * 9000
    with Logs(LogSettings(file=str(path))).written():
        logged = 50
        for _ in range(logged):  # more than a pipe and the queue hold
            LOG.info(text)
        data = b""
        while b"were dropped" not in data:  # now it is read
            try:
                data += os.read(reader, 1 << 20)
            except BlockingIOError:
                continue
            LOG.info("again")
            logged += 1
        LOG.info("the end")
    os.close(reader)
    lines = data.decode().splitlines()
    assert lines[0].endswith(f'"{text}"')
    counts = [int(line.split('"')[1].split()[0]) for line in lines if "were dropped" in line]
    assert 0 < counts[0] <= sum(counts) < logged


def test_an_end_with_a_full_pipe_comes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_module, "QUEUED_LINES_MAX", 10)
    monkeypatch.setattr(logs_module, "FLUSH_S", 0.05)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:  # until it is full
            os.write(writer, bytes(4096))
    with Logs(LogSettings(file=str(path))).written():
        for _ in range(50):
            LOG.info("x" * 9000)
    os.close(writer)
    os.close(reader)  # lets the thread go
