"""How lines of the log look."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from tritrio.logs import LineFormatter, Logs
from tritrio.progress import table
from tritrio.protocol.log_settings import LogSettings

CREATED_S = 1_796_011_202.171302
"""2026-11-30 04:00:02.171302 in UTC."""


def record(message: str, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("tritrio.part", level, "/a/file.py", 12, "%s", (message,), None)
    made.created = CREATED_S
    made.process = 345
    made.__dict__.update(extra)
    return made


def line(made: logging.LogRecord, form: str = "default", *, escapes: bool = True) -> str:
    return LineFormatter(Logs(LogSettings(format=form)), escapes=escapes).format(made)


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (logging.DEBUG, "I"),
        (logging.INFO, "I"),
        (logging.WARNING, "W"),
        (logging.ERROR, "E"),
        (logging.CRITICAL, "E"),
    ],
)
def test_the_formats_of_triton(level: int, letter: str) -> None:
    made = record("hello", level)
    assert line(made) == f'{letter}1130 04:00:02.171302 345 file.py:12] "hello"'
    assert line(made, "ISO8601") == f'2026-11-30T04:00:02Z {letter} 345 file.py:12] "hello"'


def test_messages_are_json_strings_so_that_none_looks_like_two_lines() -> None:
    made = record('a "b" \\ \n\x01 é')
    assert line(made).endswith('] "a \\"b\\" \\\\ \\n\\u0001 é"')
    assert line(made, escapes=False).endswith('] a "b" \\ \n\x01 é')


UNSEEN = "\x7f\x85\x9b\u2028\u2029\u202e\u2066"
"""Delete, next line, the beginning of a terminal's command, ends of lines, and turns of text."""
SEEN = "\\u007f\\u0085\\u009b\\u2028\\u2029\\u202e\\u2066"


@pytest.mark.parametrize("form", ["default", "ISO8601", "json"])
def test_no_message_and_no_id_ends_a_line_or_moves_a_cursor(form: str) -> None:
    text = line(record(f"é{UNSEEN}", request_id=UNSEEN), form)
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert text.count(SEEN) == 2
    assert f"é{SEEN}" in text
    if form == "json":
        assert json.loads(text)["message"] == f"é{UNSEEN}"


def test_no_cell_of_a_table_ends_a_line_or_moves_a_cursor() -> None:
    assert table("models", ("Model",), [(UNSEEN,)]).splitlines()[4:] == [
        f"| {SEEN} |",
        "+" + "-" * 44 + "+",
    ]


def test_a_line_about_a_request_begins_with_its_id() -> None:
    assert line(record("x", request_id="r7")).endswith('] "[request id: r7] x"')
    assert line(record("x", request_id="")).endswith('] "x"')


def test_json_is_an_object_a_line() -> None:
    made = record("a\nb", logging.DEBUG, request_id="r", model="m", reason="so")
    text = line(made, "json")
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "2026-11-30T04:00:02.171302Z",
        "level": "VERBOSE",
        "logger": "tritrio.part",
        "message": "a\nb",
        "request_id": "r",
        "model": "m",
        "reason": "so",
    }


def test_text_that_is_no_utf_8_is_logged_in_every_format() -> None:
    made = record("caf\udce9")
    assert json.loads(line(made, "json"))["message"] == "caf\udce9"
    assert line(made).endswith('"caf\udce9"')  # what writes it escapes it


def test_a_table_follows_its_line_and_its_cells_cannot_leave_it() -> None:
    text = table("models", ("Model", "Status"), [("a", "READY"), ("long", "x\ny | z")])
    assert line(record(text, table=True)).split("] ")[1].splitlines() == [
        '"models"',
        "+-------+----------+",
        "| Model | Status   |",
        "+-------+----------+",
        "| a     | READY    |",
        "| long  | x\\ny | z |",
        "+-------+----------+",
    ]
    assert json.loads(line(record(text, table=True), "json"))["message"] == text


def test_a_traceback_follows_its_line_indented() -> None:
    try:
        raise ValueError("bad\nE1130 forged")
    except ValueError:
        made = record("it failed", logging.ERROR)
        made.exc_text = logging.Formatter().formatException(sys.exc_info())
    first, *rest = line(made).splitlines()
    assert first.endswith('] "it failed"')
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-2:] == ["    ValueError: bad", "    E1130 forged"]


def test_a_record_without_a_place_names_its_logger() -> None:
    made = record("x")
    made.lineno = 0
    assert " 345 tritrio.part:0] " in line(made)
