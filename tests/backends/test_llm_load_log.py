"""What an operator reads of a model that generates text, once it is loaded."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.backends.generating import open_instance
from tests.backends.test_llm_python import COUNTING, write_python
from tests.backends.tiny_causal import TOKEN_BYTES, write_tiny
from tritrio.memory.system_usage import read_system_usage

RESOLVED = (
    "model instance 'm_0_0' generates text; rows: 8, tokens of a row: 64, bytes of KV memory: "
    f"{512 * TOKEN_BYTES}, tokens of KV memory: 512, tokens of a step: 64, end tokens: 2 3, chat "
    "template: no, prefix caching: yes, threads: 1"
)


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level]


def test_what_was_decided_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    open_instance(write_tiny(tmp_path, settings='{"eos_token_id": [3, 2]}'))
    assert caplog.messages == [RESOLVED]


def test_a_class_has_its_own_threads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    open_instance(write_python(tmp_path, COUNTING))
    (line,) = said(caplog, logging.INFO)
    assert line.endswith(
        "end tokens: none, chat template: no, prefix caching: yes, threads: its own"
    )


def test_a_model_without_end_tokens_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_instance(write_tiny(tmp_path))
    (line,) = said(caplog, logging.WARNING)
    assert line == (
        "model instance 'm_0_0' knows no end token, so that its texts go on to max_tokens or the "
        "end of their row; eos_token_id in model.json names one"
    )


def test_more_kv_memory_than_the_machine_has_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = f'{{"kv_cache_memory_bytes": {1 << 44}, "eos_token_id": 2}}'
    open_instance(write_tiny(tmp_path, settings=settings))
    (line,) = said(caplog, logging.WARNING)
    assert line == (
        f"model instance 'm_0_0' may take {1 << 44} bytes for keys and values, more than the "
        f"{read_system_usage().memory_total_bytes} bytes of memory that the machine has; "
        "kv_cache_memory_bytes bounds them"
    )


def test_tokens_that_only_the_tokenizer_has_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = COUNTING.replace("vocabulary_size = 64", "vocabulary_size = 60")
    assert code != COUNTING
    open_instance(write_python(tmp_path, code))
    *_, line = said(caplog, logging.WARNING)
    assert line == (
        "model instance 'm_0_0' knows 60 tokens, and its tokenizer 64; prompts with others are "
        "refused"
    )
