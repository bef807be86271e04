"""The messages of a conversation, as chat templates take them.

Contents become text, and the arguments of earlier calls of tools become objects, since templates
print them in a way of their own.
Source: OpenAI's API reference, chat completions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from .errors import OpenAiError, wrong
from .fields import Fields, as_fields

MESSAGES_MAX: Final = 8192
"""Messages of one conversation; more than any context holds."""
PARTS_MAX: Final = 1024
"""Parts of the content of one message."""
CALLS_MAX: Final = 128
"""Calls of tools in one message, and tools of one request; what OpenAI's API allows."""

ECHOED: Final = ("annotations", "index", "parsed", "parsed_arguments")
"""Members without meaning for a template that answers of the assistant come back with: clients add
what they made of them, and streams number the calls."""

PART_SEPARATOR: Final = "\n"
"""Between the texts of a content that comes in parts; what templates know of parts differs."""


def take_messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the member `messages`, for a template.

    Raises:
      OpenAiError: names the message and what is wrong with it.
    """
    messages = fields.array("messages", MESSAGES_MAX)
    if not messages:
        raise fields.missing("messages", "an array of at least one message", messages)
    return [_message(as_fields(each, f"messages[{i}]")) for i, each in enumerate(messages)]


def _message(fields: Fields) -> dict[str, Any]:
    role = fields.one_of("role", *_ROLES)
    if role is None:
        raise fields.missing("role", f"one of the roles {', '.join(_ROLES)}")
    message = _ROLES[role](fields)
    name = fields.text("name")
    if name is not None:
        message["name"] = name
    fields.end()
    return message


def _instruction(fields: Fields) -> dict[str, Any]:
    return {"role": "system", "content": _content(fields, "text")}  # templates know no developer


def _question(fields: Fields) -> dict[str, Any]:
    return {"role": "user", "content": _content(fields, "text")}


def _answer(fields: Fields) -> dict[str, Any]:
    calls = fields.array("tool_calls", CALLS_MAX)
    refusal = fields.text("refusal")
    content = _optional_content(fields, "text", "refusal")
    if content is None:
        content = refusal
    if content is None and not calls:
        raise fields.missing("content", "a text, or 'tool_calls',")
    fields.ignore(*ECHOED)
    message: dict[str, Any] = {"role": "assistant", "content": content or ""}
    if calls:
        place = fields.name("tool_calls")
        message["tool_calls"] = [
            _call(as_fields(call, f"{place}[{index}]")) for index, call in enumerate(calls)
        ]
    return message


def _result(fields: Fields) -> dict[str, Any]:
    call_id = fields.required_text("tool_call_id")
    return {"role": "tool", "tool_call_id": call_id, "content": _content(fields, "text")}


_ROLES: Final[dict[str, Callable[[Fields], dict[str, Any]]]] = {
    "system": _instruction,
    "developer": _instruction,
    "user": _question,
    "assistant": _answer,
    "tool": _result,
}


def _call(fields: Fields) -> dict[str, Any]:
    call_id = fields.required_text("id")
    fields.one_of("type", "function")
    inner = as_fields(fields.take("function"), fields.name("function"))
    name = inner.required_text("name")
    arguments = inner.text("arguments") or "{}"
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise wrong(inner.name("arguments"), "a JSON object as a string", arguments)
    inner.ignore(*ECHOED)
    inner.end()
    fields.ignore(*ECHOED)
    fields.end()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": parsed}}


def _content(fields: Fields, *kinds: str) -> str:
    content = _optional_content(fields, *kinds)
    if content is None:
        raise fields.missing("content", "a string or an array of parts")
    return content


def _optional_content(fields: Fields, *kinds: str) -> str | None:
    """Return a content as text, which may be in parts of these kinds."""
    place = fields.name("content")
    value = fields.take("content")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not 1 <= len(value) <= PARTS_MAX:
        raise wrong(place, f"a string or an array of 1 to {PARTS_MAX} parts", value)
    return PART_SEPARATOR.join(
        [_part(as_fields(each, f"{place}[{i}]"), kinds) for i, each in enumerate(value)]
    )


def _part(fields: Fields, kinds: tuple[str, ...]) -> str:
    kind = fields.required_text("type")
    if kind not in kinds:
        raise OpenAiError(
            400,
            f"expected a part of type {' or '.join(kinds)} in '{fields.name('type')}', got "
            f"'{kind[:64]}': models here take nothing but text",
            param=fields.name("type"),
        )
    text = fields.text(kind)
    if text is None:
        raise fields.missing(kind, "a string")
    fields.end()
    return text
