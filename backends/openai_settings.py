"""What a model configuration says for OpenAI's API: how answers call tools, and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from ..protocol.dtypes import PROTOCOL_NAMES
from ..protocol.errors import RequestError, invalid_argument
from ..protocol.openai.tool_calls import PARSERS
from ..protocol.pb.inference import ModelConfig
from ..protocol.wording import installing, names_text, quoted
from .parameters import bad_parameter, number_parameter, parameter_text

TOOL_CALL_PARSER: Final = "tool_call_parser"
"""Parameter of a model that calls tools: how it writes calls."""
TOKENIZER: Final = "embedding_tokenizer"
"""Parameter of a model that makes embeddings: its tokenizer.json, in the model's directory."""
TOKENS_MAX: Final = "embedding_tokens_max"
"""Parameter likewise: most tokens of an input."""
TOKENS_MAX_DEFAULT: Final = 512
"""What the encoders that are common for embeddings have positions for."""
TOKENS_MAX_LIMIT: Final = 1_000_000
TOKENIZER_BYTES_MAX: Final = 256 * 1024 * 1024
"""One tokenizer.json; ten times the largest that are published."""

INPUT_IDS: Final = "input_ids"
_INPUTS: Final = frozenset({INPUT_IDS, "attention_mask", "token_type_ids"})


@final
class EmbeddingModel:
    """How texts become requests to a model that makes embeddings; callable from any thread.

    Args:
      tokenizer: A `tokenizers.Tokenizer` that neither pads nor truncates.
      config: The model's.
      output: The name of its output.
      dimensions: Of that.

    Attributes:
      inputs: The names of its inputs, each INT64 `[rows, tokens]`.
      output: The name of its output, FP32 `[rows, dimensions]`.
      dimensions: Elements of an embedding.
      tokens_max: Most tokens of an input.
      padding: The token that fills rows up.
      vocabulary_size: How many tokens there are.
    """

    def __init__(self, tokenizer: Any, config: ModelConfig, output: str, dimensions: int) -> None:
        self._tokenizer = tokenizer
        self.inputs = frozenset(each.name for each in config.input)
        self.output = output
        self.dimensions = dimensions
        self.tokens_max = number_parameter(
            config, TOKENS_MAX, range(1, TOKENS_MAX_LIMIT + 1), TOKENS_MAX_DEFAULT
        )
        padding = tokenizer.padding
        self.padding: int = 0 if padding is None else padding["pad_id"]
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.vocabulary_size: int = tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts, with those that the model wants around each."""
        encoded = self._tokenizer.encode_batch_fast(list(texts))
        return [each.ids for each in encoded]


@dataclass(frozen=True, slots=True)
class OpenAiSettings:
    """What a model says for OpenAI's API.

    Attributes:
      tool_call_parser: How it writes calls of tools; "" where that is not said.
      embedding: How it makes embeddings; None if it does not.
    """

    tool_call_parser: str = ""
    embedding: EmbeddingModel | None = None


def tokenizer_file(config: ModelConfig) -> str | None:
    """Return the file that `openai_settings` needs the content of, or None."""
    return parameter_text(config, TOKENIZER)


def openai_settings(config: ModelConfig, tokenizer: bytes | None) -> OpenAiSettings:
    """Return what a configuration says; blocks while the tokenizer is made.

    Args:
      config: Completed and validated.
      tokenizer: Content of the `tokenizer_file`; None if there is none.

    Raises:
      RequestError: a parameter is wrong, the tokenizer cannot be read, or the model has not the
        tensors of one that makes embeddings.
    """
    parser = parameter_text(config, TOOL_CALL_PARSER) or ""
    if parser and parser not in PARSERS:
        expected = " or ".join(f"'{each}'" for each in PARSERS)
        raise bad_parameter(config, TOOL_CALL_PARSER, expected, parser)
    if tokenizer is None:
        return OpenAiSettings(parser)
    return OpenAiSettings(parser, _embedding_model(config, tokenizer))


def _embedding_model(config: ModelConfig, content: bytes) -> EmbeddingModel:
    _check_inputs(config)
    outputs = [
        (output.name, output.dims[0])
        for output in config.output
        if _datatype(output) == "FP32" and len(output.dims) == 1 and output.dims[0] > 0
    ]
    if len(outputs) != 1:
        raise _unfit(config, "one output FP32 [n]", names_text(name for name, _ in outputs))
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - only such models need it
    except ImportError:
        package = f"the package tokenizers, which {installing('llm')} gets"
        raise _unfit(config, package, "an installation without") from None
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises nothing narrower  # noqa: BLE001
        raise _unfit(config, "a tokenizer.json", quoted(str(error))) from None
    return EmbeddingModel(tokenizer, config, *outputs[0])


def _check_inputs(config: ModelConfig) -> None:
    if config.max_batch_size < 1:
        raise _unfit(config, "max_batch_size of at least 1", str(config.max_batch_size))
    names = {each.name for each in config.input}
    if INPUT_IDS not in names or not names <= _INPUTS:
        expected = f"an input '{INPUT_IDS}' and none but {names_text(sorted(_INPUTS))}"
        raise _unfit(config, expected, names_text(sorted(names)))
    for each in config.input:
        if _datatype(each) != "INT64" or list(each.dims) != [-1]:
            raise _unfit(config, "inputs INT64 [-1]", f"another '{each.name}'")


def _datatype(tensor: Any) -> str | None:
    return PROTOCOL_NAMES.get(int(tensor.data_type))


def _unfit(config: ModelConfig, expected: str, got: str) -> RequestError:
    return invalid_argument(
        f"model '{config.name}': parameter '{TOKENIZER}' needs {expected}, got {got}"
    )
