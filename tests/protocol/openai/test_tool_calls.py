"""Calls of tools in the text of answers, however it is cut."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from tritrio.protocol.openai import tool_calls
from tritrio.protocol.openai.generation import ToolUse
from tritrio.protocol.openai.tool_calls import CallPiece, Words, make_reader

ROME = '{"town": "Rome"}'
CALL = f'{{"name": "weather", "arguments": {ROME}}}'
ONE = [("weather", ROME)]


def read(parser: str, pieces: Iterable[str], use: ToolUse = ToolUse.AUTO) -> tuple[str, Any]:
    """The text and the calls of an answer that comes in pieces."""
    numbers = count()
    reader = make_reader(use, "weather", parser, lambda: f"id{next(numbers)}")
    found = [each for piece in pieces for each in reader.push(piece)] + reader.finish()
    words = "".join(each.text for each in found if isinstance(each, Words))
    calls: list[list[str]] = []
    for each in found:
        if not isinstance(each, CallPiece):
            continue
        if each.id is None:
            calls[each.index][1] += each.arguments
        else:
            assert (each.index, each.id) == (len(calls), f"id{len(calls)}")
            assert each.name is not None
            calls.append([each.name, each.arguments])
    return words, [tuple(call) for call in calls]


CASES = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", ONE),
    ("hermes", f"Sure. <tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\n", "Sure.",
     ONE * 2),
    ("hermes", f"<tool_call>{CALL}", "", ONE),
    ("hermes", f"<tool_call>{CALL}</tool_call> done", " done", ONE),
    ("hermes", "a < b <tool", "a < b <tool", []),
    ("hermes", "  spaced \n", "  spaced \n", []),
    ("hermes", "<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", []),
    ("hermes", "<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    ("hermes", "<tool_call>" + "[" * 20_000, "<tool_call>" + "[" * 20_000, []),
    ("hermes", '<tool_call>{"name": "weather"}</tool_call>', "", [("weather", "{}")]),
    ("llama3_json", f"\n{CALL}", "", ONE),
    ("llama3_json", f"{CALL}; {CALL}", "", ONE * 2),
    ("llama3_json", '{"name": "weather", "parameters": {}}', "", [("weather", "{}")]),
    ("llama3_json", "{not a call", "{not a call", []),
    ("llama3_json", f"Here: {CALL}", f"Here: {CALL}", []),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", "", ONE * 2),
    ("mistral", f"[TOOL_CALLS]weather{ROME}[TOOL_CALLS]weather[ARGS]{ROME}", "", ONE * 2),
    ("mistral", "[TOOL_CALLS]?", "[TOOL_CALLS]?", []),
    ("", f"<tool_call>{CALL}</tool_call>", f"<tool_call>{CALL}</tool_call>", []),
]  # fmt: skip


@pytest.mark.parametrize(("parser", "text", "words", "calls"), CASES)
def test_calls_are_found_however_the_text_is_cut(
    parser: str, text: str, words: str, calls: list[tuple[str, str]]
) -> None:
    assert read(parser, [text]) == (words, calls)
    if len(text) < 1000:
        assert read(parser, text) == (words, calls)
        chance = random.Random(text)
        for _ in range(20):
            cuts = sorted(chance.choices(range(len(text)), k=4))
            pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            assert read(parser, pieces) == (words, calls)


def test_text_is_passed_on_as_soon_as_it_cannot_be_a_call() -> None:
    reader = make_reader(ToolUse.AUTO, "", "hermes", str)
    assert reader.push("Hello <") == [Words("Hello")]
    assert reader.push("b") == [Words(" <b")]


def test_a_named_tool_gets_the_text_as_it_comes() -> None:
    assert read("", ['{"town"', ': "Rome"}'], ToolUse.NAMED) == ("", ONE)
    assert read("", [], ToolUse.NAMED) == ("", [("weather", "")])


def test_a_required_call_is_an_array() -> None:
    assert read("", f"[{CALL}, {CALL}]", ToolUse.REQUIRED) == ("", ONE * 2)
    assert read("", '[{"name"', ToolUse.REQUIRED) == ('[{"name"', [])  # cut short


def test_arguments_can_be_sent_whatever_they_escape() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"a": "\\ud800é"}}</tool_call>'
    (call,) = read("hermes", [text])[1]
    assert call[1].encode() == '{"a": "?é"}'.encode()


def test_a_call_without_end_becomes_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "CALLS_CHARS_MAX", 50)
    text = "<tool_call>" + "x" * 60
    reader = make_reader(ToolUse.AUTO, "", "hermes", str)
    assert reader.push(text) == [Words(text)]
    assert reader.push("</tool_call>") == [Words("</tool_call>")]
