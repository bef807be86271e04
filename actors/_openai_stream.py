"""An answer of OpenAI's API on its way: responses of a model in, a document or events out."""

from __future__ import annotations

from typing import final

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.generate_codec import server_sent_event
from ..protocol.llm_codec import read_llm_outputs
from ..protocol.openai.answers import Answer
from ..protocol.openai.errors import from_request_error
from ._openai_replies import Replies
from .http_generate import EVENT_STREAM
from .http_stream import HttpStream


async def take_response(replies: Replies, answer: Answer) -> bytes | None:
    """Wait for one response and have the answer take it.

    Returns:
      The events that it makes; None if there are no more responses.

    Raises:
      RequestError: the model failed.
    """
    taken = await replies.next()
    if taken is None:
        return None
    prompt, response = taken
    if response.error is not None:
        raise response.error
    if response.empty:
        return b""
    return answer.push(prompt, *read_llm_outputs(response.outputs))


@final
class OpenAiStream(HttpStream):
    """An answer as server-sent events.

    What fails before the first event is known before the stream is begun, and so decides the
    status; what fails later is the last event.

    Args:
      replies: The requests to the model; owned from now on.
      answer: What makes the events.
      headers: More headers.
    """

    def __init__(
        self, replies: Replies, answer: Answer, headers: list[tuple[bytes, bytes]]
    ) -> None:
        super().__init__(200, [EVENT_STREAM, *headers])
        self._replies = replies
        self._answer = answer
        self._first: bytes | None = None
        self._ended = False

    async def begin(self) -> None:
        """Wait for the first event.

        Raises:
          RequestError: the model failed before that.
        """
        self._first = await self._next()

    async def next_piece(self) -> bytes | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._ended:
            return None
        try:
            return await self._next()
        except RequestError as error:
            self.close()
            return self._failed(error)

    async def _next(self) -> bytes:
        while (events := await take_response(self._replies, self._answer)) is not None:
            if events:
                return events
        self._ended = True
        return self._answer.end()

    def _failed(self, error: RequestError) -> bytes:
        self.reason = error.message
        return server_sent_event(from_request_error(error).body)

    def last_words(self, reason: str) -> bytes:
        return self._failed(RequestError(ErrorCode.UNAVAILABLE, reason))

    def close(self) -> None:
        self._ended = True
        self._replies.close()
