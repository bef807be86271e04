"""The gRPC calls that have no task: one decode, one wait for a reply, one encode.

The connection's receiving task starts them, and whoever sends the reply finishes them. That
halves the cost of an inference over gRPC. The exception are calls with work for a thread, such as
those with tensors in shared memory: they get a task.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Protocol, final

import trio
from grpclib.const import Status

from ..memory.budget import BUDGET_USED_UP
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.grpc_headers import CallHead
from ..protocol.grpc_session import (
    CallCancelled,
    CallEvent,
    CallStarted,
    GrpcSession,
    HalfClosed,
    MessageReceived,
)
from ..protocol.requests import InferRequest
from ..protocol.tensors import Buffer
from ..protocol.trace import Trace
from ._deadlines import Deadlines
from ._wakeup import Wakeup
from .grpc_stream import UNCHECKED_BYTES_MAX
from .log_control import GONE, CallLog, about, about_message
from .reply import Reply

_log = logging.getLogger("tritrio.grpc")


class DirectMethod(Protocol):
    """A unary method most of whose calls have no task.

    Attributes:
      path: "/package.Service/Method".
    """

    path: str

    def start(
        self, message: Buffer, arrived_s: float, head: CallHead
    ) -> Reply | Awaitable[list[Buffer]]:
        """Submit what a message asks for, or raise `RequestError`; `head` has the metadata.

        Returns:
          Where the answer will come; or, if there is work for a thread, an awaitable of the encoded
          answer, which may raise `RequestError` and gets a task.
        """

    def finish(self, reply: Reply) -> list[Buffer]:
        """Return the encoded answer in a reply that has it, or raise `RequestError`."""


class _DirectCall:
    """One call.

    Attributes:
      method: The method.
      arrived_s: When the call began, in clock seconds.
      head: What its headers say.
      message: Its request, once received.
      reply: Where its answer comes, once started.
      scope: Its task's, if it has one.
    """

    __slots__ = ("arrived_s", "head", "message", "method", "reply", "scope")

    def __init__(self, method: DirectMethod, arrived_s: float, head: CallHead) -> None:
        self.method = method
        self.arrived_s = arrived_s
        self.head = head
        self.message: Buffer | None = None
        self.reply: Reply | None = None
        self.scope: trio.CancelScope | None = None


@final
class DirectCalls:
    """The direct calls of one connection.

    Args:
      methods: Path -> method.
      session: The connection's session.
      has_room: Whether an answer of so many bytes fits into the budget, which then has it.
      ended: Called when a call has ended and its last bytes are in the session's output.
      spawn: Runs the task of a call that needs one, for as long as the connection lives.
      log: Where calls are logged.

    Attributes:
      refuse: Whether calls that become complete are refused, for lack of room in the budget.
    """

    def __init__(
        self,
        *,
        methods: Mapping[str, DirectMethod],
        session: GrpcSession,
        has_room: Callable[[int], bool],
        ended: Callable[[], None],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        log: CallLog,
    ) -> None:
        self._methods = methods
        self._session = session
        self._has_room = has_room
        self._ended = ended
        self._spawn = spawn
        self._log = log
        self._calls: dict[int, _DirectCall] = {}
        self._deadlines = Deadlines[int]()  # by stream id
        self._deadline_added = Wakeup()
        self.refuse = False

    def __len__(self) -> int:
        return len(self._calls)

    def close(self) -> None:
        """Cancel every call; nothing can be sent any more."""
        for call in self._calls.values():
            if self._log.enabled:
                self._log_ended(call, Status.CANCELLED, GONE)
            if call.reply is not None:
                call.reply.close()
                if call.reply.request.trace is not None:
                    call.reply.request.trace.release()
        self._calls.clear()

    def start(self, event: CallStarted, now_s: float) -> bool:
        """Take over a call that began; False if its method is not a direct one."""
        method = self._methods.get(event.path)
        if method is None:
            return False
        self._calls[event.stream_id] = _DirectCall(method, now_s, event.head)
        if event.timeout_s is not None:
            self._deadlines.add(event.stream_id, now_s + event.timeout_s)
            self._deadline_added.set()
        return True

    def handle(self, event: CallEvent) -> bool:
        """Take an event of a call; False if the call is not one of these."""
        stream_id = event.stream_id
        call = self._calls.get(stream_id)
        if call is None:
            return False
        if isinstance(event, MessageReceived):
            # It counts as unconsumed until the call ends, since tensors are views on it.
            if call.message is not None:
                self._fail(
                    stream_id, RequestError(ErrorCode.INTERNAL, "expected one request, got several")
                )
                return True
            call.message = event.data
            if event.ends:
                self._submit(stream_id, call)
        elif isinstance(event, HalfClosed):
            self._submit(stream_id, call)
        elif isinstance(event, CallCancelled):
            if self._log.enabled:
                self._log_ended(call, event.status, event.reason)
            self._forget(stream_id)
        return True

    def unstarted(self) -> list[int]:
        """Return the calls whose request is still coming; ending them loses no work."""
        return [
            stream_id
            for stream_id, call in self._calls.items()
            if call.reply is None and call.scope is None
        ]

    def end(
        self, stream_id: int, status: Status, message: str, retry_after_s: float | None = None
    ) -> None:
        """End a call with an error, and cancel what it asked for."""
        self._session.end_call(stream_id, status, message, retry_after_s=retry_after_s)
        if self._log.enabled:
            self._log_ended(self._calls[stream_id], status, message)
        self._forget(stream_id)
        self._ended()

    def end_all(self, status: Status, message: str) -> None:
        """End every call with an error, and cancel what they asked for."""
        for stream_id in list(self._calls):
            self.end(stream_id, status, message)

    async def expire_forever(self) -> None:
        """End calls whose deadline passes."""
        while True:
            with trio.move_on_at(self._deadlines.next_s()):
                await self._deadline_added.wait()
            for stream_id in self._deadlines.expire(trio.current_time()):
                self.end(stream_id, Status.DEADLINE_EXCEEDED, "the call's deadline has passed")

    def _submit(self, stream_id: int, call: _DirectCall) -> None:
        try:
            if call.message is None:
                raise RequestError(ErrorCode.INTERNAL, "expected one request message, got none")
            if self.refuse:
                raise RequestError(ErrorCode.UNAVAILABLE, BUDGET_USED_UP)
            started = call.method.start(call.message, call.arrived_s, call.head)
        except RequestError as error:
            self._fail(stream_id, error)
        except Exception:  # the last line: one call fails, the server goes on  # noqa: BLE001
            self._fail(stream_id, server_fault(call.method.path))
        else:
            if not isinstance(started, Reply):
                call.scope = trio.CancelScope()
                self._spawn(partial(self._run, stream_id, call, started))
                return
            call.reply = started
            if started.has_response:
                self._finish(stream_id, call)
            else:
                started.notify = partial(self._finish, stream_id, call)

    async def _run(
        self, stream_id: int, call: _DirectCall, answer: Awaitable[list[Buffer]]
    ) -> None:
        """Wait for the answer of a call that has a task, and send it."""
        assert call.scope is not None
        buffers: list[Buffer] = []
        fault: RequestError | None = None
        with call.scope:
            try:
                buffers = await answer
            except RequestError as error:
                fault = error
            except Exception:  # the last line: one call fails, the server goes on  # noqa: BLE001
                fault = server_fault(call.method.path)
        if self._calls.get(stream_id) is not call:
            return  # it has ended meanwhile
        if fault is None:
            self._answer(stream_id, buffers)
        else:
            self._fail(stream_id, fault)

    def _finish(self, stream_id: int, call: _DirectCall) -> None:
        """Send the answer; called by whoever sent the reply, which it must not harm."""
        assert call.reply is not None
        try:
            buffers = call.method.finish(call.reply)
        except RequestError as error:
            self._fail(stream_id, error)
            return
        except Exception:  # the last line: one call fails, the server goes on  # noqa: BLE001
            self._fail(stream_id, server_fault(call.method.path, call.reply.request))
            return
        trace = call.reply.request.trace
        if trace is not None:
            trace.stamp("GRPC_SEND_START", perf_counter_ns())
        self._answer(stream_id, buffers, trace)

    def _answer(self, stream_id: int, buffers: list[Buffer], trace: Trace | None = None) -> None:
        size = 0
        for buffer in buffers:
            size += len(buffer)
        if size > UNCHECKED_BYTES_MAX and not self._has_room(size):
            self._fail(stream_id, RequestError(ErrorCode.UNAVAILABLE, BUDGET_USED_UP))
            return
        self._session.answer(stream_id, buffers)
        if self._log.enabled:
            self._log_ended(self._calls[stream_id], Status.OK)
        if trace is not None:
            trace.sent("GRPC_SEND_END", perf_counter_ns())
        self._forget(stream_id)
        self._ended()

    def _fail(self, stream_id: int, error: RequestError) -> None:
        self.end(stream_id, error.code.grpc_status, error.message, error.retry_after_s)

    def _log_ended(self, call: _DirectCall, status: Status, reason: str = "") -> None:
        if call.reply is not None:
            extra = about(call.reply.request)
        else:
            extra = {} if call.message is None else about_message(call.message)
        self._log.answered(
            f"gRPC {call.method.path}", status.name, call.arrived_s, extra, reason=reason
        )

    def _forget(self, stream_id: int) -> None:
        call = self._calls.pop(stream_id)
        self._deadlines.discard(stream_id)
        if call.reply is not None:
            call.reply.close()
            if call.reply.request.trace is not None:
                call.reply.request.trace.release()
        if call.scope is not None:
            call.scope.cancel()


def server_fault(path: str, request: InferRequest | None = None) -> RequestError:
    """Log the exception being handled; returns what the client is told."""
    _log.exception("a fault of the server while answering %s", path, extra=about(request))
    return RequestError(ErrorCode.INTERNAL, "the server failed to answer this call")
