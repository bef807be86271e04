"""One gRPC call as its handler sees it: grpclib's `Stream`, living on trio.

grpclib's own server is asyncio only, so a handler gets this object instead. It offers what
handlers use: `metadata`, `deadline`, `recv_message`, `send_message`, `send_trailing_metadata` and
iteration over the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, final

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from ..memory.budget import BUDGET_USED_UP
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.grpc_codec import parse_message
from ..protocol.grpc_compression import IDENTITY, deflate_message
from ..protocol.grpc_headers import CallHead
from ..protocol.grpc_session import (
    CallCancelled,
    CallEvent,
    CallStarted,
    GrpcSession,
    HalfClosed,
    MessageReceived,
    WindowOpened,
)
from ..protocol.tensors import Buffer
from .log_control import GONE, CallLog, about_message

if TYPE_CHECKING:
    from grpclib.metadata import _MetadataLike

EXITING = "the server is exiting"
"""What clients are told whose calls are not waited for."""

UNSENT_BYTES_MAX = 1024 * 1024
"""Answer bytes that flow control (of one call) or the transport (of all calls of a connection) may
hold back before a handler waits: enough to keep a fast client busy, little enough that a thousand
stalled calls stay under a gigabyte."""

UNCHECKED_BYTES_MAX = 64 * 1024
"""Answers up to this size are sent without a look at the budget, which counts what of them waits;
one that is larger has to fit before it is there in full."""


DEFLATED_INLINE_BYTES_MAX = 16 * 1024
"""Answers up to this size are compressed at once: at the lowest level that takes half a
millisecond at most, several times what going to a thread costs."""


@final
class Ledger:
    """How many request bytes the calls of one connection hold on to."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


@final
class GrpcStream:
    """The server side of one call.

    Owned by the connection, which feeds it; used by one handler task. Closing, resetting and
    deadlines reach the handler as trio cancellation of `scope`.

    Attributes:
      path: "/package.Service/Method".
      deadline_s: When the client gives up, in clock seconds; inf if it never does.
      scope: The handler's cancel scope.
      arrived_s: When the call began, in clock seconds.
      half_closed: Whether the client has sent its last message.
      draining: Whether no more messages of a streaming client are taken.
      held_bytes: Request bytes of this call that were taken and are still referenced.
      compression_level: How hard its answers are compressed, if the client takes it; 0 is not at
        all, and what a handler may change before it sends.
      status: What the call has ended with, once it has.
      log: Where calls are logged.
      infer_message: The ModelInferRequest that the call is about, if it is about one.
    """

    __slots__ = (
        "_call",
        "_flush",
        "_handler",
        "_has_room",
        "_in_thread",
        "_ledger",
        "_messages",
        "_reason",
        "_session",
        "_waiter",
        "_writable",
        "arrived_s",
        "compression_level",
        "deadline_s",
        "draining",
        "half_closed",
        "held_bytes",
        "infer_message",
        "log",
        "path",
        "scope",
        "status",
        "stream_id",
    )

    def __init__(
        self,
        *,
        call: CallStarted,
        handler: Handler,
        session: GrpcSession,
        ledger: Ledger,
        has_room: Callable[[int], bool],
        flush: Callable[[], None],
        in_thread: Callable[..., Awaitable[Any]],
        now_s: float,
        log: CallLog,
    ) -> None:
        self._call = call
        self._handler = handler
        self._session = session
        self._has_room = has_room
        self._flush = flush
        self._in_thread = in_thread
        self.compression_level = 0
        self._messages: deque[Buffer] = deque()
        self.half_closed = False
        self.draining = False
        self.status: Status | None = None
        self._reason = ""
        self.log = log
        self.infer_message: Buffer | None = None
        self._ledger = ledger
        self.held_bytes = 0
        self._waiter: trio.Event | None = None
        self._writable: trio.Event | None = None
        self.stream_id = call.stream_id
        self.path = call.path
        self.arrived_s = now_s
        self.deadline_s = float("inf") if call.timeout_s is None else now_s + call.timeout_s
        self.scope = trio.CancelScope(deadline=self.deadline_s)

    @property
    def metadata(self) -> Any:
        """The request's metadata: lower-case key -> values, reserved keys left out."""
        return self._call.metadata

    @property
    def head(self) -> CallHead:
        """What the request's headers say."""
        return self._call.head

    # What the connection feeds.

    def handle(self, event: CallEvent) -> None:
        """Take an event of this call."""
        if isinstance(event, MessageReceived):
            self.feed_message(event.data)
            if event.ends:
                self.feed_half_close()
        elif isinstance(event, HalfClosed):
            self.feed_half_close()
        elif isinstance(event, WindowOpened):
            self.feed_writable()
        elif isinstance(event, CallCancelled):
            if self.status is None:
                self.status, self._reason = event.status, event.reason
            self.scope.cancel()

    def feed_message(self, data: Buffer) -> None:
        """Queue one received message."""
        self._messages.append(data)
        self._wake()

    def feed_half_close(self) -> None:
        """Note that the client sends no more messages."""
        self.half_closed = True
        self._wake()

    def begin_shutdown(self) -> None:
        """Finish what a streaming client has asked for, and then the call.

        Clients keep such calls open for as long as they live; waiting for their end would hold
        up the exit, and so would the wait for a request that is still coming.
        """
        if self._handler.cardinality.client_streaming:
            self.draining = True
            self._wake()
        elif self._waiter is not None:
            self.end(Status.UNAVAILABLE, EXITING)
            self.scope.cancel()

    def feed_writable(self) -> None:
        """Note that flow control or the transport let something out."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.set()

    def release(self, size_bytes: int) -> None:
        """Note that a received message is not referenced any more."""
        size_bytes = min(size_bytes, self.held_bytes)  # all is released when the call ends
        self.held_bytes -= size_bytes
        self._ledger.bytes -= size_bytes

    # What the handler uses.

    async def recv_message(self) -> Any:
        """Wait for the next request message; None once the client has half-closed.

        Raises:
          RequestError: the message is not of the request type.
        """
        data = await self.recv_bytes()
        if data is None:
            return None
        return parse_message(self._handler.request_type, data)

    async def recv_bytes(self) -> Buffer | None:
        """Wait for the next request message and return it undecoded; None after the last.

        It counts as held until `release`, or until the call ends: tensors are views on it.
        """
        while not self._messages:
            if self.half_closed or self.draining:
                return None
            self._waiter = trio.Event()
            await self._waiter.wait()
            self._waiter = None
        data = self._messages.popleft()
        self._session.consumed(self.stream_id, len(data))
        self.held_bytes += len(data)
        self._ledger.bytes += len(data)
        if self._session.has_output:
            self._flush()
        return data

    def __aiter__(self) -> GrpcStream:
        return self

    async def __anext__(self) -> Any:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def send_message(self, message: Any) -> None:
        """Send one response message, waiting while too much is held back by flow control."""
        await self.send_buffers([bytes(message)])

    async def send_buffers(self, buffers: list[Buffer]) -> None:
        """Send one encoded response message, waiting as `send_message` does.

        Raises:
          RequestError: the budget has no room for it.
        """
        size = 0
        for buffer in buffers:
            size += len(buffer)
        if size > UNCHECKED_BYTES_MAX and not self._has_room(size):
            raise RequestError(ErrorCode.UNAVAILABLE, BUDGET_USED_UP)
        session = self._session
        encoding, compressed = IDENTITY, False
        if self.compression_level:
            encoding = session.response_encoding(self.stream_id, self.compression_level)
            if encoding != IDENTITY:
                deflated = await self._deflate(buffers, size, encoding)
                if sum(map(len, deflated)) < size:
                    buffers, compressed = deflated, True
        session.send_message(self.stream_id, buffers, encoding=encoding, compressed=compressed)
        if not self._handler.cardinality.server_streaming:
            return  # the trailers follow at once, and one write takes both
        self._flush()
        while max(session.unsent_bytes(self.stream_id), session.output_bytes) > UNSENT_BYTES_MAX:
            if self._writable is None:  # several tasks of a handler may wait
                self._writable = trio.Event()
            await self._writable.wait()

    async def _deflate(self, buffers: list[Buffer], size_bytes: int, encoding: str) -> list[Buffer]:
        """Return a message compressed.

        What is more than a moment's work is done on a thread, piece by piece, so that it ends with
        the call.
        """
        pieces = deflate_message(buffers, encoding, self.compression_level)
        deflated: list[Buffer] = []
        if size_bytes <= DEFLATED_INLINE_BYTES_MAX:
            deflated += pieces
            return deflated
        self._ledger.bytes += size_bytes  # it waits as a whole until it is compressed
        try:
            while (piece := await self._in_thread(next, pieces, None)) is not None:
                deflated.append(piece)
        finally:
            self._ledger.bytes -= size_bytes
        return deflated

    async def send_trailing_metadata(
        self,
        *,
        status: Status = Status.OK,
        status_message: str | None = None,
        metadata: _MetadataLike | None = None,
    ) -> None:
        """End the call before the handler returns."""
        self.end(status, status_message or "", metadata)

    def end(
        self,
        status: Status,
        message: str = "",
        metadata: _MetadataLike | Collection[tuple[str, str]] | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        """End the call; ignored if it has ended."""
        if self.status is not None:
            return
        self.status, self._reason = status, message
        self._session.end_call(
            self.stream_id,
            status,
            message,
            tuple(metadata.items() if isinstance(metadata, Mapping) else metadata or ()),
            retry_after_s=retry_after_s,
        )
        self._flush()

    def log_end(self) -> None:
        """Write the line of a call that is over, if calls are logged."""
        if not self.log.enabled:
            return
        status, reason = self.status, self._reason
        if status is None:
            status, reason = Status.CANCELLED, GONE
        extra = None if self.infer_message is None else about_message(self.infer_message)
        self.log.answered(f"gRPC {self.path}", status.name, self.arrived_s, extra, reason=reason)

    async def serve(self) -> None:
        """Run the handler to its end and send the status it comes to.

        Raises:
          Exception: a fault of the server; the caller ends the call.
        """
        try:
            with self.scope:
                await self._handler.func(self)
        except RequestError as error:
            self.end(error.code.grpc_status, error.message, retry_after_s=error.retry_after_s)
        except GRPCError as error:
            self.end(error.status, error.message or "")
        else:
            if not self.scope.cancelled_caught:
                if self.draining and not self.half_closed:
                    self.end(Status.UNAVAILABLE, EXITING)
                else:
                    self.end(Status.OK)
            elif trio.current_time() >= self.deadline_s:
                self.end(Status.DEADLINE_EXCEEDED, "the call's deadline has passed")
            else:
                self.end(Status.CANCELLED, "the call was cancelled")
