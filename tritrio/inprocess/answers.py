"""What comes back from a model in this process."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import final

import trio

from ..actors.reply import Reply
from ..protocol.requested_outputs import requested_outputs
from ..protocol.requests import InferRequest, InferResponse, Parameters
from ..protocol.tensors import Array


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """One response; its outputs are also there by index, as in `answer["y"]`.

    Attributes:
      id: The request's id.
      model_name: The model that ran.
      model_version: The version that ran, as decimal text.
      outputs: Output name -> array, with the batch dimension if the model batches; BYTES elements
        are bytes. The arrays are the caller's, but may be read-only.
      parameters: What else the model said.
    """

    id: str
    model_name: str
    model_version: str
    outputs: dict[str, Array]
    parameters: Parameters

    def __getitem__(self, name: str) -> Array:
        """Return an output."""
        return self.outputs[name]


def answer_of(response: InferResponse, request: InferRequest) -> Answer:
    """Return what a response says.

    Raises:
      RequestError: the request failed.
    """
    if response.error is not None:
        raise response.error
    outputs = {tensor.name: tensor.array for tensor in requested_outputs(response, request)}
    return Answer(
        response.id, response.model_name, response.model_version, outputs, response.parameters
    )


@final
class Responses:
    """The responses of one request as they come; iterate over it once, with `async for`.

    A failure raises `RequestError` and ends it. Whoever stops early cancels the request with
    `close`, or by leaving an `async with` block of it.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._ended = False
        self._token = trio.lowlevel.current_trio_token()

    def __aiter__(self) -> Responses:
        return self

    async def __anext__(self) -> Answer:
        while not self._ended:
            try:
                response = await self._reply.receive()
                self._ended = response.final
                if not response.empty:
                    return answer_of(response, self._reply.request)
            except BaseException:
                self.close()
                raise
        raise StopAsyncIteration

    def close(self) -> None:
        """Cancel the request unless it has ended; idempotent."""
        self._ended = True
        self._reply.close()

    async def __aenter__(self) -> Responses:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """Cancel what nobody can ask for any more, from whatever thread collects it."""
        if not self._ended:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._reply.close)
