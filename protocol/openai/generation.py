"""What a request for generated text asks for, whichever call it came by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class ToolUse(Enum):
    """How the text of an answer is read for calls of tools."""

    NONE = "none"
    """It is text."""
    AUTO = "auto"
    """The model decides; it writes calls in a way of its own."""
    REQUIRED = "required"
    """It is a JSON array of calls."""
    NAMED = "named"
    """It is the arguments of one tool, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What the prompt of a chat is made of.

    Attributes:
      messages: As templates take them: contents are text, arguments of calls are objects.
      tools: As they came; None for none.
      add_generation_prompt: Whether the model is to answer next.
      variables: What else the template gets.
      tool_use: How the answer is read.
      tool_name: The tool that is to be called, if `tool_use` is NAMED.
      parallel_tool_calls: Whether there may be more than one call.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    variables: dict[str, Any] | None = None
    tool_use: ToolUse = ToolUse.NONE
    tool_name: str = ""
    parallel_tool_calls: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request.

    Attributes:
      model: The model's name.
      sampling: The sampling parameters, as JSON values.
      n: How many texts are wanted for each prompt.
      stream: Whether the answer goes out as it is made.
      include_usage: Whether the counts of tokens end the stream.
      logprobs: Whether log probabilities are wanted.
      prompts: Texts, or token ids; empty for a chat.
      echo: Whether the prompts come back in front of the texts.
      chat: The conversation; None for completions.
    """

    model: str
    sampling: dict[str, Any]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    prompts: tuple[str | tuple[int, ...], ...] = ()
    echo: bool = False
    chat: Chat | None = None
