"""model.json and config.pbtxt of models that generate text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.backends.builders import config_of, source_in
from tests.backends.generating import open_instance
from tests.backends.tiny_causal import CONTEXT, TOKEN_BYTES, write_tiny
from tritrio.backends.base import InstancePlace, ModelSource
from tritrio.backends.llm.backend import LlmBackend
from tritrio.backends.llm.causal_model import tokens_per_row
from tritrio.backends.llm.settings import LlmSettings, TensorNames, parse_settings, read_settings
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import (
    ModelConfig,
    ModelSequenceBatching,
    ModelTransactionPolicy,
    ModelWarmup,
)
from tritrio.protocol.sampling_params import SamplingParams

BLOCKS = f"with {TOKEN_BYTES} bytes a token and blocks of 16 tokens"


def test_what_is_not_written_has_a_default() -> None:
    settings = parse_settings(b"{}")
    assert settings == LlmSettings()
    assert settings.max_num_seqs == 8
    assert settings.step_tokens == 64
    assert settings.enable_prefix_caching
    assert not settings.is_python


def test_settings_have_the_names_of_engine_arguments() -> None:
    settings = parse_settings(
        b'{"model": "model.py", "model_class": "Mine", "tokenizer": "t.json",'
        b' "chat_template": "c.jinja", "eos_token_id": [2, 3], "max_num_seqs": 4,'
        b' "max_model_len": 100, "max_num_batched_tokens": 32, "kv_cache_memory_bytes": 4096,'
        b' "enable_prefix_caching": false, "intra_op_num_threads": 2,'
        b' "tensors": {"logits": "scores", "past_key": "k%d"}}'
    )
    assert settings == LlmSettings(
        model="model.py",
        model_class="Mine",
        tokenizer="t.json",
        chat_template="c.jinja",
        eos_token_id=frozenset({2, 3}),
        max_num_seqs=4,
        max_model_len=100,
        max_num_batched_tokens=32,
        kv_cache_memory_bytes=4096,
        enable_prefix_caching=False,
        intra_op_num_threads=2,
        tensors=TensorNames(logits="scores", past_key="k%d"),
    )
    assert settings.is_python
    assert settings.step_tokens == 32
    assert parse_settings(b'{"eos_token_id": 2}').eos_token_id == frozenset({2})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"gpu_memory_utilization": 0.5}', "expected a setting among ['model', .*'tensors'], got"),
        ('{"max_num_seqs": 0}', "a whole number from 1 to 1024 as 'max_num_seqs', got 0"),
        ('{"max_num_seqs": 1025}', "a whole number from 1 to 1024 as 'max_num_seqs', got 1025"),
        ('{"max_num_seqs": true}', "a whole number from 1 to 1024 as 'max_num_seqs', got true"),
        ('{"max_num_seqs": 2.0}', "a whole number from 1 to 1024 as 'max_num_seqs', got 2.0"),
        ('{"max_model_len": 1}', "a whole number from 2 to 16777216 as 'max_model_len', got 1"),
        ('{"kv_cache_memory_bytes": -1}', "'kv_cache_memory_bytes', got -1"),
        ('{"intra_op_num_threads": 0}', "from 1 to 1024 as 'intra_op_num_threads', got 0"),
        ('{"max_num_batched_tokens": 7}', "max_num_batched_tokens to be max_num_seqs 8 at least"),
        ('{"enable_prefix_caching": 1}', "true or false as 'enable_prefix_caching', got 1"),
        ('{"model": ""}', "a text as 'model', got ''"),
        ('{"model": "../other.onnx"}', "a file in the version directory as 'model', got '../oth"),
        ('{"eos_token_id": "</s>"}', "a token id, or a list of at most 64 of them, as 'eos_tok"),
        ('{"eos_token_id": [-1]}', "a token id, or a list of at most 64 of them, as 'eos_token_id"),
        ('{"tensors": []}', "an object with names of tensors as 'tensors', got an array of 0"),
        ('{"tensors": {"mask": "m"}}', "a kind of tensor among ['input_ids', .*], got 'mask'"),
        ('{"tensors": {"past_key": "k"}}', "a name with one %d, .* as 'tensors.past_key', got 'k'"),
        ('{"tensors": {"past_key": "%s%d"}}', "with one %d, .* as 'tensors.past_key', got '%s%d'"),
        ('{"tensors": {"logits": 5}}', "a name as 'tensors.logits', got 5"),
        ('{"max_num_seqs": 1, "max_num_seqs": 2}', "max_num_seqs"),
        ("[]", "expected a JSON object"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(
    tmp_path: Path, content: str, message: str
) -> None:
    source = source_in(tmp_path)
    (source.version_directory / "model.json").write_text(content)
    parts = message.split(".*")
    with pytest.raises(RequestError) as caught:
        read_settings(source)
    assert caught.value.code is ErrorCode.INVALID_ARG
    text = caught.value.message
    assert text.startswith("model 'm' version 1: 'model.json': ")
    for part in parts:
        assert part in text


def test_settings_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    with pytest.raises(RequestError, match=r"'model.json': .* cannot be read: No such file"):
        read_settings(source)
    (source.version_directory / "model.json").mkdir()
    with pytest.raises(RequestError, match="expected a regular file"):
        read_settings(source)


@pytest.mark.parametrize(
    ("settings", "tokens", "budget_bytes"),
    [
        ("{}", CONTEXT, 8 * CONTEXT * TOKEN_BYTES),
        ('{"max_model_len": 20, "max_num_seqs": 2}', 20, 2 * 32 * TOKEN_BYTES),
        (f'{{"kv_cache_memory_bytes": {80 * TOKEN_BYTES}}}', CONTEXT, 80 * TOKEN_BYTES),
        (f'{{"kv_cache_memory_bytes": {50 * TOKEN_BYTES}}}', 48, 50 * TOKEN_BYTES),
        (f'{{"kv_cache_memory_bytes": {32 * TOKEN_BYTES}, "max_model_len": 30}}', 30, 32 * 512),
    ],
)
def test_sequences_are_as_long_as_model_and_memory_allow(
    tmp_path: Path, settings: str, tokens: int, budget_bytes: int
) -> None:
    limits = open_instance(write_tiny(tmp_path, settings=settings)).limits
    assert limits.tokens_per_row == tokens
    assert limits.kv_budget_bytes == budget_bytes
    assert limits.capacity_tokens == min(tokens * limits.rows, budget_bytes // TOKEN_BYTES)


@pytest.mark.parametrize(
    ("budget_bytes", "tokens"),
    [
        (None, (1 << 30) // 8 // 1000),
        (1 << 29, (1 << 30) // 8 // 1000),
        (1 << 31, (1 << 31) // 8 // 1000),
        (1 << 26, (1 << 26) // 1000),
    ],
)
def test_rows_are_as_long_as_they_fit_side_by_side_and_one_within_the_budget(
    budget_bytes: int | None, tokens: int
) -> None:
    settings = LlmSettings(max_num_seqs=8, kv_cache_memory_bytes=budget_bytes)
    assert tokens_per_row(settings, 1 << 20, 1000) == tokens // 16 * 16


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"settings": '{"max_model_len": 65}'}, "at most the 64 tokens that the model can see"),
        (
            {"settings": f'{{"kv_cache_memory_bytes": {16 * TOKEN_BYTES - 1}}}'},
            f"to be {16 * TOKEN_BYTES} at least, room for one sequence, {BLOCKS}, got 8191",
        ),
        (
            {"settings": f'{{"kv_cache_memory_bytes": {31 * TOKEN_BYTES}, "max_model_len": 30}}'},
            f"room for one sequence of max_model_len 30 tokens, {BLOCKS}, got {31 * TOKEN_BYTES}",
        ),
        ({"context": False}, "expected max_model_len in the settings"),
        ({"in_place": False}, "expected a graph whose present keys and values may lie where"),
        ({"state": "kv.%d."}, "in inputs such as 'past_key_values.0.key', got the inputs ['inp"),
        ({"settings": '{"model": "other.onnx"}'}, "file other.onnx, which cannot be read"),
        ({"settings": '{"tensors": {"logits": "x"}}'}, "expected an output with logits, 'x', got"),
        ({"settings": '{"tensors": {"seqlens_k": "x"}}'}, "expected inputs of the graph among"),
        ({"settings": '{"eos_token_id": 64}'}, "64"),
    ],
    ids=str,
)
def test_a_model_that_does_not_fit_says_why(
    tmp_path: Path, form: dict[str, Any], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        open_instance(write_tiny(tmp_path, **form))
    capfd.readouterr()  # ONNX Runtime says it too
    assert caught.value.message.startswith("model 'm'")
    assert message in caught.value.message


def test_a_model_for_a_gpu_is_refused(tmp_path: Path) -> None:
    source, backend = write_tiny(tmp_path), LlmBackend()
    config = backend.complete_config(source, ModelConfig(name="m"))
    instance = backend.create_instance(source, config, InstancePlace("m_0_0", kind="GPU"))
    with pytest.raises(RequestError, match="expected KIND_CPU"):
        instance.load()
    instance.unload()


def test_a_configuration_gets_the_tensors_of_all_such_models(tmp_path: Path) -> None:
    config = LlmBackend().complete_config(write_tiny(tmp_path), ModelConfig(name="m"))
    assert [tensor.name for tensor in config.input][:3] == ["text_input", "input_ids", "stream"]
    assert all(tensor.optional for tensor in config.input)
    assert [tensor.name for tensor in config.output][:2] == ["text_output", "finish_reason"]
    assert config.model_transaction_policy == ModelTransactionPolicy(decoupled=True)
    assert config.max_batch_size == 0
    assert LlmBackend().complete_config(write_tiny(tmp_path), config) == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(max_batch_size=4), "expected max_batch_size 0, .*, got 4"),
        (
            ModelConfig(model_transaction_policy=ModelTransactionPolicy()),
            r"expected model_transaction_policy \{ decoupled: true \}, got false",
        ),
        (ModelConfig(sequence_batching=ModelSequenceBatching()), "expected no sequence_batching"),
        (ModelConfig(model_warmup=[ModelWarmup(name="w")]), "expected no model_warmup"),
        (config_of([("prompt", "BYTES", [1])]), "inputs among .*, got 'prompt'"),
        (config_of([], [("text", "BYTES", [1])]), "outputs among .*, got 'text'"),
        (
            config_of([("stream", "INT32", [1])]),
            r"input 'stream' to be BOOL \[1\] without reshape, got INT32 \[1\]",
        ),
        (config_of([("stream", "BOOL", [1])]), "expected input 'stream' to be optional: true"),
    ],
)
def test_a_configuration_that_contradicts_is_refused(
    tmp_path: Path, config: ModelConfig, message: str
) -> None:
    config.name = "m"
    with pytest.raises(RequestError, match=f"^model 'm': .*{message}") as caught:
        LlmBackend().complete_config(write_tiny(tmp_path), config)
    assert caught.value.code is ErrorCode.INVALID_ARG


def with_recommendation(directory: Path, content: str) -> ModelSource:
    source = write_tiny(directory)
    (source.version_directory / "generation_config.json").write_text(content)
    return source


def test_authors_recommend_how_tokens_are_chosen(tmp_path: Path) -> None:
    content = (
        '{"temperature": 0.2, "top_p": 0.9, "top_k": 50, "min_p": 0.1, "repetition_penalty": 1.1,'
        ' "max_new_tokens": 99, "do_sample": true, "pad_token_id": null}'
    )
    assert open_instance(with_recommendation(tmp_path, content)).sampling_defaults == (
        SamplingParams(
            temperature=0.2,
            top_p=0.9,
            top_k=50,
            min_p=0.1,
            repetition_penalty=1.1,
            max_tokens=99,
        )
    )
    assert open_instance(write_tiny(tmp_path / "other")).sampling_defaults == SamplingParams()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "expected an object, got an array of 0"),
        ("{", "expected JSON, got an error: "),
        ('{"temperature": "0.2"}', "expected a number as temperature, got "),
        ('{"top_k": true}', "expected a number as top_k, got true"),
        ('{"top_p": 0}', "sampling parameter 'top_p' must be a number above 0 and at most 1, got"),
        ('{"max_new_tokens": 0}', "sampling parameter 'max_new_tokens' must be an integer >= 1"),
    ],
)
def test_a_wrong_recommendation_keeps_the_model_from_loading(
    tmp_path: Path, content: str, message: str
) -> None:
    source = with_recommendation(tmp_path, content)
    with pytest.raises(RequestError, match=re.escape(f"generation_config.json: {message}")):
        open_instance(source)
