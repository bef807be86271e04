"""What the client of one generated text is to read of its tokens.  Pure: no trio, no clock."""

from __future__ import annotations

from typing import final

from ..backends.llm.steps import TokenChoice, TokenEvent
from ..backends.llm.stop_texts import StopTexts
from ..backends.llm.text import Text
from ..protocol.llm_tensors import LlmChoice, LlmToken, TokenLogprobs
from ..protocol.sampling_params import FinishReason, SamplingParams


@final
class LlmOutput:
    """One text: its tokens come in, and what is certain of it goes out.

    It holds back what may yet become a whole character or a stop text. What was released is
    forgotten, so that a stream keeps no more than what its client has still to get.

    Args:
      text: The tokenizer.
      params: How the tokens are chosen.
      prefix: What the text begins with: the prompt, where that is wanted.
      logprobs: Whether the log probabilities of its tokens are wanted.

    Attributes:
      finish: Why it is complete; None while it goes on.
    """

    def __init__(
        self, text: Text, params: SamplingParams, *, prefix: str = "", logprobs: bool = False
    ) -> None:
        self._text = text
        self._stream = text.stream(skip_special_tokens=params.skip_special_tokens)
        self._stops = StopTexts(params.stop, include=params.include_stop_str_in_output)
        self._min_tokens = params.min_tokens
        self._shows_stop_token = params.include_stop_str_in_output
        self._pieces = [prefix] if prefix else []
        self._logprobs: list[TokenLogprobs] | None = [] if logprobs else None
        self._tokens = 0
        self._tokens_released = 0
        self._finish_released = False
        self._cumulative_logprob = 0.0
        self.finish: FinishReason | None = None

    @property
    def has_news(self) -> bool:
        """Whether a reader would see something new: text, or the end of it."""
        return bool(self._pieces) or (self.finish is not None and not self._finish_released)

    def push(self, event: TokenEvent) -> None:
        """Take what a step means for the text; not after its end."""
        assert self.finish is None
        if event.choice is not None:
            self._count(event.choice)
            if not event.stop_token or self._shows_stop_token:
                self._take(self._stream.push(event.choice.token))
        if event.finish is not None and self.finish is None:
            self._take(self._stream.flush())
            if self.finish is None:
                self._keep(self._stops.flush())
                self.finish = event.finish

    def release(self) -> LlmChoice:
        """Return what is new since the last call; all of it, the first time."""
        choice = LlmChoice(
            text="".join(self._pieces),
            finish_reason=None if self.finish is None else self.finish.value,
            output_tokens=self._tokens - self._tokens_released,
            cumulative_logprob=self._cumulative_logprob,
            logprobs=self._logprobs,
        )
        self._pieces = []
        self._tokens_released = self._tokens
        self._finish_released = self.finish is not None
        if self._logprobs is not None:
            self._logprobs = []
        return choice

    def _take(self, piece: str) -> None:
        """Look for stop texts, which count behind the tokens that there have to be."""
        if self._tokens <= self._min_tokens and self._min_tokens:
            self._keep(piece)
            return
        certain, stopped = self._stops.push(piece)
        self._keep(certain)
        if stopped:
            self.finish = FinishReason.STOP

    def _keep(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)

    def _count(self, choice: TokenChoice) -> None:
        self._tokens += 1
        if choice.logprob is None:
            return
        self._cumulative_logprob += choice.logprob
        if self._logprobs is not None:
            top = [
                self._token(token, logprob, rank)
                for rank, (token, logprob) in enumerate(choice.top, 1)
            ]
            chosen = self._token(choice.token, choice.logprob, choice.rank)
            self._logprobs.append(TokenLogprobs(chosen, tuple(top)))

    def _token(self, token: int, logprob: float, rank: int) -> LlmToken:
        text = self._text
        return LlmToken(token, text.token_text(token), logprob, rank, text.token_bytes(token))
