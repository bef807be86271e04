"""How the command line writes the log: formats, switches, and a thread that waits for the file.

A program that embeds the server configures `logging` itself, and gets the same records. Source of
the formats: the log of Triton.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, final

import orjson

from .actors.log_control import CallLog
from .protocol.log_settings import LOG_FIELDS, LogSettings

QUEUED_LINES_MAX: Final = 10_000
"""Lines that wait for a slow file: what a busy server writes in seconds at its most talkative. More
are dropped and counted, since a server must not stop for its log."""

FLUSH_S: Final = 2.0
"""What the last lines have at the end, where nobody may read the other end of a pipe any more."""

ESCAPE_VARIABLE: Final = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
"""Environment variable; "0" has messages written as they are."""

_STDERR: Final = 2
_UNSEEN: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is and terminals or readers obey: more control characters, more ends of
lines, and changes of the direction of text."""
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_ROOT: Final = logging.getLogger()
_SERVER: Final = logging.getLogger("tritrio")


@final
class Logs:
    """The log of one server and what its clients may change of it: a `LogControl`.

    Args:
      settings: What holds at the start.

    Attributes:
      calls: Where answered calls are logged.
    """

    def __init__(self, settings: LogSettings) -> None:
        self.calls = CallLog()
        self._writes = False
        self.settings = settings
        self.update(settings)

    def update(self, settings: LogSettings) -> None:
        """Let these settings hold from the next line on; the file stays what it is."""
        self.settings = replace(settings, file=self.settings.file)
        self.calls.enabled = settings.verbose_level > 0
        if self._writes:
            _SERVER.setLevel(logging.DEBUG if self.calls.enabled else logging.INFO)

    @contextmanager
    def written(self) -> Iterator[None]:
        """Write what is logged within the block, to the file or to standard error.

        Raises:
          OSError: the file cannot be opened.
        """
        path = self.settings.file
        target = os.open(path, _APPEND, 0o666) if path else _STDERR
        lines: queue.Queue[logging.LogRecord | None] = queue.Queue(QUEUED_LINES_MAX)
        escapes = os.environ.get(ESCAPE_VARIABLE) != "0"
        listener = _Listener(lines, target, LineFormatter(self, escapes=escapes))
        handler = _Lines(lines, self)
        levels = _ROOT.level, _SERVER.level
        _ROOT.addHandler(handler)
        _ROOT.setLevel(logging.INFO)
        self._writes = True
        self.update(self.settings)
        listener.start()
        try:
            yield
        finally:
            self._writes = False
            _ROOT.removeHandler(handler)
            _ROOT.setLevel(levels[0])
            _SERVER.setLevel(levels[1])
            if listener.stop_within(FLUSH_S) and path:
                os.close(target)

    def wants(self, level: int) -> bool:
        """Whether a line of this level is written: each kind has a switch of its own."""
        settings = self.settings
        if level >= logging.ERROR:
            return settings.error
        if level >= logging.WARNING:
            return settings.warning
        return settings.info if level >= logging.INFO else settings.verbose_level > 0


@final
class _Lines(logging.handlers.QueueHandler):
    """Queues what is to be written, and never waits."""

    def __init__(self, lines: queue.Queue[logging.LogRecord | None], logs: Logs) -> None:
        super().__init__(lines)
        self._logs = logs
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> Any:
        """Leave out what is switched off."""
        return self._logs.wants(record.levelno) and super().filter(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Turn what belongs to others into text, which stays what it is."""
        record = copy(record)
        record.msg = record.getMessage()
        record.args = None
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record if there is room; say later how many found none."""
        try:
            if self._dropped:
                text = f"{self._dropped} lines of the log were dropped: its file was too slow"
                self.queue.put_nowait(
                    _SERVER.makeRecord(_SERVER.name, logging.WARNING, __file__, 0, text, (), None)
                )
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1


@final
class _Listener(logging.handlers.QueueListener):
    """The thread that writes; it has no server to wait for, and the server does not wait for it.

    It writes to a descriptor and is no handler: both a buffer and a handler have a lock, which a
    thread that is left behind would hold, and the exit of the process would wait for it.
    """

    def __init__(
        self,
        lines: queue.Queue[logging.LogRecord | None],
        target: int,
        formatter: logging.Formatter,
    ) -> None:
        super().__init__(lines)
        self._lines = lines
        self._target = target
        self._formatter = formatter

    def handle(self, record: logging.LogRecord) -> None:
        """Write one record; a file that cannot be written loses it."""
        line = self._formatter.format(record)
        rest = memoryview(line.encode(errors="backslashreplace") + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._target, rest) :]
        except OSError:
            return  # there is nowhere left to say so

    def stop_within(self, limit_s: float) -> bool:
        """Write what is queued, for so long; False if that was not enough.

        Then the rest is dropped, and the thread ends once its file takes the line it is at.
        """
        thread = self._thread
        assert thread is not None
        try:
            self._lines.put(None, timeout=limit_s)
        except queue.Full:
            with suppress(queue.Empty):
                while True:
                    self._lines.get_nowait()
            self._lines.put(None)
        thread.join(limit_s)
        return not thread.is_alive()


@final
class LineFormatter(logging.Formatter):
    """Makes the lines, in the format that the log's settings ask for.

    A line is its message, as a JSON string so that no message can pass for several lines. Tables
    and tracebacks follow on lines of their own, which are indented or begin with a `+` or `|`.

    Args:
      logs: Whose settings hold.
      escapes: Whether messages are escaped and quoted.
    """

    def __init__(self, logs: Logs, *, escapes: bool) -> None:
        super().__init__()
        self._logs = logs
        self._escapes = escapes

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line, or lines, without the last line end."""
        message = record.getMessage()
        if self._logs.settings.format == "json":
            return _json_line(record, message)
        request_id = getattr(record, "request_id", "")
        if request_id:
            message = f"[request id: {request_id}] {message}"
        table = ""
        if getattr(record, "table", False):
            message, _, table = message.partition("\n")
        if self._escapes:
            message = _quoted(message)
        lines = [f"{self._heading(record)}] {message}"]
        if table:
            lines.append(table)
        lines += [f"    {printable(line)}" for line in (record.exc_text or "").splitlines()]
        return "\n".join(lines)

    def _heading(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        place = f"{record.process} {record.filename if record.lineno else record.name}"
        letter = _letter(record.levelno)
        if self._logs.settings.format == "ISO8601":
            return f"{time:%Y-%m-%dT%H:%M:%SZ} {letter} {place}:{record.lineno}"
        return f"{letter}{time:%m%d %H:%M:%S.%f} {place}:{record.lineno}"


def _json_line(record: logging.LogRecord, message: str) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    line: dict[str, str] = {
        "time": f"{time:%Y-%m-%dT%H:%M:%S.%fZ}",
        "level": "VERBOSE" if record.levelno < logging.INFO else record.levelname,
        "logger": record.name,
        "message": f"{message}\n{record.exc_text}" if record.exc_text else message,
    }
    for name in LOG_FIELDS:
        value = getattr(record, name, "")
        if value:
            line[name] = str(value)
    try:
        return _all_seen(orjson.dumps(line).decode())
    except TypeError:  # text that is no UTF-8, of a path or a model
        return json.dumps(line)


def _letter(level: int) -> str:
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"


def printable(text: str) -> str:
    """Return a text in which nothing ends a line or moves a cursor."""
    return _quoted(text)[1:-1].replace('\\"', '"')


def _quoted(text: str) -> str:
    return _all_seen(json.dumps(text, ensure_ascii=False))


def _all_seen(quoted: str) -> str:
    """Escape in a JSON text what JSON may leave as it is."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
