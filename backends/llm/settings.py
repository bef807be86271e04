"""The settings of a model that generates text: `model.json` in its version directory.

Source: the engine arguments of vLLM, by their names, in the file that Triton's vLLM backend reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, final

from ...protocol.errors import RequestError, invalid_argument
from ...protocol.json_text import parse_object
from ...protocol.wording import names_text, quoted, shown
from ..base import InstancePlace, ModelSource
from ..model_file import path_inside

SETTINGS_FILE: Final = "model.json"
SETTINGS_BYTES_MAX: Final = 1 << 20
"""Largest settings file; there is no way to fill one."""

SEQUENCES_MAX: Final = 1024
"""Most sequences at a time; each has a task, and a row of a batch that no machine would finish."""
MODEL_LEN_MAX: Final = 1 << 24
"""Longest sequence, in tokens: longer than any model sees."""
KV_BYTES_MAX: Final = 1 << 44
"""Most bytes of state: more than any machine has."""
THREADS_MAX: Final = 1024
"""Most threads of a model; more than any machine has use for."""
END_TOKENS_MAX: Final = 64
"""Most end tokens; models have a few."""

DEFAULT_NUM_SEQS: Final = 8
"""Where decoding of small models on few cores stops to gain from company."""
DEFAULT_PROMPT_TOKENS: Final = 56
"""Prompt tokens of a step, beside those that go on: with a model of 135 million int8 weights on two
cores, such a part and 8 that go on take 100 ms, which is the longest that one of these waits."""


@final
@dataclass(frozen=True, slots=True)
class TensorNames:
    """What the tensors of an ONNX graph are called; `%d` stands for the number of a layer.

    Attributes:
      input_ids: Tokens [batch, tokens].
      attention_mask: 1 for each token there is, those before included [batch, all tokens].
      position_ids: Places of the tokens in their sequences [batch, tokens].
      seqlens_k: Tokens of each row with these, less one [batch].
      total_seq_len: Most tokens of a row with these.
      logits: [batch, vocabulary] or [batch, tokens, vocabulary].
      past_key: Keys so far [batch, heads, length, head size].
      past_value: Values so far.
      present_key: Keys with these tokens, in the memory of the ones so far.
      present_value: Values with these tokens.
    """

    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    seqlens_k: str = "seqlens_k"
    total_seq_len: str = "total_seq_len"
    logits: str = "logits"
    past_key: str = "past_key_values.%d.key"
    past_value: str = "past_key_values.%d.value"
    present_key: str = "present.%d.key"
    present_value: str = "present.%d.value"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings:
    """What a `model.json` says; None is what the model decides.

    Attributes:
      model: The file in the version directory: an ONNX graph, or Python code if it ends in `.py`.
      model_class: The class in the code.
      tokenizer: The file of the tokenizer; "" for what there is.
      chat_template: The file of the chat template; "" for what there is.
      eos_token_id: Tokens that end a text.
      max_num_seqs: Sequences that can have state at a time.
      max_model_len: Most tokens of a sequence, prompt and text together.
      max_num_batched_tokens: Most tokens of a step.
      kv_cache_memory_bytes: Most bytes of state.
      enable_prefix_caching: Whether the beginning of a prompt is taken from another sequence.
      intra_op_num_threads: Threads of the model; None for the instance's share of the CPUs.
      tensors: What the tensors of the graph are called.
    """

    model: str = "model.onnx"
    model_class: str = "TritonGenerationModel"
    tokenizer: str = ""
    chat_template: str = ""
    eos_token_id: frozenset[int] | None = None
    max_num_seqs: int = DEFAULT_NUM_SEQS
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    intra_op_num_threads: int | None = None
    tensors: TensorNames = field(default_factory=TensorNames)

    @property
    def is_python(self) -> bool:
        """Whether the model is Python code."""
        return self.model.endswith(".py")

    @property
    def step_tokens(self) -> int:
        """Most tokens of a step."""
        return self.max_num_batched_tokens or self.max_num_seqs + DEFAULT_PROMPT_TOKENS

    def onnx_threads(self, place: InstancePlace) -> int:
        """Return how many threads execute a graph."""
        return self.intra_op_num_threads or place.cpu_threads


_RANGES: Final = {
    "max_num_seqs": SEQUENCES_MAX,
    "max_model_len": MODEL_LEN_MAX,
    "max_num_batched_tokens": MODEL_LEN_MAX,
    "kv_cache_memory_bytes": KV_BYTES_MAX,
    "intra_op_num_threads": THREADS_MAX,
}
"""Setting -> its largest value; 1 is the smallest, but for max_model_len."""
_MODEL_LEN_MIN: Final = 2
"""A prompt of one token, and one of text."""
_FILES: Final = ("model", "tokenizer", "chat_template")
_TEXTS: Final = (*_FILES, "model_class")


def read_settings(source: ModelSource, filename: str = "") -> LlmSettings:
    """Read and check the settings of a model.

    Args:
      source: Where it lies.
      filename: The file in the version directory; "" for `SETTINGS_FILE`.

    Raises:
      RequestError: INVALID_ARG; the file is missing, or something in it is unknown or wrong.
    """
    filename = filename or SETTINGS_FILE
    path = path_inside(source, filename)
    where = f"model '{source.name}' version {source.version}: {quoted(filename)}"
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise invalid_argument(f"{where}: expected a regular file")
        with path.open("rb") as file:
            content = file.read(SETTINGS_BYTES_MAX + 1)
    except OSError as error:
        raise invalid_argument(
            f"{where}: expected the model's settings, which cannot be read: {error.strerror}"
        ) from None
    if len(content) > SETTINGS_BYTES_MAX:
        raise invalid_argument(f"{where}: expected at most {SETTINGS_BYTES_MAX} bytes, got more")
    try:
        return parse_settings(content)
    except RequestError as error:
        raise invalid_argument(f"{where}: {error.message}") from None


def parse_settings(content: bytes) -> LlmSettings:
    """Return the settings in a JSON object.

    Raises:
      RequestError: INVALID_ARG; something in it is unknown, or has a wrong type or value.
    """
    given = parse_object(content, "the model's settings")
    _refuse_unknown("setting", given, LlmSettings)
    values = {key: _checked(key, value) for key, value in given.items()}
    settings = LlmSettings(**values)
    if settings.step_tokens < settings.max_num_seqs:
        raise invalid_argument(
            f"expected max_num_batched_tokens to be max_num_seqs {settings.max_num_seqs} at least, "
            f"so that every sequence goes on in each step, got {settings.step_tokens}"
        )
    return settings


def _refuse_unknown(what: str, given: Mapping[str, Any], form: type) -> None:
    known = [each.name for each in fields(form)]
    for key in given:
        if key not in known:
            raise invalid_argument(
                f"expected a {what} among {names_text(known)}, got {quoted(key)}"
            )


def _checked(key: str, value: Any) -> Any:
    if key == "tensors":
        return _tensor_names(value)
    if key == "eos_token_id":
        return _end_tokens(value)
    if key == "enable_prefix_caching":
        if not isinstance(value, bool):
            raise _wrong(key, "true or false", value)
        return value
    if key in _TEXTS:
        if not isinstance(value, str) or not value:
            raise _wrong(key, "a text", value)
        if key == "model" and ("/" in value or value in {".", ".."}):
            raise _wrong(key, "the name of a file in the version directory", value)
        return value
    least, most = _MODEL_LEN_MIN if key == "max_model_len" else 1, _RANGES[key]
    if type(value) is not int or not least <= value <= most:
        raise _wrong(key, f"a whole number from {least} to {most}", value)
    return value


def _tensor_names(value: Any) -> TensorNames:
    if not isinstance(value, dict):
        raise _wrong("tensors", "an object with names of tensors", value)
    _refuse_unknown("kind of tensor", value, TensorNames)
    for kind, name in value.items():
        of_layer = kind.startswith(("past_", "present_"))
        if not isinstance(name, str) or name.count("%") != of_layer or of_layer != ("%d" in name):
            expected = "a name with one %d, the number of a layer," if of_layer else "a name"
            raise _wrong(f"tensors.{kind}", expected, name)
    return TensorNames(**value)


def _end_tokens(value: Any) -> frozenset[int]:
    tokens = value if isinstance(value, list) else [value]
    if len(tokens) > END_TOKENS_MAX or not all(type(each) is int and each >= 0 for each in tokens):
        expected = f"a token id, or a list of at most {END_TOKENS_MAX} of them,"
        raise _wrong("eos_token_id", expected, value)
    return frozenset(tokens)


def _wrong(key: str, expected: str, value: Any) -> RequestError:
    return invalid_argument(f"expected {expected} as {quoted(key)}, got {shown(value)}")
