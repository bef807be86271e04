"""The kinds of values that options take: how help shows them, and how they are read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from ..actors._rate_limit_policy import parse_rate_limit_resource
from ..protocol.errors import RequestError
from ..protocol.header_forwarding import header_forwarding

PORT_MAX: Final = 65535
INT32_MAX: Final = 2**31 - 1
"""What Triton's options hold at most; more is a slip of the hand."""

DIGITS_MAX: Final = 20
"""Leading zeros left out, one more than the largest number of any option has."""

_TRUE = {"true", "on", "1"}
_FALSE = {"false", "off", "0"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
      shown: What help has in its place.
      read: Makes the value of its text; raises `argparse.ArgumentTypeError` with what was expected
        and what came.
    """

    shown: str
    read: Callable[[str], Any]


def _refuse(expected: str, text: str) -> NoReturn:
    raise argparse.ArgumentTypeError(f"expected {expected}, got '{text}'")


def boolean(text: str) -> bool:
    """Read true, false, on, off, 1 or 0 in any case."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    _refuse("true or false", text)


def _verbosity(text: str) -> int:
    if text.isascii() and text.isdigit():
        return min(int(text.lstrip("0")[:DIGITS_MAX] or "0"), INT32_MAX)
    if text.lower() in _TRUE | _FALSE:
        return int(boolean(text))
    _refuse("a level of at least 0, true or false", text)


def _integer_reader(what: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.lstrip("0")[:DIGITS_MAX] or text[-1:]
        if text.isascii() and text.isdigit() and least <= int(digits) <= most:
            return int(digits)
        _refuse(what, text)

    return read


def integer(shown: str, least: int = 0, most: int = INT32_MAX, *, what: str = "") -> Kind:
    """Return the kind of a plain decimal number in a range; `what` names it in errors."""
    bounds = f" from {least} to {most}" if most < INT32_MAX else f" of at least {least}"
    return Kind(shown, _integer_reader(what or f"a number{bounds}", least, most))


def scaled(shown: str, unit: str, scale: float, least: int = 0) -> Kind:
    """Return the kind of a number of `unit`, which is read as seconds."""
    bound = f" of at least {least}" if least else ""
    read = _integer_reader(f"a number of {unit}{bound}", least, INT32_MAX)
    return Kind(shown, lambda text: read(text) * scale)


def choice(*words: str) -> Kind:
    """Return the kind of one of these words."""

    def read(text: str) -> str:
        if text not in words:
            _refuse(f"{', '.join(words[:-1])} or {words[-1]}", text)
        return text

    return Kind("|".join(words), read)


def pattern(shown: str, form: str, expected: str) -> Kind:
    """Return the kind of a text that a regular expression matches in full."""
    compiled = re.compile(form, re.DOTALL)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            _refuse(expected, text)
        return text

    return Kind(shown, read)


def _limit_s(text: str) -> float:
    """Read a positive number of seconds, or 0 for no limit."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        _refuse("a number of seconds", text)
    return seconds or float("inf")


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse("text in UTF-8", ascii(text)[1:-1])
    return text


def _backend_setting(text: str) -> tuple[str, str, str]:
    setting, equals, value = text.partition("=")
    backend, comma, key = setting.rpartition(",")
    if not equals or not key or (comma and not backend):
        _refuse("[<backend>,]<setting>=<value>", text)
    return backend, key, value


def _resource(text: str) -> tuple[tuple[str, int | None], int]:
    try:
        return parse_rate_limit_resource(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _expression(text: str) -> str:
    try:
        header_forwarding(text, "the pattern")
    except RequestError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


def _port_range(text: str) -> range:
    low, dash, high = text.partition("-")
    if not dash or not all(each.isascii() and each.isdigit() for each in (low, high)):
        _refuse("<port>-<port>", text)
    ports = range(int(low[:20]), int(high[:20]) + 1)
    if not ports or ports[-1] > PORT_MAX:
        _refuse(f"<port>-<port>, the lower one first and none above {PORT_MAX}", text)
    return ports


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        _refuse("a number", text)


BOOL: Final = Kind("BOOL", boolean)
BYTES: Final = integer("BYTES", 1, 2**63 - 1, what="a number above 0")
BYTES_OR_NONE: Final = integer("BYTES", 0, 2**63 - 1, what="a number of bytes")
COUNT: Final = integer("N", 1)
DIRECTORY: Final = Kind("DIR", Path)
FILE: Final = Kind("FILE", Path)
LIMIT_S: Final = Kind("SECONDS", _limit_s)
MILLISECONDS: Final = scaled("MS", "milliseconds", 1e-3)
MILLISECONDS_ABOVE_0: Final = scaled("MS", "milliseconds", 1e-3, 1)
NAME: Final = pattern("NAME", r".+", "a name that is not empty")
NATURAL: Final = integer("N")
NUMBER: Final = Kind("NUMBER", _number)
PORT: Final = integer("PORT", 0, PORT_MAX, what=f"a port number up to {PORT_MAX}")
SECONDS: Final = integer("SECONDS", what="a number of seconds")
TEXT: Final = Kind("TEXT", _text)
VERBOSITY: Final = Kind("LEVEL|BOOL", _verbosity)
ADDRESS: Final = pattern("ADDRESS", r"(?!unix:$).+", "an address, or unix:<path>")
BACKEND_SETTING: Final = Kind("[BACKEND,]KEY=VALUE", _backend_setting)
CACHE_SETTING: Final = Kind("CACHE,KEY=VALUE", str)
EXPRESSION: Final = Kind("REGEX", _expression)
RESOURCE: Final = Kind("NAME:COUNT[:DEVICE]", _resource)
RESTRICTION: Final = pattern(
    "API[,API]:KEY=VALUE", r"[^:=]+:[^=]+=.+", "<api>[,<api>...]:<key>=<value>"
)
SETTING: Final = pattern("KEY=VALUE", r"[^,=]+=.*", "<setting>=<value>")
TRACE_SETTING: Final = pattern(
    "[MODE,]KEY=VALUE", r"([^,=]+,)?[^,=]+=.*", "<setting>=<value> or <mode>,<setting>=<value>"
)
GPU_BYTES: Final = pattern("GPU:BYTES", r"[0-9]+:[0-9]+", "<gpu>:<bytes>")
GPU_FRACTION: Final = pattern(
    "GPU:FRACTION", r"[0-9]+:(0?\.[0-9]+|[01](\.0*)?)", "<gpu>:<fraction from 0 to 1>"
)
HOST_POLICY: Final = pattern(
    "NAME,SETTING=VALUE",
    r"[^,=]+,(numa-node|cpu-cores)=.+",
    "<name>,numa-node=<n> or <name>,cpu-cores=<a-b>",
)
PORT_RANGE: Final = Kind("PORT-PORT", _port_range)
