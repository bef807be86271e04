"""Text and tokens, as a model's files say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models, processors

from tests.support.tokenizers import byte_level, sentencepiece, unigram, word_level, word_piece
from tritrio.backends.llm.text import Text
from tritrio.backends.llm.tokenizers import TokenizerText, load_text
from tritrio.protocol.errors import ErrorCode, RequestError

KINDS = (byte_level, sentencepiece, word_piece, word_level, unigram)
USER = [{"role": "user", "content": "Hi"}]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def streamed(text: Text, tokens: list[int], *, skip_special_tokens: bool = True) -> list[str]:
    """What each token adds, and what is left at the end."""
    stream = text.stream(skip_special_tokens=skip_special_tokens)
    return [*map(stream.push, tokens), stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
def test_parts_of_a_text_are_the_text(
    kind: Callable[[], Tokenizer], data: st.DataObject, skip: bool
) -> None:
    text = TEXTS[kind]
    tokens = data.draw(st.lists(st.integers(0, text.vocabulary_size + 1), max_size=12))
    whole = text.decode(tokens, skip_special_tokens=skip)
    assert "".join(streamed(text, tokens, skip_special_tokens=skip)) == whole


@pytest.mark.parametrize("kind", [byte_level, word_piece, word_level, unigram])
@given(data=st.data(), skip=st.booleans())
def test_a_text_is_what_the_library_makes_of_it(
    kind: Callable[[], Tokenizer], data: st.DataObject, skip: bool
) -> None:
    text, library = TEXTS[kind], LIBRARIES[kind]
    tokens = data.draw(st.lists(st.integers(0, text.vocabulary_size - 1), max_size=12))
    assert text.decode(tokens, skip_special_tokens=skip) == library.decode(
        tokens, skip_special_tokens=skip
    )


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_comes_back_from_its_tokens(kind: Callable[[], Tokenizer], original: str) -> None:
    text = TEXTS[kind]
    assert text.decode(text.encode(original), skip_special_tokens=False) == original


TEXTS = {kind: TokenizerText(kind()) for kind in KINDS}
LIBRARIES = {kind: kind() for kind in KINDS}


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_a_character_comes_out_with_its_last_byte(kind: Callable[[], Tokenizer]) -> None:
    text = TEXTS[kind]
    tokens = text.encode("😀hi")
    parts = streamed(text, tokens)
    assert "".join(parts) == "😀hi"
    assert "�" not in "".join(parts)
    assert parts.index("😀") in {2, 4}  # a merged and two single bytes; a space and four bytes


def test_a_broken_character_is_replaced_when_that_is_certain() -> None:
    text = TEXTS[byte_level]
    first_bytes = text.encode("😀")[:2]
    assert streamed(text, [*first_bytes, *text.encode("hello")]) == ["", "", "�hello", ""]
    assert streamed(text, first_bytes) == ["", "", "�"]


def test_a_sentence_piece_text_begins_without_its_space() -> None:
    text = TEXTS[sentencepiece]
    tokens = text.encode("hi  hi")
    assert streamed(text, tokens) == ["hi", " ", " hi", ""]
    assert text.token_text(tokens[0]) == " hi"


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    text = TEXTS[byte_level]
    tokens = text.encode("<s>hello<think> hello</s>")
    assert len(tokens) == 5
    assert text.decode(tokens) == "hello<think> hello"
    assert text.decode(tokens, skip_special_tokens=False) == "<s>hello<think> hello</s>"
    assert [text.token_text(token) for token in tokens] == [
        "<s>",
        "hello",
        "<think>",
        " hello",
        "</s>",
    ]


def test_tokens_added_later_are_written_as_they_are() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens(["é"])
    text = TokenizerText(tokenizer)
    assert len(text.encode("é")) == 1
    assert text.decode(text.encode("é")) == "é"


def test_a_token_that_looks_like_a_broken_character_is_not_held_for_long() -> None:
    broken = 10
    text = TEXTS[word_piece]
    assert text.token_text(broken) == "�"
    assert streamed(text, [broken] * 5) == ["", "", "", "� � � �", "", " �"]


def test_a_token_by_itself_may_be_part_of_a_character() -> None:
    text = TEXTS[byte_level]
    tokens = text.encode("😀")
    assert b"".join(map(text.token_bytes, tokens)) == "😀".encode()
    assert text.token_text(tokens[0]) == "�"
    assert TEXTS[word_piece].token_bytes(2) == b"##ing"


def test_tokens_that_do_not_exist_have_no_text() -> None:
    for text in TEXTS.values():
        assert text.decode([-1, text.vocabulary_size, 10**9]) == ""
        assert text.token_bytes(-1) == text.token_bytes(10**9) == b""


def test_what_is_no_unicode_is_replaced_in_prompts() -> None:
    text = TEXTS[byte_level]
    assert text.decode(text.encode("a\ud800b")) == "a?b"


@pytest.mark.slow
def test_a_long_prompt_does_not_hold_up_other_threads() -> None:
    text = TokenizerText(byte_level())
    ticks = [perf_counter()]
    with ThreadPoolExecutor(1) as pool:
        tokens = pool.submit(text.encode, "\U0001f984" * 100_000)
        while not tokens.done():
            ticks.append(perf_counter())
        assert len(tokens.result()) > 100_000
    pauses_s = [after - before for before, after in pairwise(ticks)]
    assert max(pauses_s) < sum(pauses_s) / 2


def test_a_text_that_a_vocabulary_cannot_write_is_refused() -> None:
    text = TokenizerText(Tokenizer(models.WordLevel({"one": 0})))
    assert text.encode("one") == [0]
    with pytest.raises(RequestError) as caught:
        text.encode("four")
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith("the model's tokenizer cannot write the text: ")


def test_the_files_settings_for_batches_do_not_cut_or_fill_prompts(tmp_path: Path) -> None:
    tokenizer = word_level()
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = load_text(tmp_path)
    assert text.encode("one two three") == [1, 2, 3]
    assert text.encode("one") == [1]


def save(directory: Path, tokenizer: Tokenizer | None = None, **files: Any) -> Path:
    """Write a tokenizer and JSON files, whose names have `_` for the last dot."""
    (tokenizer or byte_level()).save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def refusal(directory: Path, **arguments: Any) -> str:
    with pytest.raises(RequestError) as caught:
        load_text(directory, **arguments)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_a_tokenizer_alone_has_no_chat_and_no_end(tmp_path: Path) -> None:
    text = load_text(save(tmp_path))
    assert (text.vocabulary_size, text.end_tokens, text.can_chat) == (266, frozenset(), False)
    with pytest.raises(RequestError, match="the model has no chat template"):
        text.render_chat(USER)


def test_the_configuration_of_a_tokenizer_tells_template_and_end(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "special": True},
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    text = load_text(save(tmp_path, tokenizer_config=config))
    assert text.end_tokens == {text.encode("</s>")[0]}
    assert text.can_chat
    assert text.render_chat(USER) == "<s>user: Hi\n"


def test_the_configuration_of_generation_decides_on_the_end(tmp_path: Path) -> None:
    config = {"eos_token": "</s>"}
    save(tmp_path, tokenizer_config=config, generation_config={"eos_token_id": [3, 7]})
    assert load_text(tmp_path).end_tokens == {3, 7}
    assert load_text(tmp_path, end_tokens=[]).end_tokens == frozenset()
    save(tmp_path, generation_config={"eos_token_id": 5})
    assert load_text(tmp_path).end_tokens == {5}


def test_of_named_templates_one_may_be_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    text = load_text(save(tmp_path, tokenizer_config={"chat_template": named}))
    assert text.render_chat(USER) == text.render_chat(USER, tools=[]) == "plain"
    assert text.render_chat(USER, tools=[{"type": "function"}]) == "tools"


def test_no_tools_are_none_for_templates(tmp_path: Path) -> None:
    text = load_text(save(tmp_path, tokenizer_config={"chat_template": "{{ tools is none }}"}))
    assert text.render_chat(USER, tools=[]) == "True"


def test_a_file_for_the_template_goes_first(tmp_path: Path) -> None:
    save(tmp_path, tokenizer_config={"chat_template": "from the configuration"})
    (tmp_path / "chat_template.jinja").write_text("from the file")
    (tmp_path / "other.jinja").write_text("from another file")
    assert load_text(tmp_path).render_chat(USER) == "from the file"
    assert load_text(tmp_path, chat_template="other.jinja").render_chat(USER) == "from another file"


def test_a_prompt_begins_once(tmp_path: Path) -> None:
    tokenizer = byte_level()
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    config = {"bos_token": "<s>", "chat_template": TEMPLATE}
    text = load_text(save(tmp_path, tokenizer, tokenizer_config=config))
    assert text.encode("hello")[0] == bos
    assert text.encode(text.render_chat(USER)).count(bos) == 1


def test_the_tokenizer_may_be_in_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    save(tmp_path / "words", word_level(), tokenizer_config={"eos_token": "</s>"})
    for name in ("words", "words/tokenizer.json"):
        text = load_text(tmp_path, tokenizer=name)
        assert text.encode("one three") == [1, 3]
        assert text.end_tokens == {5}


@pytest.mark.parametrize("name", ["../tokenizer.json", "/etc/passwd", "a/../../b", "a\0b"])
def test_no_name_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    save(tmp_path)
    directory = tmp_path / "1"
    directory.mkdir()
    save(directory)
    reason = f"expected a file inside the model's directory, got '{name}', which leads out"
    assert refusal(directory, tokenizer=name) == reason
    assert refusal(directory, chat_template=name) == reason


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "1"
    directory.mkdir()
    assert refusal(directory) == "expected tokenizer.json or one GGUF file in '1', got neither"
    (directory / "a.gguf").touch()
    (directory / "b.gguf").touch()
    assert refusal(directory) == (
        "expected tokenizer.json or one GGUF file in '1', got ['a.gguf', 'b.gguf']"
    )
    assert refusal(directory, tokenizer="c.json") == (
        "expected 'c.json' in the model's directory, got no such file"
    )
    assert refusal(directory, tokenizer="x" * 300).endswith("directory, got no such file")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "a.gguf"]
)
def test_no_file_is_a_pipe_that_would_be_waited_for(tmp_path: Path, name: str) -> None:
    if name != "a.gguf":
        save(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert refusal(tmp_path) == f"{name}: expected a regular file"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", "{", "tokenizer.json: cannot be read as a tokenizer: "),
        ("tokenizer_config.json", "{", "tokenizer_config.json: expected JSON, got an error: "),
        ("tokenizer_config.json", "[1]", "tokenizer_config.json: expected an object, got an array"),
        (
            "tokenizer_config.json",
            '{"eos_token": 3}',
            "tokenizer_config.json: expected a token as eos_token, got 3",
        ),
        (
            "tokenizer_config.json",
            '{"eos_token": "<none>"}',
            "tokenizer_config.json: expected a token of the vocabulary as eos_token, got '<none>'",
        ),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": "rag", "template": ""}]}',
            "tokenizer_config.json: expected a string or a list of templates with names, ",
        ),
        (
            "tokenizer_config.json",
            '{"chat_template": "{{"}',
            "tokenizer_config.json: line 1 of the chat template is wrong: ",
        ),
        (
            "generation_config.json",
            '{"eos_token_id": "2"}',
            "generation_config.json: expected a token id or a list of them as eos_token_id, got ",
        ),
        (
            "generation_config.json",
            '{"eos_token_id": 266}',
            "expected end tokens from 0 to 265, got 266",
        ),
    ],
)
def test_files_that_are_wrong_are_named(
    tmp_path: Path, name: str, content: str, reason: str
) -> None:
    save(tmp_path)
    (tmp_path / name).write_text(content)
    assert refusal(tmp_path).startswith(reason)
