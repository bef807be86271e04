"""One request of a test, from the time it is due to its answer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, final

import trio

from ..actors.reply import Reply
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.requests import InferRequest, InferResponse, Parameters
from ..protocol.tensors import Array


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """One response; its outputs are also there by index, as in `answer["y"]`.

    Attributes:
      outputs: Output name -> array, with the batch dimension if the model batches.
      parameters: What else the model said.
      at_s: When it came, in virtual seconds.
    """

    outputs: dict[str, Array]
    parameters: Parameters
    at_s: float

    def __getitem__(self, name: str) -> Array:
        """Return an output."""
        return self.outputs[name]


@final
class Call:
    """A request that is due, under way, or answered; made by `ServedModels.at`.

    `await call` is `await call.answer()`.

    Attributes:
      id: The request's id.
      at_s: When it is sent, in virtual seconds.
      request: What is sent; inputs, parameters and all.
    """

    def __init__(
        self, request: InferRequest, at_s: float, *, now_s: Callable[[], float], plan: Plan
    ) -> None:
        self.id = request.id
        self.at_s = at_s
        self.request = request
        self._now_s = now_s
        self._plan = plan
        self._answers: list[Answer] = []
        self._error: RequestError | None = None
        self._error_is_known = False
        self._reply: Reply | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def __repr__(self) -> str:
        state = "answered" if self._ended.is_set() else "under way" if self._reply else "due"
        return f"<Call {self.id} at {self.at_s} s, {state}>"

    def __await__(self) -> Generator[Any, Any, Answer]:
        return self.answer().__await__()

    async def answer(self) -> Answer:
        """Wait for the only response.

        Raises:
          RequestError: the request failed, or was cancelled.
          ValueError: there was not exactly one response, as a decoupled model may have it.
        """
        answers = await self.answers()
        if len(answers) != 1:
            raise ValueError(f"expected one response to request {self.id}, got {len(answers)}")
        return answers[0]

    async def answers(self) -> list[Answer]:
        """Wait for the end, and return all responses in their order.

        Raises:
          RequestError: the request failed, or was cancelled.
        """
        await self._ended.wait()
        self._error_is_known = True
        if self._error is not None:
            raise self._error
        return self._answers

    async def error(self) -> RequestError:
        """Wait for the end, and return why the request failed.

        Raises:
          ValueError: it succeeded.
        """
        await self._ended.wait()
        self._error_is_known = True
        if self._error is None:
            got = len(self._answers)
            raise ValueError(f"expected request {self.id} to fail, got {got} answers")
        return self._error

    @property
    def unnoticed_error(self) -> RequestError | None:
        """Why the request failed, if nobody has waited for it."""
        return None if self._error_is_known else self._error

    def cancel(self) -> None:
        """Go away now, as a client does that disconnects; nothing happens after the answer."""
        if self._ended.is_set():
            return
        self._error_is_known = True
        cancelled = f"request {self.id} was cancelled at {self._now_s():g} s"
        self._end(RequestError(ErrorCode.CANCELLED, cancelled))
        if self._reply is not None:
            self._reply.close()
        self._scope.cancel()

    def cancel_at(self, at_s: float) -> None:
        """Go away at a virtual time."""
        self._plan(at_s, self.cancel)

    def begin(self, submit: Callable[[InferRequest], Reply], nursery: trio.Nursery) -> None:
        """Send the request, and receive in a task of the nursery."""
        if self._ended.is_set():
            return
        try:
            self._reply = submit(self.request)
        except RequestError as error:
            self._end(error)
        else:
            nursery.start_soon(self._receive, self._reply)

    async def ended(self) -> None:
        """Wait for the end, however it comes."""
        await self._ended.wait()

    async def _receive(self, reply: Reply) -> None:
        with self._scope:
            try:
                while not self._ended.is_set():
                    self._take(await reply.receive())
            finally:
                reply.close()

    def _take(self, response: InferResponse) -> None:
        if response.error is None and not response.empty:
            outputs = {tensor.name: tensor.array for tensor in response.outputs}
            self._answers.append(Answer(outputs, response.parameters, self._now_s()))
        if response.final:
            self._end(response.error)

    def _end(self, error: RequestError | None) -> None:
        self._error = error
        self._ended.set()


Plan = Callable[[float, Callable[[], None]], None]
"""Has something done at a virtual time."""
