"""Texts that are held to a JSON schema, a regular expression, a list of choices or a grammar.

llguidance says which tokens may come next; how it reads schemas, expressions and grammars is in its
documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np

from ...protocol.errors import ErrorCode, RequestError, invalid_argument
from ...protocol.sampling_params import Guide, GuideKind
from ...protocol.tensors import Array
from ...protocol.wording import installing, quoted
from .steps import CompiledGuide, GuideFaultError, GuideState
from .text import Text

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

GUIDES_KEPT: Final = 16
"""Compiled guides that are kept for the next request; each may take megabytes."""
LEXER_FUEL: Final = 60_000
"""Steps to build what recognises the words of a guide. They bound its size, with which each token
takes longer: schemas and lists of 60,000 characters need up to 40,000, and the longest repetitions
and literals that are left take 4 to 8 ms a token, with 49,152 tokens to choose from."""
MASK_FUEL: Final = 50_000
"""Such steps for one token, since the whole batch waits; 5 ms."""
LEXER_STATES: Final = 100_000
"""States of what recognises words; each takes 1 to 2 KB."""
MASK_ITEMS: Final = 10_000
"""Ways to read a text that are looked into for one token; grammars made for it take some 20 ms."""
ROW_ITEMS: Final = 2000
"""Ways to read a text so far; a JSON schema with 500 optional members has so many, and the longest
list of choices half of it."""
BLANKS_MAX: Final = 32
"""Blanks in one place of JSON: enough to indent it, and small models end their texts at some time,
which otherwise may drift off into blanks."""

_BLANKS: Final = rf"[ \n\r\t]{{1,{BLANKS_MAX}}}"
_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)
_WORDS = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*"      # texts
    | (?://|\#)[^\n]*         # comments
    | /(?:\\.|[^/\\\n])+/     # expressions
    """,
    re.VERBOSE,
)
"""What of a grammar may have any character."""
_WHAT: Final = {
    GuideKind.JSON_SCHEMA: "JSON schema",
    GuideKind.JSON_OBJECT: "JSON object",
    GuideKind.REGEX: "regular expression",
    GuideKind.CHOICE: "list of choices",
    GuideKind.GRAMMAR: "grammar",
}


class Guides:
    """Compiles what the texts of one model are held to; callable from any thread.

    Args:
      text: The model's tokenizer.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled = lru_cache(GUIDES_KEPT)(self._compile)

    def compile(self, guide: Guide) -> CompiledGuide:
        """Return a guide that is ready for use; takes milliseconds, the first time up to a second.

        Raises:
          RequestError: INVALID_ARG; it is not well-formed, or too large, or needs what is not
            there. UNSUPPORTED; the library is missing, or the model cannot end a text.
        """
        return self._compiled(guide)

    def _compile(self, guide: Guide) -> CompiledGuide:
        try:
            import llguidance  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f"guided decoding needs llguidance: {installing('llm')}",
            ) from None
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=LEXER_FUEL,
            step_lexer_fuel=MASK_FUEL,
            max_lexer_states=LEXER_STATES,
            step_max_items=MASK_ITEMS,
            max_items_in_row=ROW_ITEMS,
            verbose_errors=False,
        )
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _tokenizer(self._text)
            tokenizer = self._tokenizer
        try:
            grammar = _grammar(guide)
        except ValueError as fault:
            raise _fault(guide, str(fault)) from None
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            # The most expensive one, whose findings all texts share.
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise _fault(guide, matcher.get_error())
        # What is too large to be followed shows with the first token.
        trial = matcher.deep_copy()
        trial.consume_token(int(np.unpackbits(bits, bitorder="little").argmax()))
        trial.compute_bitmask()
        if trial.is_error():
            raise _fault(guide, trial.get_error())
        return _Compiled(matcher, self._text.vocabulary_size)


class _Compiled:
    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        self._matcher = matcher  # never advanced: every text starts as a copy of it
        self._vocabulary_size = vocabulary_size
        self._lock = Lock()  # the library refuses to be called on two threads at a time

    def start(self) -> GuideState:
        with self._lock:
            return _State(self._matcher.deep_copy(), self._vocabulary_size)


class _State:
    def __init__(self, matcher: LLMatcher, vocabulary_size: int) -> None:
        self._matcher = matcher
        self._vocabulary_size = vocabulary_size

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped()

    def allowed_mask(self) -> Array:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask = np.unpackbits(bits, count=self._vocabulary_size, bitorder="little")
        return mask.view(np.bool_)

    def advance(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GuideFaultError(
                f"what the text is held to cannot be followed: {_reason(self._matcher.get_error())}"
            )


class _Vocabulary:
    """The tokens as llguidance wants them.

    It asks which tokens a text has where only one text may come; `split` then stands in for a
    tokenizer that sees something else in it, such as special tokens.
    """

    def __init__(self, text: Text) -> None:
        count = text.vocabulary_size
        self.eos_token_id = min(text.end_tokens)
        self.bos_token_id = None
        self.tokens = [text.token_bytes(token) for token in range(count)]
        # Twice, since a decoder may leave out the first blank of a text.
        self.special_token_ids = [
            token
            for token in range(count)
            if not self.tokens[token] or not text.decode([token, token])
        ]
        self._special = frozenset(self.special_token_ids)
        self._encode = text.encode
        self.split: Callable[[str], list[int]] = text.encode

    def __call__(self, text: str) -> list[int]:
        tokens = [token for token in self._encode(text) if token not in self._special]
        if b"".join(self.tokens[token] for token in tokens) == text.encode():
            return tokens
        return self.split(text)


def _tokenizer(text: Text) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415 - an extra

    if not text.end_tokens:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            "guided decoding needs a model with an end token, got one without",
        )
    vocabulary = _Vocabulary(text)
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=sorted(text.end_tokens))
    vocabulary.split = tokenizer.greedy_tokenize
    return tokenizer


def _grammar(guide: Guide) -> str:
    """Return the guide in llguidance's own form.

    Raises:
      ValueError: a grammar in none of the known notations, or with an intersection: no fuel ends
        what it takes to compile some.
    """
    from llguidance import LLMatcher, grammar_from  # noqa: PLC0415 - an extra

    if guide.kind in {GuideKind.JSON_SCHEMA, GuideKind.JSON_OBJECT}:
        schema = guide.source or '{"type": "object"}'
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _BLANKS})
    if guide.kind is GuideKind.REGEX:
        return LLMatcher.grammar_from_regex(guide.source)
    if guide.kind is GuideKind.CHOICE:
        return grammar_from("choice", guide.source)
    grammar = grammar_from("grammar", guide.source)
    if "&" in _WORDS.sub("", grammar):
        raise ValueError("an intersection, '&', may take without end to compile")
    return grammar


def _fault(guide: Guide, problem: str) -> RequestError:
    source = f" {quoted(guide.source)}" if guide.source else ""
    return invalid_argument(
        f"expected a {_WHAT[guide.kind]} that a text can be held to, got{source}: "
        f"{_reason(problem)}"
    )


def _reason(problem: str) -> str:
    """Return what matters of a message of the library."""
    found = _REASON.search(problem)
    line = found[1] if found else problem.strip().partition("\n")[0]
    return quoted(line)
