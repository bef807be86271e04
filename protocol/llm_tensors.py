"""The tensors of a model that generates text: what a request holds, and its responses.

Source: names, data types and meaning of Triton's vLLM backend; `input_ids` is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from .dtypes import BYTES
from .tensors import Shape, Tensor

TEXT_INPUT: Final = "text_input"
INPUT_IDS: Final = "input_ids"
STREAM: Final = "stream"
SAMPLING_PARAMETERS: Final = "sampling_parameters"
EXCLUDE_INPUT: Final = "exclude_input_in_output"
RETURN_FINISH_REASON: Final = "return_finish_reason"
RETURN_CUMULATIVE_LOGPROB: Final = "return_cumulative_logprob"
RETURN_LOGPROBS: Final = "return_logprobs"
RETURN_NUM_INPUT_TOKENS: Final = "return_num_input_tokens"
RETURN_NUM_OUTPUT_TOKENS: Final = "return_num_output_tokens"

INPUTS: Final[tuple[tuple[str, str, Shape], ...]] = (
    (TEXT_INPUT, BYTES, (1,)),
    (INPUT_IDS, "INT64", (-1,)),
    (STREAM, "BOOL", (1,)),
    (SAMPLING_PARAMETERS, BYTES, (1,)),
    (EXCLUDE_INPUT, "BOOL", (1,)),
    (RETURN_FINISH_REASON, "BOOL", (1,)),
    (RETURN_CUMULATIVE_LOGPROB, "BOOL", (1,)),
    (RETURN_LOGPROBS, "BOOL", (1,)),
    (RETURN_NUM_INPUT_TOKENS, "BOOL", (1,)),
    (RETURN_NUM_OUTPUT_TOKENS, "BOOL", (1,)),
)
"""(name, data type, shape) of the inputs, all optional; one of the first two has to be there."""

TEXT_OUTPUT: Final = "text_output"
FINISH_REASON: Final = "finish_reason"
CUMULATIVE_LOGPROB: Final = "cumulative_logprob"
LOGPROBS: Final = "logprobs"
NUM_INPUT_TOKENS: Final = "num_input_tokens"
NUM_OUTPUT_TOKENS: Final = "num_output_tokens"

OUTPUTS: Final[tuple[tuple[str, str, Shape], ...]] = (
    (TEXT_OUTPUT, BYTES, (-1,)),
    (FINISH_REASON, BYTES, (-1,)),
    (CUMULATIVE_LOGPROB, "FP32", (-1,)),
    (LOGPROBS, BYTES, (-1,)),
    (NUM_INPUT_TOKENS, "UINT32", (1,)),
    (NUM_OUTPUT_TOKENS, "UINT32", (-1,)),
)
"""(name, data type, shape) of the outputs, each but the first only if it was asked for."""

UNFINISHED: Final = "None"
"""The finish reason of a text that goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmRequest:
    """One request to a model that generates text.

    Attributes:
      text: The prompt, if it came as text.
      tokens: The prompt, if it came as token ids; None if it came as text.
      stream: Whether each response has only what is new since the one before it; else there is
        one response.
      sampling: The sampling parameters as JSON values, not checked yet.
      exclude_input: Whether the text that is returned begins behind the prompt.
      finish_reason: Whether to return it.
      cumulative_logprob: Whether to return it.
      logprobs: Whether to return them.
      num_input_tokens: Whether to return it.
      num_output_tokens: Whether to return it.
    """

    text: str = ""
    tokens: tuple[int, ...] | None = None
    stream: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    exclude_input: bool = False
    finish_reason: bool = False
    cumulative_logprob: bool = False
    logprobs: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False


@dataclass(frozen=True, slots=True)
class LlmToken:
    """One generated token, with its log probability.

    Attributes:
      id: The token.
      text: It by itself, as text.
      logprob: Its log probability.
      rank: How many tokens were at least as likely, itself included.
      utf8: It by itself as bytes, whole characters or not.
    """

    id: int
    text: str
    logprob: float
    rank: int
    utf8: bytes = b""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log probabilities at one place of a text.

    Attributes:
      chosen: The token that is there.
      top: The most likely ones, best first.
    """

    chosen: LlmToken
    top: tuple[LlmToken, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmChoice:
    """What one response says of one of the texts of a request.

    Attributes:
      text: The text, or what is new of it.
      finish_reason: "stop", "length" or another word; None while it goes on.
      output_tokens: How many tokens there are, or new ones.
      cumulative_logprob: Sum of all log probabilities so far.
      logprobs: Of each of these tokens; None unless asked for.
    """

    text: str
    finish_reason: str | None = None
    output_tokens: int = 0
    cumulative_logprob: float = 0.0
    logprobs: Sequence[TokenLogprobs] | None = None


def text_tensor(name: str, values: Sequence[str]) -> Tensor:
    """Return a BYTES tensor of texts, one dimension."""
    array = np.empty(len(values), np.object_)
    array[:] = [value.encode("utf-8", "replace") for value in values]
    return Tensor(name, BYTES, (len(values),), array=array)
