"""Requests for completions and for embeddings.

Source: OpenAI's API reference, completions and embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..json_text import parse_object
from ..tensors import Buffer
from .errors import OpenAiError, wrong
from .fields import Fields
from .generation import GenerationRequest
from .sampling import IGNORED, checked, take_sampling, take_streaming

MAX_TOKENS_DEFAULT: Final = 16
"""What OpenAI's API generates where nothing is said."""
PROMPTS_MAX: Final = 128
"""Prompts of one request; each is a request to the model."""
PROMPT_TOKENS_MAX: Final = 1_000_000
"""Token ids of one prompt; more than any context holds."""
TOKEN_MAX: Final = 2**31 - 1
"""The highest token id; far above the largest vocabularies."""
INPUTS_MAX: Final = 2048
"""Inputs of one request for embeddings, as for OpenAI's API."""
DIMENSIONS_MAX: Final = 2**20
"""Elements of an embedding; far above any model's."""

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """A request for embeddings.

    Attributes:
      model: The model's name.
      inputs: Texts, or token ids, none empty.
      base64: Whether embeddings go out as base64 of little-endian FP32, and not as numbers.
      dimensions: How many elements are asked for; None if nothing is said.
    """

    model: str
    inputs: tuple[Prompt, ...]
    base64: bool = False
    dimensions: int | None = None


def parse_completion(body: Buffer) -> GenerationRequest:
    """Return what the body of a request for completions asks for.

    Raises:
      OpenAiError: a member is wrong, or none that is supported.
      RequestError: INVALID_ARG; it is no JSON object.
    """
    fields = Fields(parse_object(bytes(body), "the request"))
    model = fields.required_text("model")
    prompts = take_texts(fields, "prompt", PROMPTS_MAX)
    max_tokens = fields.take("max_tokens")
    sampling = take_sampling(fields)
    limit = MAX_TOKENS_DEFAULT if max_tokens is None else max_tokens
    sampling["max_tokens"] = checked("max_tokens", limit)
    n = int(sampling.get("n", 1))
    best_of = fields.take("best_of")
    if best_of is not None and best_of != n:
        raise wrong("best_of", f"'n', which is {n}", best_of)
    if fields.has("suffix"):
        raise OpenAiError(400, "'suffix' is not supported here", param="suffix")
    logprobs = fields.take("logprobs")
    if logprobs is not None:
        sampling["logprobs"] = checked("logprobs", logprobs)
    echo = fields.flag("echo")
    if echo:
        _check_echo(prompts, logprobs=logprobs is not None)
    stream, include_usage = take_streaming(fields)
    fields.ignore(*IGNORED)
    fields.end()
    return GenerationRequest(
        model=model,
        sampling=sampling,
        n=n,
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs is not None,
        prompts=prompts,
        echo=echo,
    )


def _check_echo(prompts: tuple[Prompt, ...], *, logprobs: bool) -> None:
    if logprobs:
        raise OpenAiError(
            400, "'echo' goes without 'logprobs': prompts have no log probabilities", param="echo"
        )
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise OpenAiError(400, "'echo' needs prompts that are text, got token ids", param="echo")


def parse_embedding(body: Buffer) -> EmbeddingRequest:
    """Return what the body of a request for embeddings asks for; raises as `parse_completion`."""
    fields = Fields(parse_object(bytes(body), "the request"))
    request = EmbeddingRequest(
        model=fields.required_text("model"),
        inputs=take_texts(fields, "input", INPUTS_MAX),
        base64=fields.one_of("encoding_format", "float", "base64") == "base64",
        dimensions=fields.whole("dimensions", 1, DIMENSIONS_MAX),
    )
    fields.ignore(*IGNORED)
    fields.end()
    return request


def take_texts(fields: Fields, member: str, most: int) -> tuple[Prompt, ...]:
    """Return a member that is a text, token ids, or an array of one of both; none is empty."""
    value = fields.take(member)
    expected = "a string, an array of strings, of token ids, or of arrays of token ids"
    if value is None:
        raise fields.missing(member, expected)
    if isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int):
        value = [value]
    if not isinstance(value, list):
        raise wrong(member, expected, value)
    if not 1 <= len(value) <= most:
        raise OpenAiError(
            400, f"'{member}' may have 1 to {most} elements, got {len(value)}", param=member
        )
    return tuple(
        _text(f"{member}[{index}]" if len(value) > 1 else member, each)
        for index, each in enumerate(value)
    )


def _text(param: str, value: Any) -> Prompt:
    if isinstance(value, str):
        if not value:
            raise wrong(param, "a string that is not empty", value)
        return value
    if not isinstance(value, list) or not value:
        raise wrong(param, "a string or token ids, at least one", value)
    if len(value) > PROMPT_TOKENS_MAX:
        raise wrong(param, f"at most {PROMPT_TOKENS_MAX} token ids", value)
    for token in value:
        if type(token) is not int or not 0 <= token <= TOKEN_MAX:
            raise wrong(param, f"token ids from 0 to {TOKEN_MAX}", token)
    return tuple(value)
