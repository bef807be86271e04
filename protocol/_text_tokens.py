"""Tokens of the protobuf text format, each with its place in the file.

Source: the protobuf text format specification. Where Google's C++ and Python readers disagree
(a blank after a minus, an octal escape above 255, underscores in numbers) the stricter one wins.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NoReturn

from .errors import ErrorCode, RequestError

QUOTED_MAX_CHARS: Final = 40
"""Most characters of a token that an error repeats: enough to find it, too few to flood a log."""

NAME: Final = "name"
NUMBER: Final = "number"
STRING: Final = "string"
SYMBOL: Final = "symbol"
END: Final = "end"

_TOKEN: Final = re.compile(
    r"""
    (?P<skip>   [ \t\r\n\v\f]+ | \#[^\n]* )
  | (?P<name>   [A-Za-z_][A-Za-z0-9_]* )
  | (?P<number> -?(?:\.?[0-9](?:[eE][+-]|[A-Za-z0-9_.])*|[A-Za-z]+) )
  | (?P<string> "(?:[^"\\\n]|\\[^\n])*+" | '(?:[^'\\\n]|\\[^\n])*+' )
  | (?P<symbol> [][{}<>:;,] )
    """,
    re.VERBOSE,
)
_PLACEHOLDER: Final = re.compile(r"\$\{[^}\n]*\}")
_ESCAPE: Final = re.compile(
    r"""\\(?: (?P<octal>[0-7]{1,3}) | [xX](?P<hex>[0-9A-Fa-f]{1,2})
      | u(?P<u>[0-9A-Fa-f]{4}) | U(?P<U>[0-9A-Fa-f]{8}) | (?P<char>.) )""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTERS: Final = {
    "a": b"\a",
    "b": b"\b",
    "f": b"\f",
    "n": b"\n",
    "r": b"\r",
    "t": b"\t",
    "v": b"\v",
    "\\": b"\\",
    "'": b"'",
    '"': b'"',
    "?": b"?",
}


class ConfigSyntaxError(RequestError):
    """A configuration that cannot be read; the message starts with `file:line:column: `."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_ARG, message)


class Token(NamedTuple):
    """A token and where it starts, in characters from the start of the text."""

    kind: str
    text: str
    offset: int

    def described(self) -> str:
        """Return the token as an error names it."""
        if self.kind == END:
            return "the end of the file"
        if len(self.text) > QUOTED_MAX_CHARS:
            return f"'{self.text[:QUOTED_MAX_CHARS]}…'"
        return f"'{self.text}'"


class TokenStream:
    """The tokens of one text, read with one token of look-ahead.

    Args:
      text: The whole text; a byte order mark at its start is skipped.
      file: How errors name the text.
    """

    def __init__(self, text: str, *, file: str) -> None:
        self._text = text
        self._file = file
        self._offset = 1 if text.startswith("\ufeff") else 0
        self.current = self._read()

    def next(self) -> Token:
        """Return the current token and move on."""
        token = self.current
        self.current = self._read()
        return token

    def accept(self, symbols: str) -> Token | None:
        """Return the current token and move on, if it is one of these one-character symbols."""
        if self.current.kind == SYMBOL and self.current.text in symbols:
            return self.next()
        return None

    def place(self, offset: int) -> str:
        """Return `line:column` of an offset, both counted from 1."""
        line = self._text.count("\n", 0, offset) + 1
        start = self._text.rfind("\n", 0, offset) + 1
        if start == 0 and self._text.startswith("\ufeff"):
            start = 1  # the mark is no column of the first line
        return f"{line}:{offset - start + 1}"

    def fail(self, offset: int, message: str) -> NoReturn:
        """Raise for the text at `offset`.

        Raises:
          ConfigSyntaxError: always.
        """
        raise ConfigSyntaxError(f"{self._file}:{self.place(offset)}: {message}")

    def expected(self, what: str, *, hint: str = "") -> NoReturn:
        """Raise because the current token is not `what`.

        Raises:
          ConfigSyntaxError: always.
        """
        token = self.current
        self.fail(token.offset, f"expected {what}, got {token.described()}{hint}")

    def string(self, token: Token) -> bytes:
        """Return what a string token stands for, as bytes.

        Raises:
          ConfigSyntaxError: an escape is unknown or out of range.
        """
        text = token.text[1:-1]
        parts: list[bytes] = []
        position = 0
        while (start := text.find("\\", position)) >= 0:
            parts.append(text[position:start].encode())
            match = _ESCAPE.match(text, start)
            assert match is not None  # the token pattern lets no backslash stand last
            position = match.end()
            value = _unescape(match)
            if value is None:
                self.fail(
                    token.offset + 1 + start,
                    f"expected an escape sequence of a string, got '{match.group()}'"
                    "; write a backslash as two",
                )
            parts.append(value)
        parts.append(text[position:].encode())
        return b"".join(parts)

    def _read(self) -> Token:
        while self._offset < len(self._text):
            match = _TOKEN.match(self._text, self._offset)
            if match is None:
                self._fail_at_character()
            offset, self._offset = self._offset, match.end()
            if match.lastgroup != "skip":
                assert match.lastgroup is not None
                return Token(match.lastgroup, match.group(), offset)
        return Token(END, "", len(self._text))

    def _fail_at_character(self) -> NoReturn:
        offset = self._offset
        character = self._text[offset]
        placeholder = _PLACEHOLDER.match(self._text, offset)
        if placeholder is not None:
            self.fail(
                offset,
                f"expected a value, got the placeholder '{placeholder.group()[:QUOTED_MAX_CHARS]}'"
                "; fill the template in before it is served",
            )
        if character in "\"'":
            self.fail(offset, f"expected a closing {character} on the same line as the opening one")
        self.fail(offset, f"expected a field name, a value or a bracket, got {character!a}")


def _unescape(match: re.Match[str]) -> bytes | None:
    if (octal := match["octal"]) is not None:
        value = int(octal, 8)
        return bytes([value]) if value <= 255 else None
    if (digits := match["hex"]) is not None:
        return bytes([int(digits, 16)])
    if (digits := match["u"] or match["U"]) is not None:
        value = int(digits, 16)
        surrogate = 0xD800 <= value <= 0xDFFF
        return None if surrogate or value > 0x10FFFF else chr(value).encode()
    return _CHARACTERS.get(match["char"])
