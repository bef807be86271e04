"""How the tokens of a generated text are chosen, as clients ask for it.

Source: the sampling parameters of vLLM and of OpenAI's API, by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class GuideKind(Enum):
    """What a generated text is held to; the values are the names clients use."""

    JSON_SCHEMA = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Guide:
    """What a generated text is held to.

    Attributes:
      kind: What `source` is.
      source: A JSON schema as JSON text, a regular expression, a JSON list of strings to choose
        from, or a grammar; "" for JSON_OBJECT.
    """

    kind: GuideKind
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen; checked by whoever makes it.

    Attributes:
      n: How many texts to generate; >= 1.
      temperature: 0 takes the most likely token always.
      top_k: Choose among so many most likely tokens; 0 for all.
      top_p: Choose among the most likely tokens that have this probability together; in (0, 1].
      min_p: Leave out tokens with less than this part of the highest probability; in [0, 1].
      repetition_penalty: Divides logits (multiplies those below 0) of tokens in prompt or text.
      presence_penalty: Subtracted from the logits of tokens in the text.
      frequency_penalty: Subtracted as often as the token is in the text.
      seed: Same seed, same text, whatever else is in the batch; None for any.
      logit_bias: Token id -> what is added to its logit.
      logprobs: How many alternatives to return with each token; None for no log probabilities.
      stop: Texts that end the generation; not part of what is returned.
      stop_token_ids: Tokens that end it, as the model's own end tokens do.
      include_stop_str_in_output: Whether the text that ended it is returned nevertheless.
      ignore_eos: Whether the model's own end tokens are tokens like others.
      max_tokens: Most tokens to generate; None for as many as fit.
      min_tokens: No end token is chosen before so many.
      guide: What the text is held to; None for nothing.
      skip_special_tokens: Whether special tokens are left out of the text.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    guide: Guide | None = None
    skip_special_tokens: bool = True


class FinishReason(Enum):
    """Why a generated text is complete."""

    STOP = "stop"
    """An end token, a stop text, or the end of what the guide allows."""
    LENGTH = "length"
    """`max_tokens`, or there is no room for more."""
