"""The gRPC connection actor: one per connection; a task and a cancel scope for every call.

One task receives, one writes everything that became ready in a pass of the loop with a single
write, and each call runs its grpclib handler.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import trio
from grpclib.const import Handler, Status

from ..memory.budget import ByteBudget
from ..protocol.grpc_session import (
    CallCancelled,
    CallStarted,
    ConnectionClosed,
    GrpcLimits,
    GrpcSession,
    HalfClosed,
    MessageReceived,
    WindowOpened,
)
from ._connection_watch import ConnectionWatch, Patience, Phase
from .byte_stream import ByteStream
from .grpc_stream import GrpcStream, Ledger

GOAWAY_GRACE_S = 0.1
"""Between the two GOAWAYs: calls that were on their way when the first was sent arrive within it,
on any network that an inference service is used over, and are served."""

_log = logging.getLogger("tritrio.grpc")


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """What every gRPC connection of one frontend has in common.

    Attributes:
      limits: Bounds of the session.
      patience: Timeouts. Channels may idle for two hours, as Triton's keep-alive allows.
    """

    limits: GrpcLimits = field(default_factory=GrpcLimits)
    patience: Patience = field(default_factory=lambda: Patience(idle_s=7200.0))


@final
class GrpcConnection:
    """Serves one connection until it is closed; owns its stream."""

    def __init__(
        self,
        *,
        stream: ByteStream,
        handlers: Mapping[str, Handler],
        budget: ByteBudget,
        settings: GrpcSettings,
    ) -> None:
        self._stream = stream
        self._handlers = handlers
        self._budget = budget
        self._settings = settings
        self._session = GrpcSession(settings.limits)
        self._watch = ConnectionWatch()
        self._scope = trio.CancelScope()
        self._calls: dict[int, GrpcStream] = {}
        self._nursery: trio.Nursery | None = None
        self._output = trio.Event()
        self._writing = False
        self._draining = False
        self._closed = False
        self._progress = 0
        self._ledger = Ledger()
        self._held_bytes = 0

    async def run(self) -> None:
        """Serve until either side closes."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    if self._draining:
                        nursery.start_soon(self._leave)
                    nursery.start_soon(self._write_all)
                    self._flush()
                    await self._receive_all()
        finally:
            self._closed = True
            self._budget.give_back(self._held_bytes)
            self._held_bytes = 0
            with trio.CancelScope() as scope:
                scope.cancel()  # closing has to happen, but may not wait
                await self._stream.aclose()

    def begin_shutdown(self) -> None:
        """Tell the client to go elsewhere; calls in flight are finished."""
        if not self._draining:
            self._draining = True
            if self._nursery is not None:
                self._nursery.start_soon(self._leave)

    async def _leave(self) -> None:
        """Send the two GOAWAYs: the first asks for no more calls, the second ends them."""
        self._session.start_shutdown()
        self._flush()
        await trio.sleep(GOAWAY_GRACE_S)
        self._session.finish_shutdown()
        self._flush()

    def tick(self) -> None:
        """Apply the timeouts; called every `TICK_S`."""
        if self._writing:
            phase = Phase.WRITING
        elif self._calls:
            phase = Phase.SERVING
        else:
            phase = Phase.IDLE
        if self._watch.tick(phase, self._progress, self._settings.patience):
            self._scope.cancel()

    # Receiving.

    async def _receive_all(self) -> None:
        stream, session = self._stream, self._session
        while True:
            try:
                data = await stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
            self._progress += 1
            if not data:
                self._scope.cancel()
                return
            for event in session.receive_data(data):
                kind = type(event)
                if kind is CallStarted:
                    self._start(event)
                elif kind is ConnectionClosed:
                    continue  # the session says `should_close` once everything is written
                elif (call := self._calls.get(event.stream_id)) is None:
                    continue
                elif kind is MessageReceived:
                    call.feed_message(event.data)
                elif kind is HalfClosed:
                    call.feed_half_close()
                elif kind is WindowOpened:
                    call.feed_writable()
                elif kind is CallCancelled:
                    call.scope.cancel()
            self._settle_budget()
            if session.has_output or session.should_close:
                self._flush()

    def _start(self, event: CallStarted) -> None:
        handler = self._handlers.get(event.path)
        if handler is None:
            self._session.end_call(
                event.stream_id, Status.UNIMPLEMENTED, f"no method is served at {event.path}"
            )
            return
        call = GrpcStream(
            call=event,
            handler=handler,
            session=self._session,
            ledger=self._ledger,
            flush=self._flush,
            now_s=trio.current_time(),
        )
        self._calls[event.stream_id] = call
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, call)

    async def _serve(self, call: GrpcStream) -> None:
        try:
            await call.serve()
        except Exception:  # the last line: one call fails, the server goes on  # noqa: BLE001
            _log.exception("a fault of the server while answering %s", call.path)
            call.end(Status.INTERNAL, "the server failed to answer this call")
        finally:
            del self._calls[call.stream_id]
            call.release(call.held_bytes)
            if not self._closed:
                self._settle_budget()

    def _settle_budget(self) -> None:
        """Bring what is taken from the budget up to date; refuse calls if there is not enough."""
        needed = self._ledger.bytes + self._session.buffered_bytes
        more = needed - self._held_bytes
        if more > 0 and not self._budget.try_take(more):
            calls = list(self._calls.values())
            # Those whose request is still coming can be refused without losing work.
            for call in [call for call in calls if not call.held_bytes] or calls:
                call.end(Status.UNAVAILABLE, "the server's byte budget is used up; try again")
                call.scope.cancel()
            return
        if more < 0:
            self._budget.give_back(-more)
        self._held_bytes = needed

    # Writing.

    def _flush(self) -> None:
        self._output.set()

    async def _write_all(self) -> None:
        session, stream = self._session, self._stream
        while True:
            if not session.has_output:
                if session.should_close:
                    self._scope.cancel()
                    return
                self._output = trio.Event()
                await self._output.wait()
                continue
            self._writing = True
            try:
                await stream.send_all(session.take_output())
            except trio.BrokenResourceError:
                self._scope.cancel()
                return
            self._writing = False
            self._progress += 1
