"""What a chat completion streams: server-sent events, and the text in them.

Source: the event stream format of HTML, and OpenAI's `chat.completion.chunk`.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

DONE: Final = "[DONE]"
"""The data of the last event."""

CUT_REASON: Final = "length"
"""Why an answer ends that would go on."""

TOO_LONG_CODE: Final = "context_length_exceeded"
"""What servers call it that a conversation is too long for the model."""

MESSAGE_CHARS_MAX: Final = 500
"""Of a message of the server; more than that is no sentence, but perhaps a page."""


class ChatError(Exception):
    """There is no answer, or no more of it; the message is one line for a person.

    Attributes:
      code: What the server calls it; "" if it says nothing.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def event_data(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of each event that is complete, in whole characters.

    Args:
      lines: Each with its end.
    """
    data: list[bytes] = []
    for ended in lines:
        line = ended.rstrip(b"\r\n")
        if not line:
            if data:
                yield b"\n".join(data).decode("utf-8", "replace")
            data = []
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))


def answer_text(events: Iterable[str]) -> Generator[str, None, bool]:
    """Yield the text of an answer as it comes, from the data of its events.

    They are taken to their end, so that the server does not find that its client left.

    Returns:
      Whether the answer was cut: it had as many tokens as it may have.

    Raises:
      ChatError: the server says that it failed, ends too early, or says what is no part of an
        answer.
    """
    done = cut = False
    for data in events:
        done = done or data == DONE
        if done:
            continue
        text, reason = _text(data)
        cut = cut or reason == CUT_REASON
        if text:
            yield text
    if not done:
        raise ChatError("the server went away before the answer was complete")
    return cut


def _text(data: str) -> tuple[str, object]:
    """Return the text of one event, and why the answer ends with it."""
    try:
        chunk = json.loads(data)
    except ValueError:
        raise ChatError(f"expected an answer in JSON, got {one_line(data)}") from None
    if isinstance(chunk, dict) and "error" in chunk:
        message = error_message(chunk) or "the server failed without saying why"
        raise ChatError(message, error_code(chunk))
    try:
        choices = chunk["choices"]
        if not choices:  # counts of tokens
            return "", None
        text = choices[0]["delta"].get("content")
        reason = choices[0].get("finish_reason")
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ChatError(f"expected a part of an answer, got {one_line(data)}") from None
    return text if isinstance(text, str) else "", reason


def error_message(document: Any) -> str:
    """Return what a JSON document says went wrong, on one line, or ""."""
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(message) if isinstance(message, str) else ""


def error_code(document: Any) -> str:
    """Return what a JSON document calls what went wrong, or ""."""
    error = document.get("error") if isinstance(document, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else ""


def one_line(text: str) -> str:
    """Return text of a server on one line, cut to `MESSAGE_CHARS_MAX`."""
    line = " ".join(printable(text).split())
    return line if len(line) <= MESSAGE_CHARS_MAX else line[:MESSAGE_CHARS_MAX] + "…"


def printable(text: str) -> str:
    """Return a text without what would control a terminal: only its lines and tabs are left."""
    return text.translate(_CONTROLS)


_CONTROLS: Final = dict.fromkeys(
    code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
)
