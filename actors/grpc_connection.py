"""The gRPC connection actor: one per connection.

One task receives; one writes, with a single write, everything that became ready in a pass of the
loop. Calls run a grpclib handler in a task and a cancel scope of their own, except those of
direct methods: they only wait for a reply, so the receiving task starts them and whoever sends
the reply finishes them. That halves the cost of an inference.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import final

import trio
from grpclib.const import Handler, Status

from ..memory.budget import BUDGET_USED_UP, ByteBudget, Lease
from ..protocol.grpc_compression import MessageError
from ..protocol.grpc_events import ClientPinged, ConnectionEvent
from ..protocol.grpc_session import (
    CallCancelled,
    CallEvent,
    CallStarted,
    ConnectionClosed,
    DeflatedReceived,
    GrpcSession,
)
from ..protocol.tensors import Buffer
from ._connection_watch import ConnectionWatch, Phase
from ._keep_alive_policy import KeepAliveAction, KeepAlivePolicy
from ._wakeup import Wakeup
from .byte_stream import ByteStream
from .grpc_direct import DirectCalls, DirectMethod, server_fault
from .grpc_settings import GrpcSettings
from .grpc_stream import EXITING, GrpcStream, Ledger

GOAWAY_GRACE_S = 0.1
"""Between the two GOAWAYs of an exit: calls that were on their way when the first was sent arrive
within it, on any network that an inference service is used over, and are served."""
RETIREMENT_S = 10.0
"""The same where a connection is merely old: nobody waits, and its client may be slow or far."""

OUTPUT_BYTES_MAX = 4 * 1024 * 1024
"""Output that may wait behind a write before reading pauses: a client that asks and never reads
has to stop asking. Answers that flow control lets out at the same time are smaller than this."""

EXPIRED = "the connection has reached its age, and the grace for its calls is over"

INFLATE_STEP_BYTES = 1024 * 1024
"""What a message being inflated takes from the budget at a time: milliseconds of a thread's work,
many times what it costs to go there."""


@final
class GrpcConnection:
    """Serves one connection until it is closed; owns its stream."""

    def __init__(
        self,
        *,
        stream: ByteStream,
        handlers: Mapping[str, Handler],
        direct: Mapping[str, DirectMethod],
        budget: ByteBudget,
        settings: GrpcSettings,
    ) -> None:
        self._stream = stream
        self._handlers = handlers
        self._lease = Lease(budget)
        self._patience = settings.patience
        self._restricted = settings.restricted
        self._call_log = settings.calls
        self._in_thread = partial(trio.to_thread.run_sync, limiter=settings.codec_threads)
        self._session = GrpcSession(settings.limits)
        self._watch = ConnectionWatch()
        self._keep_alive = KeepAlivePolicy(
            settings.keep_alive,
            trio.current_time(),
            jitter=random.uniform(-1, 1),  # noqa: S311 - nobody gains by guessing it
        )
        self._scope = trio.CancelScope()
        self._calls: dict[int, GrpcStream] = {}
        self._direct = DirectCalls(
            methods=direct,
            session=self._session,
            has_room=self._has_room,
            ended=self._direct_ended,
            spawn=self._spawn,
            log=settings.calls,
        )
        self._nursery: trio.Nursery | None = None
        self._output = Wakeup()  # set when there may be something to write
        self._taken = Wakeup()  # set when the writing task has taken the output
        self._inflating_bytes = 0  # what the message being inflated may take
        self._sending_bytes = 0  # what of the output was taken and is not written
        self._unsent: list[Buffer] = []  # what of that waits for the writing task
        self._writing = False
        self._leaving = trio.Event()  # the client is to go elsewhere
        self._shutdown = trio.Event()  # and the server exits
        self._expired = False
        self._heard = 0  # reads so far
        self._progress = 0  # writes so far
        self._ledger = Ledger()

    async def run(self) -> None:
        """Serve until either side closes."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._leave)
                    nursery.start_soon(self._write_all)
                    nursery.start_soon(self._direct.expire_forever)
                    self._flush()
                    await self._receive_all()
        finally:
            self._nursery = None
            self._direct.close()
            self._lease.settle(0)
            with trio.CancelScope() as scope:
                scope.cancel()  # closing has to happen, but may not wait
                await self._stream.aclose()

    def begin_shutdown(self) -> None:
        """Tell the client to go elsewhere; calls in flight are finished."""
        self._patience = self._patience.while_draining()
        self._leaving.set()
        self._shutdown.set()

    async def _leave(self) -> None:
        """Send the two GOAWAYs: the first asks for no more calls, the second ends them."""
        await self._leaving.wait()
        self._session.start_shutdown()
        self._flush()
        with trio.move_on_after(RETIREMENT_S):
            await self._shutdown.wait()
            await trio.sleep(GOAWAY_GRACE_S)
        self._session.finish_shutdown()
        self._flush()
        await self._shutdown.wait()  # where the connection is merely old, its calls go on
        for stream_id in self._direct.unstarted():
            self._direct.end(stream_id, Status.UNAVAILABLE, EXITING)
        for call in self._calls.values():
            call.begin_shutdown()
        self._flush()

    def tick(self) -> None:
        """Apply the timeouts; called every `TICK_S`."""
        heard, sent_bytes = self._heard + self._inflating_bytes, self._stream.sent_bytes
        phase = self._phase()
        progress = 0 if phase is Phase.HEAD else heard + self._progress + sent_bytes
        if self._watch.tick(phase, progress, self._patience):
            self._scope.cancel()
        has_calls = bool(self._session.active_calls)
        action = self._keep_alive.tick(
            trio.current_time(), heard=heard, sent=sent_bytes, has_calls=has_calls
        )
        if action is not KeepAliveAction.NOTHING:
            self._keep(action)

    def cut(self, reason: str) -> None:
        """End every call, say so as far as that goes without waiting, and close."""
        self._direct.end_all(Status.UNAVAILABLE, reason)
        for call in self._calls.values():
            call.end(Status.UNAVAILABLE, reason)
        if not self._writing:
            self._write_now()
        self._scope.cancel()

    def _keep(self, action: KeepAliveAction) -> None:
        match action:
            case KeepAliveAction.PING:
                self._session.send_ping()
            case KeepAliveAction.RETIRE:
                self._leaving.set()
            case KeepAliveAction.EXPIRE if not self._expired:
                self._expired = True
                self._session.end_all(Status.UNAVAILABLE, EXPIRED)
            case _:
                self._scope.cancel()
        self._flush()

    def _phase(self) -> Phase:
        if self._writing:
            return Phase.WRITING
        if self._shutdown.is_set() and not self._direct:
            held_back = map(self._session.unsent_bytes, self._calls)
            if self._session.active_calls and all(held_back):
                return Phase.WRITING  # the client's flow control is all that there is to wait for
        if self._calls or self._direct:
            return Phase.SERVING
        return Phase.IDLE if self._session.is_greeted else Phase.HEAD

    # Receiving.

    async def _receive_all(self) -> None:
        stream, session = self._stream, self._session
        while True:
            try:
                data = await stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
            self._heard += 1
            if not data:
                self._scope.cancel()
                return
            events = session.receive_data(data)
            short = not self._try_settle()  # before what has come whole is started
            self._direct.refuse = short
            for event in events:
                if isinstance(event, DeflatedReceived):
                    await self._inflate(event)
                else:
                    self._handle(event)
            if short:
                self._settle_budget()
            if session.has_output or session.should_close:
                self._flush()
            while session.output_bytes > OUTPUT_BYTES_MAX:
                await self._taken.wait()

    async def _inflate(self, event: DeflatedReceived) -> None:
        """Inflate a message on a thread, taking each step from the budget first.

        Nothing is read meanwhile, so this counts as hearing of the client; its other calls go on.
        """
        inflater = event.message.inflater
        try:
            while not inflater.is_whole:
                self._inflating_bytes += INFLATE_STEP_BYTES
                if not self._try_settle():
                    raise MessageError(Status.UNAVAILABLE, BUDGET_USED_UP)
                await self._in_thread(inflater.step, INFLATE_STEP_BYTES)
        except MessageError as error:
            self._session.end_call(event.stream_id, error.status, error.message)
            self._handle(CallCancelled(event.stream_id, error.message, error.status))
        else:
            self._handle(self._session.inflated(event))
        finally:
            self._inflating_bytes = 0
            self._try_settle()
            self._flush()

    def _handle(self, event: CallStarted | CallEvent | ClientPinged | ConnectionClosed) -> None:
        if isinstance(event, CallStarted):
            self._start(event)
            return
        if isinstance(event, ConnectionEvent):
            if isinstance(event, ClientPinged) and not self._session.should_close:
                self._take_ping(event)
            return  # if it is closed, the session says `should_close` once everything is written
        if self._direct.handle(event):
            return
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.handle(event)

    def _take_ping(self, event: ClientPinged) -> None:
        has_calls, now_s = bool(self._session.active_calls), trio.current_time()
        if self._keep_alive.client_pinged(now_s, repeated=event.repeated, has_calls=has_calls):
            for cancelled in self._session.refuse_pings():
                assert not isinstance(cancelled, DeflatedReceived)
                self._handle(cancelled)

    def _start(self, event: CallStarted) -> None:
        now_s = trio.current_time()
        if self._restricted is not None:
            refusal = self._restricted.refusal(event.path, event.metadata)
            if refusal is not None:
                self._refuse(event, Status.UNAVAILABLE, refusal)
                return
        if self._direct.start(event, now_s):
            return
        handler = self._handlers.get(event.path)
        if handler is None:
            self._refuse(event, Status.UNIMPLEMENTED, f"no method is served at {event.path}")
            return
        call = GrpcStream(
            call=event,
            handler=handler,
            session=self._session,
            ledger=self._ledger,
            has_room=self._has_room,
            flush=self._flush,
            in_thread=self._in_thread,
            now_s=now_s,
            log=self._call_log,
        )
        self._calls[event.stream_id] = call
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, call)

    def _refuse(self, event: CallStarted, status: Status, message: str) -> None:
        self._session.end_call(event.stream_id, status, message)
        if self._call_log.enabled:
            now_s = trio.current_time()
            self._call_log.answered(f"gRPC {event.path}", status.name, now_s, reason=message)

    # Calls with a task.

    def _spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(run)

    async def _serve(self, call: GrpcStream) -> None:
        try:
            await call.serve()
        except Exception:  # the last line: one call fails, the server goes on  # noqa: BLE001
            fault = server_fault(call.path)
            call.end(fault.code.grpc_status, fault.message)
        finally:
            call.log_end()
            del self._calls[call.stream_id]
            call.release(call.held_bytes)
            self._settle_budget()

    def _has_room(self, answer_bytes: int) -> bool:
        """Whether the budget has room for an answer; it then has it from before it is queued."""
        return self._try_settle(answer_bytes)

    def _try_settle(self, extra_bytes: int = 0) -> bool:
        """Bring what is taken from the budget up to date; False if there is not enough."""
        return self._lease.settle(
            self._ledger.bytes
            + self._sending_bytes
            + self._inflating_bytes
            + self._session.buffered_bytes
            + extra_bytes
        )

    def _settle_budget(self) -> None:
        """Bring what is taken from the budget up to date, if need be by ending calls.

        Those whose request is still coming are first, since that loses no work; then streams that
        may still grow, those with the least in work first.
        """
        if self._try_settle():
            return
        for stream_id in self._direct.unstarted():
            self._direct.end(stream_id, Status.UNAVAILABLE, BUDGET_USED_UP)
            if self._try_settle():
                return
        for call in sorted(self._calls.values(), key=lambda call: call.held_bytes):
            if not call.half_closed:
                call.end(Status.UNAVAILABLE, BUDGET_USED_UP)
                call.scope.cancel()
                call.release(call.held_bytes)
                if self._try_settle():
                    return

    # Writing.

    def _flush(self) -> None:
        self._output.set()

    def _direct_ended(self) -> None:
        if self._direct or self._writing:
            self._flush()  # more may become ready in this turn of the loop
        else:
            self._write_now()

    async def _write_all(self) -> None:
        session = self._session
        while True:
            if not (session.has_output or self._unsent):
                if session.should_close:
                    self._scope.cancel()
                    return
                await self._output.wait()
                continue
            await self._write()

    async def _write(self) -> None:
        """Write what is ready, and let those go on who wait for it."""
        output = self._take_output()
        self._writing = True
        try:
            await self._stream.send_all(output)
        except trio.BrokenResourceError:
            self._scope.cancel()
            return
        self._writing = False
        self._written()

    def _write_now(self) -> None:
        """Write what is ready as far as that goes without waiting."""
        output = self._take_output()
        try:
            self._unsent = self._stream.send_nowait(output)
        except trio.BrokenResourceError:
            self._scope.cancel()
            return
        if self._unsent:
            self._sending_bytes = sum(map(len, self._unsent))
            self._flush()
        else:
            self._written()
            if self._session.should_close:
                self._flush()

    def _take_output(self) -> list[Buffer]:
        session = self._session
        self._sending_bytes += session.output_bytes
        output = [*self._unsent, *session.take_output()]
        self._unsent = []
        self._taken.set()
        for call in self._calls.values():
            call.feed_writable()
        return output

    def _written(self) -> None:
        self._progress += 1
        self._sending_bytes = 0
        self._try_settle()
