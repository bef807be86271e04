"""The vocabulary of a GGUF file: small ones of each kind, and a real one."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType
from hypothesis import given, strategies as st
from tokenizers import pre_tokenizers

from tests.support.weights import smollm2_gguf
from tritrio.backends.llm.gguf_vocabulary import read_gguf_vocabulary
from tritrio.backends.llm.tokenizers import TokenizerText, load_text
from tritrio.protocol.errors import ErrorCode, RequestError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def write_gguf(path: Path, model: str, tokens: list[str], **fields: Any) -> Path:
    """Write a file without tensors; `fields` are what the writer has an `add_` method for."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level(path: Path, **fields: Any) -> Path:
    """Write a vocabulary: bytes, some of them merged, "xyz" without a merge, special tokens."""
    tokens = [*ALPHABET, "12", "34", "ab", "Ġab", "xyz", "<s>", "</s>", "<think>"]
    kinds = [TokenType.NORMAL] * (len(tokens) - 3)
    kinds += [TokenType.CONTROL, TokenType.CONTROL, TokenType.USER_DEFINED]
    fields = {
        "tokenizer_pre": "gpt-2",
        "token_types": kinds,
        "token_merges": ["1 2", "3 4", "a b", "Ġ ab"],
        "bos_token_id": tokens.index("<s>"),
        "eos_token_id": tokens.index("</s>"),
    } | fields
    return write_gguf(path, "gpt2", tokens, **fields)


def refusal(path: Path) -> str:
    with pytest.raises(RequestError) as caught:
        read_gguf_vocabulary(path)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["ab", "Ġab", "12", "34"]),
        ("default", ["ab", "Ġab", "12", "34"]),
        ("smollm", ["ab", "Ġab", "1", "2", "3", "4"]),
        ("qwen2", ["ab", "Ġab", "1", "2", "3", "4"]),
        ("llama-bpe", ["<s>", "ab", "Ġab", "12", "3", "4"]),
    ],
)
def test_the_pre_tokenizer_decides_how_digits_are_split(
    tmp_path: Path, pre: str, pieces: list[str]
) -> None:
    tokenizer = read_gguf_vocabulary(byte_level(tmp_path / "a.gguf", tokenizer_pre=pre)).tokenizer
    assert tokenizer.encode("ab ab1234").tokens == pieces


def test_some_models_take_words_they_know_without_merging_them(tmp_path: Path) -> None:
    path = byte_level(tmp_path / "a.gguf", tokenizer_pre="llama-bpe")
    assert read_gguf_vocabulary(path).tokenizer.encode("xyz").tokens == ["<s>", "xyz"]
    path = byte_level(tmp_path / "b.gguf", tokenizer_pre="gpt-2")
    assert read_gguf_vocabulary(path).tokenizer.encode("xyz").tokens == ["x", "y", "z"]


def test_some_models_compose_characters_first(tmp_path: Path) -> None:
    path = byte_level(tmp_path / "a.gguf", tokenizer_pre="qwen2")
    assert read_gguf_vocabulary(path).tokenizer.encode("e\u0301").tokens == ["Ã", "©"]


def test_control_tokens_are_special_and_the_users_are_text(tmp_path: Path) -> None:
    tokenizer = read_gguf_vocabulary(byte_level(tmp_path / "a.gguf")).tokenizer
    encoded = tokenizer.encode("<s>ab<think>")
    assert encoded.tokens == ["<s>", "ab", "<think>"]
    assert tokenizer.decode(encoded.ids) == "ab<think>"


def test_texts_begin_and_end_as_the_file_says(tmp_path: Path) -> None:
    path = byte_level(tmp_path / "a.gguf", add_bos_token=True, add_eos_token=True)
    tokenizer = read_gguf_vocabulary(path).tokenizer
    assert tokenizer.encode("ab").tokens == ["<s>", "ab", "</s>"]
    path = byte_level(tmp_path / "b.gguf", add_bos_token=False, tokenizer_pre="llama-bpe")
    tokenizer = read_gguf_vocabulary(path).tokenizer
    assert tokenizer.encode("ab").tokens == ["ab"]


def test_template_and_end_tokens_are_in_the_file(tmp_path: Path) -> None:
    path = byte_level(tmp_path / "a.gguf", chat_template="{{ eos_token }}", eot_token_id=7)
    vocabulary = read_gguf_vocabulary(path)
    assert vocabulary.chat_template == "{{ eos_token }}"
    assert vocabulary.end_tokens == (262, 7)
    text = load_text(tmp_path)
    assert text.end_tokens == {262, 7}
    assert text.render_chat([{"role": "user", "content": ""}]) == "</s>"
    assert read_gguf_vocabulary(byte_level(tmp_path / "b.gguf")).chat_template is None


@pytest.mark.parametrize("template", ["{{ messages }}", ""])
def test_the_script_writes_what_is_there_and_says_the_end_tokens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    template: str,
) -> None:
    fields = {"chat_template": template} if template else {}
    gguf = byte_level(tmp_path / "model.gguf", **fields)
    written = [tmp_path / name for name in ("tokenizer.json", "chat_template.jinja")]
    monkeypatch.setattr(sys, "argv", ["build_tokenizer", str(gguf), *map(str, written)])
    script = Path(__file__).resolve().parents[2] / "scripts" / "build_tokenizer"
    runpy.run_path(str(script), run_name="__main__")
    said = json.loads("{" + capsys.readouterr().out + "}")
    assert said == {"eos_token_id": list(read_gguf_vocabulary(gguf).end_tokens)}
    assert written[1].exists() is bool(template)
    assert load_text(tmp_path).can_chat is bool(template)


def sentencepiece(path: Path, **fields: Any) -> Path:
    """Write a vocabulary of bytes and a few pieces with scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    pieces = {"▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "▁a": -3.0}
    return write_gguf(
        path,
        "llama",
        [*tokens, *pieces],
        token_types=[*kinds, *[TokenType.NORMAL] * len(pieces)],
        token_scores=[0.0] * len(tokens) + list(pieces.values()),
        bos_token_id=1,
        eos_token_id=2,
        unk_token_id=0,
        **fields,
    )


def test_a_vocabulary_with_scores_merges_the_best_first(tmp_path: Path) -> None:
    tokenizer = read_gguf_vocabulary(sentencepiece(tmp_path / "a.gguf")).tokenizer
    assert tokenizer.encode("cabc a").tokens == ["<s>", "▁", "c", "a", "bc", "▁a"]
    assert tokenizer.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_vocabulary_may_put_a_space_in_front(tmp_path: Path, prefix: bool) -> None:
    tokenizer = read_gguf_vocabulary(
        sentencepiece(tmp_path / "a.gguf", add_space_prefix=prefix)
    ).tokenizer
    assert tokenizer.encode("a").tokens == (["<s>", "▁a"] if prefix else ["<s>", "a"])
    text = TokenizerText(tokenizer)
    for original in ("abc  a", " a", "😀 é", ""):
        assert text.decode(text.encode(original)) == original


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"tokenizer_pre": "unheard-of"},
            "a.gguf: expected a pre-tokenizer of ['codeshell', 'command-r', ",
        ),
        (
            {"bos_token_id": 264},
            "a.gguf: expected tokenizer.ggml.bos_token_id below 264, got 264",
        ),
        ({"token_merges": ["1 zz"]}, "a.gguf: its merges do not fit its tokens: "),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    assert refusal(byte_level(tmp_path / "a.gguf", **fields)).startswith(reason)


def test_other_kinds_of_vocabularies_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "t5", ["a"])
    assert refusal(path) == "a.gguf: expected a vocabulary of kind ['gpt2', 'llama'], got 't5'"


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for content in (b"", b"GGUF", b"no GGUF at all" * 9):
        path.write_bytes(content)
        assert refusal(path).startswith("a.gguf: cannot be read as a GGUF file: ")
    whole = byte_level(tmp_path / "b.gguf").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert refusal(path).startswith("a.gguf: ")


@pytest.fixture(scope="session")
def smollm2() -> TokenizerText:
    text = load_text(smollm2_gguf().parent, tokenizer=smollm2_gguf().name)
    assert isinstance(text, TokenizerText)
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("original", "tokens"),
    [
        ("Hello, world!", [19556, 28, 905, 17]),
        ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
    ],
)
def test_a_real_vocabulary_gives_the_known_tokens(
    smollm2: TokenizerText, original: str, tokens: list[int]
) -> None:
    assert smollm2.encode(original) == tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "original",
    [
        "def f(x):\n    return x**2  # 2024\n\n\tpass",
        "日本語 😀👩‍👩‍👧 naïve ǅ ﷽",
        "In 1984, 3.14159 — ½ ٣٤",
        "<|im_start|><|im_end|><|endoftext|>",
        " \r\n  leading and trailing  ",
    ],
)
def test_a_real_vocabulary_brings_texts_back(smollm2: TokenizerText, original: str) -> None:
    tokens = smollm2.encode(original)
    stream = smollm2.stream(skip_special_tokens=False)
    assert smollm2.decode(tokens, skip_special_tokens=False) == original
    assert "".join(map(stream.push, tokens)) + stream.flush() == original


@pytest.mark.slow
@given(
    tokens=st.lists(st.integers(0, 300) | st.integers(0, 49_151), max_size=20), skip=st.booleans()
)
def test_any_tokens_of_a_real_vocabulary_are_what_the_library_makes_of_them(
    smollm2: TokenizerText, tokens: list[int], skip: bool
) -> None:
    whole = smollm2._tokenizer.decode(tokens, skip_special_tokens=skip)
    stream = smollm2.stream(skip_special_tokens=skip)
    assert smollm2.decode(tokens, skip_special_tokens=skip) == whole
    assert "".join(map(stream.push, tokens)) + stream.flush() == whole


@pytest.mark.slow
def test_a_real_chat_template_makes_a_prompt(smollm2: TokenizerText) -> None:
    assert smollm2.end_tokens == {2}
    assert smollm2.vocabulary_size == 49_152
    assert smollm2.render_chat([{"role": "user", "content": "Count from 1 to 5."}]) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n"
        "Count from 1 to 5.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
