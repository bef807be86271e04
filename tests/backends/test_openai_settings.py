"""What a model configuration says for OpenAI's API, and what keeps such a model from loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tritrio.actors._model_preparation import PreparationSettings, PreparedVersion, prepare_model
from tritrio.actors._repository_scan import scan_repository

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 3, "pad_type_id": 0, "pad_token": "[PAD]",
    },
    "added_tokens": [],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {"a": 0, "b": 1, "[UNK]": 2, "[PAD]": 3},
        "unk_token": "[UNK]",
    },
}  # fmt: skip
CONFIG = """
backend: "identity"
max_batch_size: 2
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "embedding_tokenizer" value { string_value: "tokenizer.json" } }
"""


def prepared(place: Path, config: str, tokenizer: bytes | None = None) -> PreparedVersion:
    (place / "m" / "1").mkdir(parents=True)
    (place / "m" / "config.pbtxt").write_text(config)
    if tokenizer is not None:
        (place / "m" / "tokenizer.json").write_bytes(tokenizer)
    (files,) = scan_repository(place)
    (version,) = prepare_model(files, PreparationSettings()).versions
    return version


def test_a_model_that_makes_embeddings(tmp_path: Path) -> None:
    version = prepared(tmp_path, CONFIG, json.dumps(TOKENIZER).encode())
    assert version.error is None
    model = version.openai.embedding
    assert model is not None
    assert model.encode(["A b", "c"]) == [[0, 1], [2]]  # without the padding of the file
    assert (model.inputs, model.output, model.dimensions) == (frozenset({"input_ids"}), "out", 4)
    assert (model.padding, model.tokens_max, model.vocabulary_size) == (3, 512, 4)


def test_others_make_none(tmp_path: Path) -> None:
    version = prepared(tmp_path, CONFIG[: CONFIG.index("parameters")])
    assert version.error is None
    assert version.openai.embedding is None
    assert version.openai.tool_call_parser == ""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("max_batch_size: 2", "", "max_batch_size of at least 1"),
        ("input_ids", "ids", "an input 'input_ids'"),
        ("TYPE_INT64", "TYPE_INT32", "inputs INT64 [-1]"),
        ("dims: [ 4 ]", "dims: [ -1 ]", "one output FP32 [n]"),
        ("tokenizer.json", "none.json", "cannot be read"),
        ("tokenizer.json", "../x", "must lie in the model's directory"),
        ("tokenizer.json", "config.pbtxt", "needs a tokenizer.json"),
        ('key: "embedding_tokenizer"', 'key: "tool_call_parser"', "'hermes' or"),
    ],
)
def test_what_is_wrong_keeps_a_model_from_loading(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    assert before in CONFIG
    error = prepared(tmp_path, CONFIG.replace(before, after), json.dumps(TOKENIZER).encode()).error
    assert error is not None
    assert error.message.startswith("model 'm': ")
    assert told in error.message


def test_the_limit_of_tokens_is_a_number(tmp_path: Path) -> None:
    limit = 'parameters { key: "embedding_tokens_max" value { string_value: "0" } }'
    error = prepared(tmp_path, CONFIG + limit, json.dumps(TOKENIZER).encode()).error
    assert error is not None
    assert "embedding_tokens_max" in error.message
