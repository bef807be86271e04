"""Calls of other models by a Python model, and their responses.

Each call has an inbox, into which the server puts responses on its own thread, and from which the
model takes them in plain code, under asyncio or under trio. The server knows the inbox only, so
that a call which its model has lost is collected, and cancelled with that.
"""

# ruff: noqa: SLF001 - responses are made without the checks of the constructor

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop of models, if they have one
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Self, final

from ..protocol.requests import InferRequest, InferResponse
from .pb_context import ModelContext
from .pb_objects import InferenceResponse
from .pb_tensor import TritonModelException
from .server_link import RESPONSES_AHEAD, ServerLink

_TAKEN_AT_ONCE: Final = RESPONSES_AHEAD // 2
"""Responses taken before the server is told of them."""


@final
class _Inbox:
    """Takes the responses of one call; one thread or task takes them out."""

    __slots__ = ("_lock", "_responses", "_wake")

    def __init__(self) -> None:
        self._responses: SimpleQueue[InferResponse] = SimpleQueue()
        self._wake: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def put(self, response: InferResponse) -> None:
        with self._lock:
            self._responses.put(response)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def arm(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once there is a response."""
        with self._lock:
            if self._responses.empty():
                self._wake = wake
                return
        wake()

    def take(self) -> InferResponse:
        return self._responses.get()

    async def take_async(self, server: ServerLink) -> InferResponse:
        while True:
            with suppress(Empty):
                return self._responses.get_nowait()
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                await server.sleep(self.arm)
            else:
                woken = loop.create_future()
                self.arm(partial(_wake_asyncio, loop, woken))
                await woken


def _wake_asyncio(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_set, woken)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


@final
class ModelCall:
    """A call that was sent, held by the model; to lose it is to cancel it."""

    __slots__ = ("_ended", "_inbox", "_may_block", "_open", "_server", "_taken")

    def __init__(
        self, context: ModelContext, server: ServerLink, request: InferRequest, *, decoupled: bool
    ) -> None:
        self._ended = False
        self._taken = 0
        self._server = server
        self._may_block = not context.on_event_loop
        self._inbox = _Inbox()
        self._open = server.infer(
            request,
            self._inbox.put,
            caller=context.number if context.in_execution else None,
            decoupled=decoupled,
        )

    @property
    def ended(self) -> bool:
        """Whether the final response was taken."""
        return self._ended

    def take(self) -> InferenceResponse:
        """Wait for the next response, and return it.

        Raises:
          TritonModelException: this is the server's event loop.
        """
        if not self._may_block:
            raise TritonModelException(
                "an async execute runs on the server's event loop, which must not block: "
                "await async_exec() and use 'async for'"
            )
        return self._taken_out(self._inbox.take())

    async def take_async(self) -> InferenceResponse:
        """Wait for the next response, and return it; a cancelled wait loses none."""
        return self._taken_out(await self._inbox.take_async(self._server))

    def cancel(self) -> None:
        """Cancel the call unless it has ended; its final response then says so."""
        if not self._ended:
            self._open.cancel()

    def _taken_out(self, response: InferResponse) -> InferenceResponse:
        if response.final:
            self._ended = True
        else:
            self._taken += 1
            if self._taken == _TAKEN_AT_ONCE:
                self._taken = 0
                self._open.more(_TAKEN_AT_ONCE)
        return InferenceResponse._received(response)

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.cancel()


@final
class ResponseIterator:
    """The responses of a call with `decoupled=True`, each once, in order.

    A response may hold an error. The last one may be empty, where the callee ended without a
    response. A call whose iterator is lost before its end, such as by an exception, is cancelled.
    """

    __slots__ = ("_call",)

    def __init__(self, call: ModelCall) -> None:
        self._call = call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> InferenceResponse:
        if self._call.ended:
            raise StopIteration
        return self._call.take()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._call.ended:
            raise StopAsyncIteration
        return await self._call.take_async()

    def cancel(self) -> None:
        """Cancel the call; what follows is a response that says so, unless it has ended."""
        self._call.cancel()
