"""JSON documents from and to clients.

orjson reads what is plain JSON. What it refuses, and what may hold a member twice, is read again
by the standard library, which also takes the literals NaN, Infinity and -Infinity that the
inference protocol allows, and says where a fault is.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

from .errors import RequestError, invalid_argument
from .wording import quoted

NESTING_MAX: Final = 100
"""Levels of arrays and objects a document may have; what Triton allows for tensor data."""
EXCERPT_BYTES: Final = 24
"""Bytes shown on each side of a fault."""

_SHORT_INFINITY = re.compile(r'"(?:[^"\\]|\\.)*"|\bInf\b')
"""A string, to be left alone, or Triton's other spelling of Infinity."""


def parse_json(text: bytes, what: str) -> Any:
    """Return the document in `text`, integers exact to 64 bits.

    Args:
      text: UTF-8 without a byte order mark.
      what: What the document is, for messages: "the request".

    Raises:
      RequestError: INVALID_ARG; not one well-formed document, or a member twice in an object.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_exactly(text, what)
    if text.count(b":") != _member_count(document):
        return _parse_exactly(text, what)  # colons in strings, deep objects, or a member twice
    return document


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """Return the object in `text`; see `parse_json`."""
    document = parse_json(text, what)
    if type(document) is not dict:
        raise _fault(what, "expected a JSON object", text, 0)
    return document


def dump_json(value: object) -> bytes:
    """Return compact JSON in ASCII; NaN and infinities are bare literals."""
    return json.dumps(value, separators=(",", ":")).encode()


def _member_count(document: Any) -> int:
    """Return the members of the objects that are not below a list in a list's object."""
    count = 0
    pending = [document]
    root = True
    while pending:
        node = pending.pop()
        if type(node) is dict:
            count += len(node)
            for value in node.values():
                if type(value) is dict:
                    pending.append(value)
                elif root and type(value) is list:
                    pending += [item for item in value if type(item) is dict]
        root = False
    return count


def _parse_exactly(text: bytes, what: str) -> Any:
    try:
        decoded = text.decode()
        if b"Inf" in text:
            decoded = _SHORT_INFINITY.sub(_spelled_out, decoded)
        document = json.loads(
            decoded, object_pairs_hook=_unique_members, parse_int=_integer_of_64_bits
        )
        if b"\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()  # finds lone surrogates
    except UnicodeDecodeError as fault:
        raise _fault(what, "expected UTF-8", text, fault.start) from None
    except json.JSONDecodeError as fault:
        position = len(fault.doc[: fault.pos].encode())
        raise _fault(what, fault.msg.lower(), text, position) from None
    except UnicodeEncodeError:
        raise invalid_argument(
            f"{what} is not valid JSON: a \\u escape is a lone surrogate, which no text may hold"
        ) from None
    except RecursionError:
        raise invalid_argument(
            f"{what} is not acceptable JSON: arrays and objects may be nested {NESTING_MAX} deep"
        ) from None
    except ValueError:
        raise invalid_argument(f"{what} is not acceptable JSON: a number is too long") from None
    return document


def _integer_of_64_bits(digits: str) -> int | float:
    """Return what orjson makes of an integer: beyond 64 bits it is a double, if it can be one."""
    value = int(digits)
    if -(2**63) <= value < 2**64:
        return value
    try:
        return float(value)
    except OverflowError:
        return value  # which orjson refuses, and so does whoever uses it


def _spelled_out(found: re.Match[str]) -> str:
    return "Infinity" if found[0] == "Inf" else found[0]


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise invalid_argument(
                    f"a JSON object has the member {quoted(name)} more than once"
                )
            seen.add(name)
    return members


def _fault(what: str, problem: str, text: bytes, position: int) -> RequestError:
    if not text:
        return invalid_argument(f"{what} is not valid JSON: expected a document, got no bytes")
    excerpt = text[max(0, position - EXCERPT_BYTES) : position + EXCERPT_BYTES]
    return invalid_argument(
        f"{what} is not valid JSON: {problem} at byte {position} of {len(text)}, near "
        f"{excerpt.decode(errors='replace')!r}"
    )
