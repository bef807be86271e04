"""Reads calls of tools out of the text of an answer, as it comes.

Models write calls in their own ways, so each way has a reader. What looks like a call and is none
stays text: nothing of an answer is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, final

from .generation import ToolUse

PARSERS: Final = ("hermes", "llama3_json", "mistral")
"""The ways that are known: tags around JSON (Hermes, Qwen, SmolLM2), bare JSON (Llama 3), and a
word in front of JSON (Mistral)."""
CALLS_CHARS_MAX: Final = 1024 * 1024
"""Characters of one call that are kept until it is complete; beyond that it is text. A model that
generates as much has not got to the point."""

CALL_BEGIN: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
CALLS_WORD: Final = "[TOOL_CALLS]"

MakeId: TypeAlias = Callable[[], str]
"""Makes the id of a call."""


@dataclass(frozen=True, slots=True)
class Words:
    """A piece of the text of an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A call of a tool, or a further piece of its arguments.

    Attributes:
      index: Which call of the answer it is.
      arguments: JSON, or a piece of it.
      id: The call's id, in its first piece.
      name: The tool's, likewise.
    """

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


Piece: TypeAlias = Words | CallPiece


class AnswerReader(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Piece]:
        """Take the next piece of text."""

    def finish(self) -> list[Piece]:
        """Take the end."""


def make_reader(use: ToolUse, tool_name: str, parser: str, make_id: MakeId) -> AnswerReader:
    """Return what reads one answer.

    Args:
      use: How tools are to be used.
      tool_name: The only tool that may be called, if it is said.
      parser: One of `PARSERS`, or "" for none.
      make_id: Makes ids of calls.
    """
    if use is ToolUse.NAMED:
        return _NamedReader(tool_name, make_id)
    if use is ToolUse.REQUIRED:
        return _Reader(_WHOLE, make_id)
    if use is ToolUse.AUTO and parser:
        return _Reader(_FORMS[parser], make_id)
    return _TextReader()


@final
class _TextReader:
    def push(self, text: str) -> list[Piece]:
        return [Words(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


@final
class _NamedReader:
    """The text is the arguments of the one tool."""

    def __init__(self, name: str, make_id: MakeId) -> None:
        self._name = name
        self._make_id = make_id
        self._begun = False

    def push(self, text: str) -> list[Piece]:
        if self._begun:
            return [CallPiece(0, text)] if text else []
        self._begun = True
        return [CallPiece(0, text, self._make_id(), self._name)]

    def finish(self) -> list[Piece]:
        return [] if self._begun else self.push("")


def shows_special_tokens(parser: str) -> dict[str, Any]:
    """Return the sampling parameter without which a parser would not see where calls begin.

    Mistral's word in front of calls is a special token.
    """
    return {"skip_special_tokens": False} if parser == "mistral" else {}


@dataclass(frozen=True, slots=True)
class _Form:
    """A way to write calls.

    Attributes:
      begin: What calls begin with.
      end: What ends one; "" for the end of the answer.
      parse: Returns the calls between both; raises ValueError if it is something else.
      only_first: Whether nothing but blanks may stand in front of `begin`.
    """

    begin: str
    end: str
    parse: Callable[[str], list[tuple[str, str]]]
    only_first: bool = False


@final
class _Reader:
    """Tells text from calls of one form.

    Blanks are held back until text follows, so that those around calls are not part of the answer.
    """

    def __init__(self, form: _Form, make_id: MakeId) -> None:
        self._form = form
        self._make_id = make_id
        self._held = ""
        self._looked = 0  # characters of `_held` that hold no `end`
        self._inside = False
        self._text_only = False
        self._calls = 0
        self._words = False

    def push(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._inside:
            self._take_calls(self._held, "", pieces)
        elif self._held.strip() or not self._calls:
            self._say(self._held, pieces)
        self._held = ""
        return pieces

    def _step(self, pieces: list[Piece]) -> bool:
        """Make one step; False if more text is needed."""
        if self._inside:
            return self._step_inside(pieces)
        form, held = self._form, self._held
        place = -1 if self._text_only else held.find(form.begin)
        if form.only_first and place >= 0 and (self._words or held[:place].strip()):
            self._text_only, place = True, -1
        if place < 0:
            kept = "" if self._text_only else _undecided(held, form.begin)
            said = held[: len(held) - len(kept)]
            if said:
                self._say(said, pieces)
                self._text_only = self._text_only or form.only_first
            self._held = kept
            return False
        if held[:place].strip():
            self._say(held[:place].rstrip(), pieces)
        self._held, self._inside, self._looked = held[place + len(form.begin) :], True, 0
        return True

    def _step_inside(self, pieces: list[Piece]) -> bool:
        end, held = self._form.end, self._held
        place = held.find(end, self._looked) if end else -1
        if place < 0:
            self._looked = max(0, len(held) - len(end))
            if len(held) > CALLS_CHARS_MAX:
                self._text_only, self._inside, self._held = True, False, ""
                self._say(self._form.begin + held, pieces)
            return False
        self._take_calls(held[:place], end, pieces)
        self._held, self._inside = held[place + len(end) :], False
        return True

    def _take_calls(self, text: str, end: str, pieces: list[Piece]) -> None:
        try:
            calls = self._form.parse(text)
        except (ValueError, RecursionError):
            self._say(f"{self._form.begin}{text}{end}", pieces)
            return
        for name, arguments in calls:
            pieces.append(CallPiece(self._calls, arguments, self._make_id(), name))
            self._calls += 1

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if text:
            self._words = True
            pieces.append(Words(text))


def _undecided(text: str, mark: str) -> str:
    """Return the end of a text that may be blanks in front of a mark, or the beginning of one."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            break
    else:
        size = 0
    return text[len(text[: len(text) - size].rstrip()) :]


def _call(document: Any) -> tuple[str, str]:
    """Return the name and the arguments, as JSON, of one call.

    Raises:
      ValueError: it is none.
    """
    if not isinstance(document, dict):
        raise ValueError(document)  # noqa: TRY004 - one kind of fault for all that is no call
    name = document.get("name")
    arguments = document.get("arguments", document.get("parameters", {}))
    if not isinstance(name, str) or not name or not isinstance(arguments, (dict, str)):
        raise ValueError(document)
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return _encodable(name), _encodable(arguments)


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which escapes in JSON may make."""
    return text.encode("utf-8", "replace").decode()


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents of a text, which blanks and semicolons may separate."""
    decoder = json.JSONDecoder()
    place = 0
    while place < len(text):
        if text[place].isspace() or text[place] == ";":
            place += 1
            continue
        document, place = decoder.raw_decode(text, place)
        yield document


def _parse_one(text: str) -> list[tuple[str, str]]:
    return [_call(json.loads(text))]


def _parse_bare(text: str) -> list[tuple[str, str]]:
    """Read what follows a first brace, which is the mark."""
    return [_call(document) for document in _documents("{" + text)]


def _parse_array(text: str) -> list[tuple[str, str]]:
    calls = json.loads(text)
    if not isinstance(calls, list):
        raise ValueError(text)  # noqa: TRY004 - one kind of fault for all that is no call
    return [_call(each) for each in calls]


def _parse_mistral(text: str) -> list[tuple[str, str]]:
    """Read an array of calls, or names with their arguments behind them."""
    text = text.strip()
    if not text or text[0] == "[":
        return _parse_array(text)
    calls = []
    for each in text.split(CALLS_WORD):
        name, brace, rest = each.partition("{")
        arguments = json.loads(brace + rest)
        calls.append(_call({"name": name.removesuffix("[ARGS]").strip(), "arguments": arguments}))
    return calls


_FORMS: Final = {
    "hermes": _Form(CALL_BEGIN, CALL_END, _parse_one),
    "llama3_json": _Form("{", "", _parse_bare, only_first=True),
    "mistral": _Form(CALLS_WORD, "", _parse_mistral),
}
_WHOLE: Final = _Form("[", "", lambda text: _parse_array("[" + text), only_first=True)
