"""The way back: what a request carries so that its answer finds whoever waits for it.

A `Reply` is a one-way channel for the responses of one request. It is slimmer than a memory
channel (no clones, no statistics, one receiver) because one is made for every inference.
Closing it IS the cancellation: the request's `cancelled` flag goes up and the holder is told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from math import inf
from time import perf_counter_ns
from typing import final

import outcome
import trio

from ..protocol.requests import InferRequest, InferResponse
from .log_control import about

_log = logging.getLogger("tritrio")


@final
class Reply:
    """Carries the responses of one request from its holder to the one task that waits.

    The holder (scheduler, instance) calls `send` on the event loop, exactly once with a final
    response; the receiver calls `receive`, or `receive_nowait` when notified, until it has that
    one, or `close`s. Responses sent after `close` are dropped.

    Attributes:
      request: The request the responses belong to.
      expires_s: When the receiver stops waiting, in clock seconds; set by one that knows.
      on_close: Called once when the receiver closes before the final response; set by the holder
        that wants to drop the request at once.
      on_receive: Called for each response when the receiver takes it; set by a holder that keeps
        few of them waiting.
      notify: Called after each `send` that finds no task in `receive`; set by a receiver that
        waits for more than this reply. It must neither raise nor wait.
    """

    __slots__ = (
        "_done",
        "_responses",
        "_waiter",
        "expires_s",
        "notify",
        "on_close",
        "on_receive",
        "request",
    )

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.expires_s = inf
        self.on_close: Callable[[], None] | None = None
        self.on_receive: Callable[[], None] | None = None
        self.notify: Callable[[], None] | None = None
        self._done = False
        self._responses: deque[InferResponse] = deque()
        self._waiter: trio.lowlevel.Task | None = None

    @property
    def done(self) -> bool:
        """Whether the final response was sent, or nobody waits for it."""
        return self._done

    def send(self, response: InferResponse) -> None:
        """Hand over one response; never blocks; ignored once `done`."""
        if self._done:
            return
        if response.final:
            self._done = True
            self.on_close = None
        trace = self.request.trace
        if trace is not None:
            trace.respond(response, perf_counter_ns())
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            trio.lowlevel.reschedule(waiter, outcome.Value(response))
            if self.on_receive is not None:
                self.on_receive()
        else:
            self._responses.append(response)
            if self.notify is not None:
                try:
                    self.notify()
                except Exception:  # the sender must not pay for a receiver's fault  # noqa: BLE001
                    _log.exception(
                        "a fault of the server while passing a response on",
                        extra=about(self.request),
                    )

    @property
    def has_response(self) -> bool:
        """Whether `receive_nowait` would return."""
        return bool(self._responses)

    def receive_nowait(self) -> InferResponse:
        """Return a response that was sent and not received yet.

        Raises:
          trio.WouldBlock: there is none.
        """
        if not self._responses:
            raise trio.WouldBlock
        if self.on_receive is not None:
            self.on_receive()
        return self._responses.popleft()

    async def receive(self) -> InferResponse:
        """Wait for the next response.

        Cancelling the wait loses nothing, but does not close the reply either: see `close`.
        """
        if self._responses:
            await trio.lowlevel.checkpoint_if_cancelled()
            return self.receive_nowait()
        assert self._waiter is None, "one task waits for a reply"
        assert not self._done, "receive() after the final response or close()"
        self._waiter = trio.lowlevel.current_task()
        response: InferResponse = await trio.lowlevel.wait_task_rescheduled(self._abort)
        return response

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def close(self) -> None:
        """Stop waiting: cancels the request unless its final response was sent; idempotent.

        Shared memory that is held for the request is let go either way.
        """
        if self.request.shared_memory is not None:
            self.request.shared_memory.release()
        self._responses.clear()
        self.notify = None  # which knows the receiver, which knows this: a cycle
        if self._done:
            return
        self._done = True
        self.request.cancelled = True
        if self.request.trace is not None:
            self.request.trace.abandon(perf_counter_ns())
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()
