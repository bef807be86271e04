"""What a request for text asks for, made ready for generation.

What takes long is done on worker threads.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod
from typing import final

from ..backends.llm.guides import Guides
from ..backends.llm.steps import CompiledGuide, EngineLimits
from ..backends.llm.text import Text
from ..protocol.errors import PromptTooLongError, invalid_argument
from ..protocol.llm_codec import prompt_characters_min, read_llm_request
from ..protocol.llm_tensors import INPUT_IDS, LlmRequest
from ..protocol.requests import InferRequest
from ..protocol.sampling_params import SamplingParams
from ..protocol.sampling_request import parse_sampling_params
from ._worker_threads import RunInThread

PROMPT_INLINE_CHARACTERS_MAX = 2048
"""Longer prompts become tokens on a worker thread: this much takes a tokenizer about a
millisecond, and the event loop has others to serve."""

PROMPT_CHARACTERS_PER_TOKEN_MAX = 256
"""No token of a vocabulary in use is longer, so that a longer prompt cannot fit. A tokenizer would
take seconds to find that out of a prompt that fills a request."""

SEED_BITS = 62
"""Of seeds that nobody asked for. Those of the texts of one request follow each other, and they
are int64."""


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A request for text that is ready for generation.

    Attributes:
      llm: What it asks for.
      params: How the tokens of its texts are chosen.
      prompt: Token ids.
      seed: Of its first text.
      guide: What the texts are held to, or None.
      prefix: What each text begins with: the prompt, if that is to be returned.
    """

    llm: LlmRequest
    params: SamplingParams
    prompt: tuple[int, ...]
    seed: int
    guide: CompiledGuide | None
    prefix: str


@final
class TextPreparation:
    """Prepares the requests to one instance.

    Args:
      text: The tokenizer.
      limits: Of the model.
      defaults: How tokens are chosen where a request says nothing.
      run_in_thread: Does what takes long.
    """

    def __init__(
        self,
        text: Text,
        limits: EngineLimits,
        defaults: SamplingParams,
        run_in_thread: RunInThread,
    ) -> None:
        self._text = text
        self._tokens_max = limits.tokens_per_row
        self._characters_max = limits.tokens_per_row * PROMPT_CHARACTERS_PER_TOKEN_MAX
        self._vocabulary_size = limits.vocabulary_size
        self._defaults = defaults
        self._guides = Guides(text)
        self._run_in_thread = run_in_thread

    async def prepare(self, request: InferRequest) -> PreparedText:
        """Return what a request asks for. It may be cancelled, and need not be a checkpoint.

        Raises:
          RequestError: it cannot be served.
        """
        text = self._text
        self._check_size(request)
        llm = read_llm_request(request)
        params = parse_sampling_params(
            llm.sampling, vocabulary_size=self._vocabulary_size, defaults=self._defaults
        )
        prompt = await self._tokens(llm)
        guide = None
        if params.guide is not None:
            guide = await self._run_in_thread(self._guides.compile, params.guide)
        prefix = ""
        if not llm.exclude_input:
            prefix = llm.text if llm.tokens is None else text.decode(prompt)
        return PreparedText(
            llm,
            params,
            prompt,
            random.getrandbits(SEED_BITS) if params.seed is None else params.seed,
            guide,
            prefix,
        )

    def _check_size(self, request: InferRequest) -> None:
        """Refuse too much before it is read, which takes a while if it fills a request.

        Raises:
          PromptTooLongError: there is more than the model can take.
        """
        given = request.inputs.get(INPUT_IDS)
        if given is not None and (count := prod(given.shape)) > self._tokens_max:
            raise PromptTooLongError(
                f"expected a prompt of at most {self._tokens_max} tokens, got {count}"
            )
        characters = prompt_characters_min(request)
        if characters > self._characters_max:
            raise self._too_long(f"at least {characters}")

    def _too_long(self, characters: str) -> PromptTooLongError:
        return PromptTooLongError(
            f"expected a prompt that fits into {self._tokens_max} tokens, got one of {characters} "
            "characters"
        )

    async def _tokens(self, llm: LlmRequest) -> tuple[int, ...]:
        if llm.tokens is not None:
            return self._known(llm.tokens)
        characters = len(llm.text)
        if characters > self._characters_max:
            raise self._too_long(str(characters))
        if characters <= PROMPT_INLINE_CHARACTERS_MAX:
            return self._known(tuple(self._text.encode(llm.text)))
        return self._known(tuple(await self._run_in_thread(self._text.encode, llm.text)))

    def _known(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens, checked: the tokenizer may have some that the model has not."""
        count = self._vocabulary_size
        highest = max(tokens, default=0)
        if highest >= count:
            raise invalid_argument(
                f"expected tokens below {count}, the size of the vocabulary, got {highest}"
            )
        return tokens
