"""Makes the answer to a request of what the model says: one document, or the events of a stream.

Source: OpenAI's API reference, the objects of chat completions and completions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import orjson

from ..errors import ErrorCode, RequestError
from ..generate_codec import server_sent_event
from ..llm_tensors import LlmChoice, TokenLogprobs
from .generation import ToolUse
from .logprobs import chat_logprobs, completion_logprobs
from .tool_calls import AnswerReader, Piece, Words

DONE: Final = b"data: [DONE]\n\n"
"""The last event of a stream that went well."""
FINISH_REASONS: Final = frozenset({"stop", "length", "content_filter"})
"""Why a text may have ended; other words of models are "stop"."""


@dataclass(frozen=True, slots=True)
class Header:
    """What every object of one answer says.

    Attributes:
      id: Of the answer.
      created: Unix time, in seconds.
      model: As asked for.
      fingerprint: What it depends on beside the request: the version of the model.
    """

    id: str
    created: int
    model: str
    fingerprint: str

    def document(self, kind: str) -> dict[str, Any]:
        """Return an object of a kind, without choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Answer(ABC):
    """The answer to one request, as it grows.

    Args:
      header: What its objects say.
      prompts: How many prompts there are, each with its own request to the model.
      n: How many texts there are for each.
      include_usage: Whether the counts of tokens end a stream.
    """

    kind: str
    chunk_kind: str

    def __init__(self, header: Header, *, prompts: int, n: int, include_usage: bool) -> None:
        self._header = header
        self._n = n
        self._include_usage = include_usage
        self._input_tokens: list[int | None] = [None] * prompts
        self._output_tokens = 0

    def push(self, prompt: int, choices: Sequence[LlmChoice], input_tokens: int | None) -> bytes:
        """Take one response of a model.

        Args:
          prompt: Whose it is.
          choices: What is new of each text.
          input_tokens: Tokens of the prompt, if the model says so.

        Returns:
          The events that it makes; b"" for none.

        Raises:
          RequestError: INTERNAL; it is of another number of texts.
        """
        if len(choices) != self._n:
            raise RequestError(
                ErrorCode.INTERNAL,
                f"model '{self._header.model}' was asked for {self._n} texts, but answered "
                f"{len(choices)}",
            )
        if input_tokens is not None:
            self._input_tokens[prompt] = input_tokens
        events = []
        for number, choice in enumerate(choices):
            self._output_tokens += choice.output_tokens
            events += self._push(prompt * self._n + number, choice)
        return b"".join(map(self._event, events))

    def end(self) -> bytes:
        """Return the last events of a stream."""
        events = [self._event(choice) for choice in self._finish()]
        if self._include_usage:
            document = self._header.document(self.chunk_kind)
            document |= {"choices": [], "usage": self._usage()}
            events.append(server_sent_event(orjson.dumps(document)))
        return b"".join((*events, DONE))

    def document(self) -> bytes:
        """Return the whole answer as JSON, at its end."""
        self._finish()
        document = self._header.document(self.kind)
        document["choices"] = self._choices()
        usage = self._usage()
        if usage is not None:
            document["usage"] = usage
        return orjson.dumps(document)

    def _event(self, choice: dict[str, Any]) -> bytes:
        document = self._header.document(self.chunk_kind)
        document["choices"] = [choice]
        if self._include_usage:
            document["usage"] = None
        return server_sent_event(orjson.dumps(document))

    def _usage(self) -> dict[str, int] | None:
        """Return the counts of tokens, or None if the model does not say them."""
        prompt = [count for count in self._input_tokens if count is not None]
        if len(prompt) < len(self._input_tokens):
            return None
        return {
            "prompt_tokens": sum(prompt),
            "completion_tokens": self._output_tokens,
            "total_tokens": sum(prompt) + self._output_tokens,
        }

    @abstractmethod
    def _push(self, index: int, choice: LlmChoice) -> list[dict[str, Any]]:
        """Take what is new of one text; return the choices of its events."""

    @abstractmethod
    def _finish(self) -> list[dict[str, Any]]:
        """Take the end, once; return the choices of the events that it makes."""

    @abstractmethod
    def _choices(self) -> list[dict[str, Any]]:
        """Return all choices, whole."""


@dataclass(slots=True)
class _Text:
    """One text of a completion."""

    begin: str
    pieces: list[str] = field(default_factory=list)
    tokens: list[TokenLogprobs] = field(default_factory=list)
    offset: int = 0
    reason: str | None = None


@final
class CompletionAnswer(Answer):
    """Completions of prompts.

    Args:
      header: What its objects say.
      begins: What the texts of each prompt begin with: "", or the prompt.
      n: How many texts there are for each.
      include_usage: Whether the counts of tokens end a stream.
      logprobs: Whether there are log probabilities.
    """

    kind = chunk_kind = "text_completion"

    def __init__(
        self,
        header: Header,
        *,
        begins: Sequence[str],
        n: int,
        include_usage: bool,
        logprobs: bool,
    ) -> None:
        super().__init__(header, prompts=len(begins), n=n, include_usage=include_usage)
        self._logprobs = logprobs
        self._texts = [_Text(begin) for begin in begins for _ in range(n)]

    def _push(self, index: int, choice: LlmChoice) -> list[dict[str, Any]]:
        state = self._texts[index]
        if state.reason is not None:
            return []  # it has ended, and others of the request go on
        text = choice.text if state.pieces else state.begin + choice.text
        state.pieces.append(text)
        reason = _reason(choice)
        state.reason = reason
        logprobs = None
        if self._logprobs:
            tokens = choice.logprobs or ()
            state.tokens += tokens
            logprobs, state.offset = completion_logprobs(tokens, state.offset)
        if not (text or reason or (logprobs and logprobs["tokens"])):
            return []
        return [_completion_choice(index, text, logprobs, reason)]

    def _finish(self) -> list[dict[str, Any]]:
        events = []
        for index, state in enumerate(self._texts):
            if state.reason is None:
                state.reason = "stop"
                events.append(_completion_choice(index, "", None, state.reason))
        return events

    def _choices(self) -> list[dict[str, Any]]:
        return [
            _completion_choice(
                index,
                "".join(state.pieces),
                completion_logprobs(state.tokens, 0)[0] if self._logprobs else None,
                state.reason,
            )
            for index, state in enumerate(self._texts)
        ]


def _completion_choice(
    index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


@dataclass(slots=True)
class _Message:
    """One message of a chat."""

    reader: AnswerReader
    words: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[TokenLogprobs] = field(default_factory=list)
    reason: str | None = None
    begun: bool = False
    told: bool = False


@final
class ChatAnswer(Answer):
    """What a model says next in a conversation.

    Args:
      header: What its objects say.
      n: How many messages there are.
      include_usage: Whether the counts of tokens end a stream.
      logprobs: Whether there are log probabilities.
      tool_use: How messages are read.
      parallel_tool_calls: Whether calls behind the first count.
      make_reader: Makes what reads one message.
    """

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self,
        header: Header,
        *,
        n: int,
        include_usage: bool,
        logprobs: bool,
        tool_use: ToolUse,
        parallel_tool_calls: bool,
        make_reader: Callable[[], AnswerReader],
    ) -> None:
        super().__init__(header, prompts=1, n=n, include_usage=include_usage)
        self._logprobs = logprobs
        self._tool_use = tool_use
        self._calls_max = None if parallel_tool_calls else 1
        self._messages = [_Message(make_reader()) for _ in range(n)]

    def _push(self, index: int, choice: LlmChoice) -> list[dict[str, Any]]:
        state = self._messages[index]
        if state.told:
            return []  # it has ended, and others of the request go on
        pieces = state.reader.push(choice.text)
        reason = _reason(choice)
        state.reason = reason
        if reason is not None:
            pieces += state.reader.finish()
        tokens = (choice.logprobs or ()) if self._logprobs else ()
        state.tokens += tokens
        deltas = self._deltas(state, pieces)
        if not state.begun:
            state.begun = True
            deltas.insert(0, {"role": "assistant", "content": "", "refusal": None})
        if tokens and not deltas:
            deltas.append({})
        events = [_chunk_choice(index, delta) for delta in deltas]
        if tokens:
            events[-1]["logprobs"] = chat_logprobs(tokens)
        if reason is not None:
            events.append(self._last(index, state))
        return events

    def _finish(self) -> list[dict[str, Any]]:
        events = []
        for index, state in enumerate(self._messages):
            if not state.told:
                state.reason = "stop"
                deltas = self._deltas(state, state.reader.finish())
                if not state.begun:
                    deltas.insert(0, {"role": "assistant", "content": "", "refusal": None})
                events += [_chunk_choice(index, delta) for delta in deltas]
                events.append(self._last(index, state))
        return events

    def _last(self, index: int, state: _Message) -> dict[str, Any]:
        state.told = True
        if state.calls and state.reason == "stop" and self._tool_use is not ToolUse.NAMED:
            state.reason = "tool_calls"
        return {**_chunk_choice(index, {}), "finish_reason": state.reason}

    def _deltas(self, state: _Message, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """Keep pieces, and return them as they are streamed."""
        deltas: list[dict[str, Any]] = []
        for piece in pieces:
            if isinstance(piece, Words):
                state.words.append(piece.text)
                deltas.append({"content": piece.text})
                continue
            if self._calls_max is not None and piece.index >= self._calls_max:
                continue
            if piece.id is None:
                state.calls[piece.index]["function"]["arguments"] += piece.arguments
                call: dict[str, Any] = {"function": {"arguments": piece.arguments}}
            else:
                function = {"name": piece.name, "arguments": piece.arguments}
                call = {"id": piece.id, "type": "function", "function": function}
                state.calls.append({**call, "function": {**function}})
            deltas.append({"tool_calls": [{"index": piece.index, **call}]})
        return deltas

    def _choices(self) -> list[dict[str, Any]]:
        choices = []
        for index, state in enumerate(self._messages):
            content = "".join(state.words)
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if state.calls:
                message["tool_calls"] = state.calls
                message["content"] = content or None
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": chat_logprobs(state.tokens) if self._logprobs else None,
                    "finish_reason": state.reason,
                }
            )
        return choices


def _chunk_choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _reason(choice: LlmChoice) -> str | None:
    reason = choice.finish_reason
    return reason if reason is None or reason in FINISH_REASONS else "stop"
