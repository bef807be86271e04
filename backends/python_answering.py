"""How the requests of one batch of a Python model are answered, by it or in its place."""

# ruff: noqa: SLF001 - the backend is the other half of pb_objects

from __future__ import annotations

from typing import final

from ..protocol.errors import ErrorCode
from ..protocol.tensors import Tensor as ServerTensor
from .base import Batch
from .pb_objects import InferenceResponse
from .pb_request import InferenceRequest
from .pb_tensor import TritonModelException
from .python_responses import ResponseMaker


@final
class Answering:
    """Answers the requests of one batch, each with any number of responses if `decoupled`.

    Args:
      maker: Makes the server's responses of the model's.
      batch: What the model executes.

    Attributes:
      decoupled: Whether a request may have any number of responses.
    """

    __slots__ = ("_batch", "_maker", "_states", "decoupled")

    def __init__(self, maker: ResponseMaker, batch: Batch, *, decoupled: bool) -> None:
        self._maker = maker
        self._batch = batch
        self._states: dict[int, dict[str, ServerTensor]] = {}  # of responses that were not final
        self.decoupled = decoupled

    def send(self, index: int, response: InferenceResponse | None, *, final: bool) -> None:
        """Give request `index` a response; None with `final` is a bare end."""
        if self._maker.unloaded:
            raise TritonModelException("the model was unloaded, which has ended its requests")
        if not self.decoupled and self._batch.responses[index] is not None:
            raise TritonModelException("the request has been answered already")
        request = self._batch.requests[index]
        answer = self._maker.response(request, response or InferenceResponse())
        answer.empty = response is None
        answer.final = final
        if answer.states is not None:  # only the final response hands them on
            states = {**self._states.pop(index, {}), **answer.states}
            answer.states = states if final else None
            if not final:
                self._states[index] = states
        self._batch.respond(index, answer)

    def answer(self, index: int, response: InferenceResponse) -> None:
        """Give request `index` its only response."""
        self._batch.respond(index, self._maker.response(self._batch.requests[index], response))

    def abandon(self, index: int) -> None:
        """End the answers of request `index` with an error: its sender is gone."""
        self.fail(index, "the model dropped the response sender before the final flag was sent")

    def fail(self, index: int, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        """Give request `index` an error as its final response."""
        request = self._batch.requests[index]
        self._batch.respond(index, self._maker.failure(request, message, code))

    def fail_open(self, requests: list[InferenceRequest], message: str) -> None:
        """Give every request that has no final response yet an error as its final one."""
        for index, request in enumerate(requests):
            sender = request._sender
            was_open = sender is None or sender._close()
            if self.decoupled:
                if was_open:
                    self.fail(index, message)
            elif self._batch.responses[index] is None:
                self.fail(index, message)
