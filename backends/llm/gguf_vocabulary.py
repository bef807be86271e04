"""The vocabulary inside a GGUF file, as a tokenizer.

Sources: the `tokenizer.*` keys of the GGUF specification; how text is split before it is merged is
what the published tokenizers of the models in question do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gguf import GGUFReader, Keys, TokenType
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ...protocol.errors import RequestError, invalid_argument
from ...protocol.wording import names_text, quoted

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD: Final = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3: Final = _CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _PUNCTUATION_AND_SPACE
_QWEN2: Final = _CONTRACTIONS + _WORD + r"|\p{N}" + _PUNCTUATION_AND_SPACE

_SPLITS: Final = {"llama-bpe": _LLAMA3, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2}
"""Pre-tokenizer -> pattern of what is merged by itself."""
_GPT2: Final = frozenset({"default", "gpt-2"})
"""Pre-tokenizers that split as GPT-2's does."""
_SINGLE_DIGITS: Final = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
"""Pre-tokenizers that split off each digit, and otherwise as GPT-2's does."""
_WITH_BOS: Final = frozenset({"llama-bpe"})
"""Pre-tokenizers whose models expect a first token, whether the file says so or not."""
_SPACE: Final = "▁"
"""How vocabularies of the sentencepiece kind write a space."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the file of a tokenizer says; a GGUF file can say all of it.

    Attributes:
      tokenizer: Makes tokens of text.
      chat_template: The source of its chat template, or None.
      end_tokens: Tokens with which the model ends a text or a turn.
      special_tokens: "bos_token", "eos_token" -> that token as text, for chat templates.
    """

    tokenizer: Tokenizer
    chat_template: str | None = None
    end_tokens: tuple[int, ...] = ()
    special_tokens: dict[str, str] = field(default_factory=dict)


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a GGUF file.

    Raises:
      RequestError: INVALID_ARG; it is not a GGUF file, or its vocabulary is of an unknown kind.
    """
    fields = _Fields(path)
    model = fields.text(Keys.Tokenizer.MODEL)
    if model == "gpt2":
        tokenizer = _byte_level(fields)
    elif model == "llama":
        tokenizer = _sentencepiece(fields)
    else:
        raise fields.fault(
            f"expected a vocabulary of kind {names_text(['gpt2', 'llama'])}, got {quoted(model)}"
        )
    tokens, kinds = fields.tokens, fields.numbers(Keys.Tokenizer.TOKEN_TYPE)
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
            special = kind == TokenType.CONTROL
            added = AddedToken(token, special=special, normalized=False)
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([added])
    bos, eos = fields.token(Keys.Tokenizer.BOS_ID), fields.token(Keys.Tokenizer.EOS_ID)
    adds_bos = fields.flag(
        Keys.Tokenizer.ADD_BOS,
        default=model == "llama" or fields.text(Keys.Tokenizer.PRE) in _WITH_BOS,
    )
    before = [bos] if adds_bos and bos is not None else []
    behind = [eos] if fields.flag(Keys.Tokenizer.ADD_EOS, default=False) and eos is not None else []
    if before or behind:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*("first" for _ in before), "$A", *("last" for _ in behind)],
            special_tokens=[
                {"id": name, "ids": [token], "tokens": [tokens[token]]}
                for name, ids in (("first", before), ("last", behind))
                for token in ids
            ],
        )
    ends = (eos, fields.token(Keys.Tokenizer.EOT_ID), fields.token(Keys.Tokenizer.EOM_ID))
    return Vocabulary(
        tokenizer,
        fields.text(Keys.Tokenizer.CHAT_TEMPLATE) or None,
        tuple(dict.fromkeys(token for token in ends if token is not None)),
        {
            name: tokens[token]
            for name, token in (("bos_token", bos), ("eos_token", eos))
            if token is not None
        },
    )


class _Fields:
    """The keys of a GGUF file, checked as they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fields = GGUFReader(path).fields
        except (OSError, ValueError, LookupError, ArithmeticError) as error:
            raise self.fault(f"cannot be read as a GGUF file: {error}") from error
        self.tokens: list[str] = self._list(Keys.Tokenizer.LIST, str)
        if not self.tokens:
            raise self.fault(f"expected a vocabulary, got no {Keys.Tokenizer.LIST}")

    def fault(self, message: str) -> RequestError:
        """Return an error about the file."""
        return invalid_argument(f"{self._path.name}: {message}")

    def text(self, key: str) -> str:
        """Return a text; "" if there is none."""
        value = self._value(key)
        return value if isinstance(value, str) else ""

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a flag."""
        value = self._value(key)
        return value if isinstance(value, bool) else default

    def token(self, key: str) -> int | None:
        """Return the id of a token; None if there is none."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise self.fault(f"expected {key} below {len(self.tokens)}, got {value}")
        return value

    def numbers(self, key: str) -> list[float]:
        """Return a list with a number for each token, or an empty one."""
        return self._list(key, (int, float))

    def texts(self, key: str) -> list[str]:
        """Return a list of texts, perhaps empty."""
        return self._list(key, str)

    def _value(self, key: str) -> Any:
        try:
            field = self._fields.get(key)
            return None if field is None else field.contents()
        except ValueError as error:  # no UTF-8
            raise self.fault(f"{key} cannot be read: {error}") from error

    def _list(self, key: str, kind: type | tuple[type, ...]) -> list[Any]:
        value = self._value(key)
        if value is None:
            return []
        if not isinstance(value, list) or not isinstance(value[0] if value else 0, kind):
            raise self.fault(f"{key} is not a list of what it should be")
        return value


def _byte_level(fields: _Fields) -> Tokenizer:
    pre = fields.text(Keys.Tokenizer.PRE) or "default"
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in _SPLITS)
    splits: list[pre_tokenizers.PreTokenizer]
    if pre in _SPLITS:
        splits = [pre_tokenizers.Split(Regex(_SPLITS[pre]), "isolated"), byte_level]
    elif pre in _SINGLE_DIGITS:
        splits = [pre_tokenizers.Digits(individual_digits=True), byte_level]
    elif pre in _GPT2:
        splits = [byte_level]
    else:
        known = sorted(_SINGLE_DIGITS | _GPT2 | set(_SPLITS))
        raise fields.fault(f"expected a pre-tokenizer of {names_text(known)}, got {quoted(pre)}")
    parts = [merge.partition(" ") for merge in fields.texts(Keys.Tokenizer.MERGES)]
    merges = [(left, right) for left, _, right in parts]
    tokenizer = _bpe(fields, merges, ignore_merges=pre == "llama-bpe")
    if _SPLITS.get(pre) == _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(fields: _Fields) -> Tokenizer:
    scores = fields.numbers(Keys.Tokenizer.SCORES)
    ids = {token: number for number, token in enumerate(fields.tokens)}
    ranked = sorted(zip(fields.tokens, scores, strict=False), key=lambda item: -item[1])
    merges = [
        (token[:cut], token[cut:])
        for token, _ in ranked
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    unknown = fields.token(Keys.Tokenizer.UNK_ID)
    unknown_token = None if unknown is None else fields.tokens[unknown]
    tokenizer = _bpe(fields, merges, unk_token=unknown_token, fuse_unk=True, byte_fallback=True)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    normalizing: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    if fields.flag(Keys.Tokenizer.ADD_PREFIX, default=True):
        normalizing.insert(0, normalizers.Prepend(_SPACE))
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(normalizing)
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _bpe(fields: _Fields, merges: Sequence[tuple[str, str]], **settings: Any) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(fields.tokens)}
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **settings))
    except Exception as error:  # the library has no class of its own
        raise fields.fault(f"its merges do not fit its tokens: {error}") from error
