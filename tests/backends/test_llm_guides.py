"""Guided decoding: whatever is drawn, the text is what it is held to."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tritrio.backends.llm import guides
from tritrio.backends.llm.guides import Guides
from tritrio.backends.llm.sampler import Sampler
from tritrio.backends.llm.steps import GuideFaultError, SequenceStart
from tritrio.backends.llm.tokenizers import TokenizerText
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.sampling_params import Guide, GuideKind, SamplingParams
from tritrio.protocol.sampling_request import CHOICES_MAX

WORDS = ['"}', '":', "tr", "ue", "ab", "ye", "es", "yes", "\u0120\u0120", "Ã¤", '","', "12"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "size": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["yes", "no", None]},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}


TOKENS_MAX = 2000
"""Far more than any text here has."""


def byte_level_tokenizer() -> Tokenizer:
    """Each byte, some words, and two special tokens of which the second one ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: token for token, piece in enumerate([*alphabet, *WORDS])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<start>"), AddedToken("<end>")])
    return tokenizer


TOKENIZER = byte_level_tokenizer()
START, END = (TOKENIZER.get_vocab()[piece] for piece in ("<start>", "<end>"))
TEXT = TokenizerText(TOKENIZER, end_tokens=frozenset({END}))
GUIDES = Guides(TEXT)


def tokens_of(guide: Guide, seed: int, **params: Any) -> Iterator[int]:
    """Draw among all tokens alike, until the guide or an end token ends it."""
    sampler = Sampler(TEXT.vocabulary_size, TEXT.end_tokens)
    start = SequenceStart(
        id=1,
        prompt=(0,),
        params=SamplingParams(**params),
        seed=seed,
        guide=GUIDES.compile(guide),
    )
    sampler.join(start)
    logits = np.zeros((1, TEXT.vocabulary_size), np.float32)
    for _ in range(TOKENS_MAX):
        (choice,), faults = sampler.sample(logits, [1])
        assert not faults
        assert choice is not None
        yield choice.token
        if choice.ends_guide:
            return
    pytest.fail("the text has no end")


def drawn(guide: Guide, seed: int, **params: Any) -> str:
    return TEXT.decode(list(tokens_of(guide, seed, **params)))


def allowed(guide: Guide, *pieces: str) -> set[str]:
    """The tokens that may follow so many, by their text."""
    state = GUIDES.compile(guide).start()
    for piece in pieces:
        state.advance(next(t for t in range(END + 1) if TEXT.token_text(t) == piece))
    return {TEXT.token_text(int(token)) for token in np.flatnonzero(state.allowed_mask())}


@pytest.mark.parametrize("seed", range(20))
def test_a_text_matches_its_regular_expression(seed: int) -> None:
    pattern = r"(ab|12){2,5}-[a-fä]{3}!?"
    assert re.fullmatch(pattern, drawn(Guide(GuideKind.REGEX, pattern), seed))


@pytest.mark.parametrize("seed", range(20))
def test_a_text_is_one_of_its_choices(seed: int) -> None:
    choices = ["yes", "ye", "no\n", 'say "ä" \\ / 😀', "x"]
    assert drawn(Guide(GuideKind.CHOICE, json.dumps(choices)), seed) in choices


@pytest.mark.parametrize("choice", ["no\n", 'say "ä" \\ / 😀', "x"])
def test_every_choice_may_come(choice: str) -> None:
    state = GUIDES.compile(Guide(GuideKind.CHOICE, json.dumps(["yes", choice]))).start()
    for token in TEXT.encode(choice):
        assert state.allowed_mask()[token]
        state.advance(token)
    assert state.is_complete


@pytest.mark.parametrize("seed", range(20))
def test_a_text_fits_its_schema(seed: int) -> None:
    got = json.loads(drawn(Guide(GuideKind.JSON_SCHEMA, json.dumps(SCHEMA)), seed))
    assert set(got) == {"name", "size", "kind"}
    assert len(got["name"]) <= 4
    assert type(got["size"]) is int
    assert 0 <= got["size"] <= 120
    assert got["kind"] in ("yes", "no", None)


@pytest.mark.parametrize("kind", [GuideKind.JSON_SCHEMA, GuideKind.JSON_OBJECT])
def test_blanks_between_the_words_of_json_come_to_an_end(kind: GuideKind) -> None:
    guide = Guide(kind, '{"type": "object"}' if kind is GuideKind.JSON_SCHEMA else "")
    indented = ["{", "\n", *" " * 30]
    assert " " in allowed(guide, *indented)
    assert " " not in allowed(guide, *indented, " ")


@pytest.mark.parametrize("seed", range(20))
def test_a_text_is_a_json_object(seed: int) -> None:
    # Braces are likelier than chance has them, so that the object ends.
    biases = {token: 4.0 for token in range(END) if "}" in TEXT.token_text(token)}
    text = drawn(Guide(GuideKind.JSON_OBJECT, ""), seed, logit_bias=biases)
    assert type(json.loads(text)) is dict


@pytest.mark.parametrize(
    "source", ['start: "a" rest "b"\nrest: /[0-9]{2}/', 'root ::= "a" [0-9] [0-9] "b"']
)
def test_a_text_follows_its_grammar(source: str) -> None:
    for seed in range(20):
        assert re.fullmatch("a[0-9]{2}b", drawn(Guide(GuideKind.GRAMMAR, source), seed))


def test_there_may_be_many_choices() -> None:
    choices = [f"{number} is one of many" for number in range(CHOICES_MAX)]
    assert drawn(Guide(GuideKind.CHOICE, json.dumps(choices)), 1) in choices


def test_an_expression_that_grows_too_large_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="too many expressions"):
        GUIDES.compile(Guide(GuideKind.REGEX, "(a?){5000}a{5000}"))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GuideKind.REGEX, "d{20000}"),
        (GuideKind.REGEX, "(ab){12000}"),
        (GuideKind.JSON_SCHEMA, '{"type":"string","pattern":"^d{20000}$"}'),
        (GuideKind.GRAMMAR, "start: /d{20000}/"),
        (GuideKind.GRAMMAR, f'start: "{"d" * 60_000}"'),
        (GuideKind.CHOICE, json.dumps(["d" * 60_000])),
    ],
)
def test_a_guide_whose_every_token_would_hold_up_the_batch_is_refused(
    kind: GuideKind, source: str
) -> None:
    with pytest.raises(RequestError, match="too many expressions"):
        GUIDES.compile(Guide(kind, source))


def test_a_grammar_with_an_intersection_is_refused_as_some_compile_without_end() -> None:
    source = 'start: X "#"  // "\nX: /.*a.{3}/ & /.*b.{2}/  // "'
    with pytest.raises(RequestError, match="an intersection, '&', may take without end"):
        GUIDES.compile(Guide(GuideKind.GRAMMAR, source))
    for source in ('start: "a&" X  # & that\nX: /[&]b/', 'root ::= "a&" [&] "b"  # &'):
        assert drawn(Guide(GuideKind.GRAMMAR, source), 1) == "a&&b"


def test_schemas_may_be_large() -> None:
    lists = {f"member_{i}": {"enum": [f"{i} {j}, of many" for j in range(50)]} for i in range(60)}
    optional = {f"member_{i}": {"type": "integer"} for i in range(500)}
    for members in (lists, optional):
        schema = {"type": "object", "properties": members, "additionalProperties": False}
        GUIDES.compile(Guide(GuideKind.JSON_SCHEMA, json.dumps(schema)))


def test_an_end_token_may_come_only_when_the_text_is_complete() -> None:
    guide = Guide(GuideKind.REGEX, "ab+")
    assert allowed(guide) == {"a"}  # and not "ab", which is no way to write what must come
    assert allowed(guide, "a") == {"b"}
    assert allowed(guide, "a", "b") == {"b", "<end>"}
    assert allowed(Guide(GuideKind.REGEX, "ab|a[bc]c")) == {"a", "ab"}
    assert allowed(Guide(GuideKind.REGEX, "ab?")) == {"a", "ab"}


def test_the_guide_ends_with_the_token_after_which_nothing_may_follow() -> None:
    guide = Guide(GuideKind.REGEX, "ab")
    state = GUIDES.compile(guide).start()
    complete = []
    for token in TEXT.encode("ab"):
        state.advance(token)
        complete.append(state.is_complete)
    assert complete == [False, True]
    assert drawn(guide, 1) == "ab"


def test_an_end_token_ends_the_guide() -> None:
    *tokens, last = tokens_of(Guide(GuideKind.REGEX, "a+"), 3)
    assert last == END
    assert set(TEXT.decode(tokens)) == {"a"}


def test_each_of_several_end_tokens_may_end_a_text() -> None:
    text = TokenizerText(TOKENIZER, end_tokens=frozenset({START, END}))
    state = Guides(text).compile(Guide(GuideKind.REGEX, "a*")).start()
    assert {START, END} < set(np.flatnonzero(state.allowed_mask()).tolist())
    state.advance(START)
    assert state.is_complete


def test_special_tokens_are_no_text() -> None:
    assert "<start>" not in allowed(Guide(GuideKind.REGEX, ".*"))
    assert drawn(Guide(GuideKind.REGEX, "<start>"), 1) == "<start>"


def test_texts_with_one_guide_do_not_disturb_each_other() -> None:
    compiled = GUIDES.compile(Guide(GuideKind.CHOICE, '["ab", "12"]'))
    assert compiled is GUIDES.compile(Guide(GuideKind.CHOICE, '["ab", "12"]'))
    first, second = compiled.start(), compiled.start()
    first.advance(TEXT.encode("a")[0])
    second.advance(TEXT.encode("1")[0])
    assert np.flatnonzero(first.allowed_mask()).tolist() == TEXT.encode("b")
    assert np.flatnonzero(second.allowed_mask()).tolist() == TEXT.encode("2")


def test_a_token_that_may_not_come_is_a_fault() -> None:
    state = GUIDES.compile(Guide(GuideKind.REGEX, "ab")).start()
    with pytest.raises(GuideFaultError, match=r"cannot be followed: '.*doesn't satisfy"):
        state.advance(START)


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        (
            GuideKind.REGEX,
            "a(",
            "expected a regular expression that a text can be held to, got 'a(': 'unclosed group'",
        ),
        (
            GuideKind.JSON_SCHEMA,
            '{"type":"some"}',
            "that a text can be held to, got '{\"type\":\"some\"}': 'Invalid type: some'",
        ),
        (
            GuideKind.GRAMMAR,
            "start: x",
            "expected a grammar that a text can be held to, got 'start: x': 'at 1(8): unknown name",
        ),
        (GuideKind.JSON_SCHEMA, '{"$ref":"http://localhost/x"}', "not present in a registry"),
        (GuideKind.JSON_SCHEMA, '{"enum":[]}', "Unsatisfiable schema"),
        (GuideKind.JSON_SCHEMA, '{"not":{}}', "Unimplemented keys"),
        (GuideKind.GRAMMAR, "", "expected a grammar that a text can be held to, got: '"),
    ],
)
def test_what_no_text_can_be_held_to_is_refused(kind: GuideKind, source: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        GUIDES.compile(Guide(kind, source))
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_grammar_with_too_many_readings_fails_the_text() -> None:
    rules = [f'r{i}: "a" r{i * 7 % 900} | "a" r{i * 3 % 900} | "b"' for i in range(900)]
    source = "\n".join([f"start: {{BEGIN}}({' | '.join(f'r{i}' for i in range(900))})", *rules])
    with pytest.raises(RequestError, match="Current row has"):
        GUIDES.compile(Guide(GuideKind.GRAMMAR, source.replace("{BEGIN}", "")))
    state = GUIDES.compile(
        Guide(GuideKind.GRAMMAR, source.replace("{BEGIN}", "/[xy]{5}/ "))
    ).start()
    *begin, last = TEXT.encode("xyxyx")
    for token in begin:
        state.advance(token)
    with pytest.raises(GuideFaultError, match="Current row has"):
        state.advance(last)


def test_a_grammar_with_too_many_first_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "MASK_ITEMS", 10)
    source = f"start: {' | '.join(f'r{i}' for i in range(20))}\n" + "\n".join(
        f'r{i}: "{chr(97 + i)}" "x"' for i in range(20)
    )
    with pytest.raises(RequestError, match="Too many items"):
        GUIDES.compile(Guide(GuideKind.GRAMMAR, source))


def test_a_model_without_end_tokens_has_no_guides() -> None:
    with pytest.raises(RequestError, match="needs a model with an end token") as caught:
        Guides(TokenizerText(Tokenizer(models.BPE()))).compile(Guide(GuideKind.REGEX, "a"))
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install '\.\[llm\]' in the checkout") as caught:
        Guides(TEXT).compile(Guide(GuideKind.REGEX, "a"))
    assert caught.value.code is ErrorCode.UNSUPPORTED
