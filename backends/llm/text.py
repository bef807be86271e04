"""Text and tokens: what an engine needs of a tokenizer, whatever kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TextStream(Protocol):
    """Makes text of the tokens of one sequence, as they come; used on one thread."""

    def push(self, token: int) -> str:
        """Return what is certain of the text now: whole characters, perhaps none."""

    def flush(self) -> str:
        """Return the rest, at the end of the sequence; broken characters are replaced."""


class Text(Protocol):
    """The tokenizer of one model; every method is callable from any thread.

    Attributes:
      vocabulary_size: How many tokens there are.
      end_tokens: Tokens with which the model ends a text.
      can_chat: Whether there is a chat template.
    """

    vocabulary_size: int
    end_tokens: frozenset[int]
    can_chat: bool

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens in it are recognised.

        Raises:
          RequestError: INVALID_ARG; the vocabulary has no way to write it.
        """

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens; broken characters are replaced."""

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """Return what makes text of one sequence, token by token."""

    def token_text(self, token: int) -> str:
        """Return one token by itself as text; broken characters are replaced."""

    def token_bytes(self, token: int) -> bytes:
        """Return one token by itself as UTF-8 bytes, whole or not."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation.

        Args:
          messages: OpenAI's messages, as JSON values and as templates expect them: contents are
            text, arguments of calls objects, and nothing is null.
          tools: OpenAI's tools, as JSON values.
          add_generation_prompt: Whether the model is to answer next.
          variables: What else the template may use.

        Raises:
          RequestError: INVALID_ARG; there is no chat template, or it refuses the messages.
        """
