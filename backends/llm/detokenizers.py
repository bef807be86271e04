"""Makes text of tokens: at once, or token by token as they come.

Most tokenizers give each token some bytes, and a text is what these make together: then whole
characters come out as soon as their last byte is there. The others are asked again with each token
what the last few make together.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from tokenizers import Tokenizer

from .text import TextStream

_HELD_TOKENS_MAX: Final = 4
"""Tokens that may wait for the rest of a character: none has more bytes."""
_REPLACEMENT: Final = "�"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_BYTES_SHOWN_AS_THEMSELVES: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level vocabularies write as the character of that number; others come behind."""
_SENTENCEPIECE: Final = ["Replace", "ByteFallback", "Fuse"]
"""How sentencepiece's vocabularies are decoded, before a space in front is taken away."""
_NO_STRIP: Final[dict[str, Any]] = {"content": " ", "start": 0, "stop": 0}
_new_decoder: Final = getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Makes text of the tokens of one vocabulary; callable from any thread."""

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens; unknown ones have none."""

    def stream(self, *, skip_special_tokens: bool) -> TextStream:
        """Return what makes the same text as `decode`, token by token."""

    def token_bytes(self, token: int) -> bytes:
        """Return one token by itself; special ones too."""


def detokenizer_of(tokenizer: Tokenizer) -> Detokenizer:
    """Return the way to make text of a tokenizer's tokens."""
    steps = _decoder_steps(tokenizer)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteDetokenizer(tokenizer, _byte_level_bytes)
    if kinds in (_SENTENCEPIECE, [*_SENTENCEPIECE, "Strip"]):
        space = steps[0]["pattern"].get("String")
        strip: dict[str, Any] = steps[3] if len(steps) == 4 else _NO_STRIP
        if space and steps[0]["content"] == " " and strip["start"] <= 1 and not strip["stop"]:
            return ByteDetokenizer(
                tokenizer,
                lambda piece: _sentencepiece_bytes(piece, space),
                dropped=strip["content"] * strip["start"],
            )
    return LibraryDetokenizer(tokenizer)


class ByteDetokenizer:
    """For vocabularies in which each token stands for some bytes."""

    def __init__(
        self, tokenizer: Tokenizer, bytes_of: Callable[[str], bytes], *, dropped: str = ""
    ) -> None:
        """Look every token up.

        Args:
          tokenizer: Has the vocabulary.
          bytes_of: Takes a token as the vocabulary writes it, returns its bytes.
          dropped: A character that a text loses if it begins with it.
        """
        table = [b""] * vocabulary_size_of(tokenizer)
        for piece, token in tokenizer.get_vocab(with_added_tokens=True).items():
            table[token] = bytes_of(piece)
        added = tokenizer.get_added_tokens_decoder()
        for token, content in added.items():
            table[token] = content.content.encode()
        self._table = tuple(table)
        self._text_table = tuple(
            b"" if token in added and added[token].special else piece
            for token, piece in enumerate(table)
        )
        self._dropped = dropped

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens; unknown ones have none."""
        table = self._text_table if skip_special_tokens else self._table
        pieces = (table[token] for token in tokens if 0 <= token < len(table))
        return b"".join(pieces).decode("utf-8", "replace").removeprefix(self._dropped)

    def stream(self, *, skip_special_tokens: bool) -> TextStream:
        """Return what makes the same text as `decode`, token by token."""
        table = self._text_table if skip_special_tokens else self._table
        return _ByteStream(table, self._dropped)

    def token_bytes(self, token: int) -> bytes:
        """Return one token by itself; special ones too."""
        return self._table[token] if 0 <= token < len(self._table) else b""


class _ByteStream:
    """One text made of bytes."""

    __slots__ = ("_decoder", "_dropped", "_table")

    def __init__(self, table: Sequence[bytes], dropped: str) -> None:
        self._table = table
        self._decoder = _new_decoder("replace")
        self._dropped = dropped

    def push(self, token: int) -> str:
        """Return the characters that end in this token."""
        if not 0 <= token < len(self._table):
            return ""
        return self._begun(self._decoder.decode(self._table[token]))

    def flush(self) -> str:
        """Return what stands for an unfinished character."""
        return self._begun(self._decoder.decode(b"", final=True))

    def _begun(self, text: str) -> str:
        """Return the text without what it loses at its very beginning."""
        if text and self._dropped:
            text, self._dropped = text.removeprefix(self._dropped), ""
        return text


class LibraryDetokenizer:
    """For all other vocabularies: the library alone knows how their tokens are joined."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._size = vocabulary_size_of(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, content in added.items() if content.special)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens; unknown ones have none."""
        return self.join(token for token in tokens if self.counts(token, skip_special_tokens))

    def stream(self, *, skip_special_tokens: bool) -> TextStream:
        """Return what makes the same text as `decode`, token by token."""
        return _LibraryStream(self, skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """Return one token by itself; special ones too."""
        return self.decode([token], skip_special_tokens=False).encode()

    def counts(self, token: int, skip_special_tokens: bool) -> bool:
        """Return whether a token is part of a text."""
        return 0 <= token < self._size and not (skip_special_tokens and token in self._special)

    def join(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens that are part of one."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


class _LibraryStream:
    """One text, of which the last tokens are decoded again: they decide how the next is joined."""

    __slots__ = ("_detokenizer", "_held", "_said", "_skips", "_window")

    def __init__(self, detokenizer: LibraryDetokenizer, skip_special_tokens: bool) -> None:
        self._detokenizer = detokenizer
        self._skips = skip_special_tokens
        self._window: list[int] = []  # the last token that was said, and those held back
        self._said = 0  # characters of the window that are not new
        self._held = 0  # tokens

    def push(self, token: int) -> str:
        """Return what this token adds, unless it may be part of a character."""
        if not self._detokenizer.counts(token, self._skips):
            return ""
        self._window.append(token)
        self._held += 1
        text = self._detokenizer.join(self._window)
        if text.endswith(_REPLACEMENT) and self._held < _HELD_TOKENS_MAX:
            return ""
        return self._say(text)

    def flush(self) -> str:
        """Return what is held back."""
        return self._say(self._detokenizer.join(self._window))

    def _say(self, text: str) -> str:
        new = text[self._said :]
        self._window = self._window[-1:]
        self._said = len(self._detokenizer.join(self._window))
        self._held = 0
        return new


def vocabulary_size_of(tokenizer: Tokenizer) -> int:
    """Return how many tokens there are: one more than the highest id."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the settings of each part of a tokenizer's decoder, in order."""
    if tokenizer.decoder is None:
        return []
    settings = json.loads(tokenizer.decoder.__getstate__())
    return settings["decoders"] if settings["type"] == "Sequence" else [settings]


def _byte_alphabet() -> dict[str, int]:
    """Return character -> the byte that it stands for in byte-level vocabularies."""
    rest = [byte for byte in range(256) if byte not in _BYTES_SHOWN_AS_THEMSELVES]
    return {
        **{chr(byte): byte for byte in _BYTES_SHOWN_AS_THEMSELVES},
        **{chr(256 + index): byte for index, byte in enumerate(rest)},
    }


_ALPHABET: Final = _byte_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in piece)
    except KeyError:
        return piece.encode()


def _sentencepiece_bytes(piece: str, space: str) -> bytes:
    match = _BYTE_TOKEN.match(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace(space, " ").encode()
