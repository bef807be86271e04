"""What an HTTP connection has to write, in the order of the requests."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import final

from ..protocol.http_session import HttpEvent
from ..protocol.requests import InferRequest
from ..protocol.tensors import Buffer
from .http_service import Answer


@final
class Owed:
    """Something to write, in its turn.

    Attributes:
      event: What the session reported.
      answer: The answer to a request, or where it comes from; None for other events.
      unsent: What is left to write of the answer, once it is encoded.
      keep_alive: Whether the answer, once it is encoded, keeps the connection open.
      arrived_s: When the request came, if it still has a line of the log to get.
      infer: The inference that it is, if it is logged.
    """

    __slots__ = ("answer", "arrived_s", "event", "infer", "keep_alive", "unsent")

    def __init__(self, event: HttpEvent, answer: Answer | Awaitable[Answer] | None = None) -> None:
        self.event = event
        self.answer = answer
        self.unsent: Sequence[Buffer] | None = None
        self.keep_alive = True
        self.arrived_s: float | None = None
        self.infer: InferRequest | None = None
