"""The HTTP connection actor: one per connection.

Bytes in, `HttpRequest` to the service, `HttpResponse` back, bytes out. One task receives for as
long as the connection lives, so that a client that leaves is noticed while its request waits or
executes. It also starts every request, which for an inference means to queue it, so that the
other task, which answers strictly in order, is woken only once there is something to write.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from types import CoroutineType
from typing import final

import trio

from ..memory.budget import BUDGET_USED_UP, ByteBudget, Lease
from ..protocol.http_request import HTTP_1_0
from ..protocol.http_response import HttpResponse, encode_response, error_response
from ..protocol.http_session import (
    CONTINUE,
    HttpFailure,
    HttpRequest,
    HttpSession,
    HttpState,
)
from ..protocol.requests import InferRequest
from ..protocol.tensors import Buffer
from ._connection_watch import ConnectionWatch, Phase
from ._http_owed import Owed
from ._wakeup import Wakeup
from .byte_stream import ByteStream
from .http_service import HttpService
from .http_settings import HttpSettings
from .http_stream import HttpStream, cut_stream, write_stream
from .log_control import about
from .reply import Reply

PIPELINED_MAX = 16
"""Requests of one connection that wait for their turn while more is read; beyond it reading pauses,
which is TCP's own back-pressure. Clients that pipeline at all send a handful."""

LINGER_S = 2.0
"""How long a refused client may go on sending before the connection is closed. Closing at once
would reset it, and the reset would overtake the answer that says why."""

_log = logging.getLogger("tritrio.http")


@final
class HttpConnection:
    """Serves one connection until it is closed; owns its stream."""

    def __init__(
        self,
        *,
        stream: ByteStream,
        service: HttpService,
        budget: ByteBudget,
        settings: HttpSettings,
    ) -> None:
        self._stream = stream
        self._service = service
        self._lease = Lease(budget)
        self._settings = settings
        self._calls = settings.calls
        self._patience = settings.patience
        self._session = HttpSession(settings.limits, admit=service.admit)
        self._watch = ConnectionWatch()
        self._scope = trio.CancelScope()
        self._queue: deque[Owed] = deque()  # the first stays in it until it is written
        self._news = Wakeup()  # set when the answering task may find something to write
        self._room = Wakeup()  # set when the queue has room for the receiving task
        self._writing = False
        self._draining = False
        self._eof = False
        self._lingering = False
        self._progress = 0
        self._started = 0  # requests so far
        self._owed_bytes = 0  # bodies of requests that are not answered yet

    async def run(self) -> None:
        """Serve until either side closes."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answer_all)
                    await self._receive_all()
        finally:
            self._drop_queue()
            self._lease.settle(0)
            with trio.CancelScope() as scope:
                scope.cancel()  # closing has to happen, but may not wait
                await self._stream.aclose()

    def begin_shutdown(self) -> None:
        """Answer what is owed, then close.

        Where nothing is, which is also where a request has come in part, that is at once.
        """
        self._draining = True
        self._patience = self._patience.while_draining()
        if self._phase() in (Phase.IDLE, Phase.HEAD, Phase.BODY):
            self._scope.cancel()

    def tick(self) -> None:
        """Apply the timeouts; called every `TICK_S`."""
        phase = self._phase()
        moved = self._progress + self._stream.sent_bytes
        progress = self._started if phase is Phase.HEAD else moved
        if not self._watch.tick(phase, progress, self._patience):
            return
        if phase in (Phase.HEAD, Phase.BODY):
            what = "head" if phase is Phase.HEAD else "body"
            self._fail(HttpFailure(408, f"the rest of the request {what} did not arrive in time"))
        else:
            self._scope.cancel()

    def cut(self, reason: str) -> None:
        """Answer the request whose turn it is, or end its stream, if nothing is half-written."""
        queue = self._queue
        while len(queue) > 1:
            self._drop(queue.pop())
        owed = queue[0] if queue else None
        half_written = self._writing or (owed is not None and owed.unsent is not None)
        if owed is not None and type(owed.event) is HttpRequest and not half_written:
            if isinstance(owed.answer, HttpStream):
                http_10 = owed.event.version == HTTP_1_0
                buffers: Sequence[Buffer] = cut_stream(owed.answer, reason, http_10=http_10)
            else:
                buffers = self._encode(owed.event, owed, error_response(503, reason))
            with suppress(trio.BrokenResourceError):
                self._stream.send_nowait(buffers)  # small, so that nearly all sockets take it
        self._scope.cancel()

    def _phase(self) -> Phase:
        if self._writing:
            return Phase.WRITING
        if self._queue:
            return Phase.SERVING
        phases = {HttpState.HEAD: Phase.HEAD, HttpState.BODY: Phase.BODY}
        return phases.get(self._session.state, Phase.IDLE)

    # Receiving.

    async def _receive_all(self) -> None:
        stream, session = self._stream, self._session
        while True:
            try:
                data = await stream.receive_some()
            except trio.BrokenResourceError:
                self._scope.cancel()
                return
            self._progress += 1
            if not data:
                self._receive_eof()
                return
            for event in session.receive_data(data):
                if type(event) is not HttpRequest:
                    self._queue.append(Owed(event))
                    self._news.set()
                elif not self._start(event):
                    break
            if not self._settle_budget():
                self._fail(HttpFailure(503, BUDGET_USED_UP))
            while len(self._queue) > PIPELINED_MAX:
                await self._room.wait()

    def _start(self, request: HttpRequest) -> bool:
        """Start a request; False if the budget has no room for it."""
        self._started += 1
        self._owed_bytes += len(request.body)
        if self._owed_bytes > self._lease.held_bytes and not self._settle_budget():
            self._owed_bytes -= len(request.body)
            self._fail(HttpFailure(503, BUDGET_USED_UP))
            return False
        owed = Owed(request)
        owed.arrived_s = trio.current_time() if self._calls.enabled else None
        try:
            answer = owed.answer = self._service.start(request)
        except Exception:  # the last line: one request fails, the server goes on  # noqa: BLE001
            answer = owed.answer = self._server_fault()
        self._queue.append(owed)
        if type(answer) is Reply and not answer.has_response:
            answer.notify = self._answer_now
        else:
            self._news.set()
        return True

    def _receive_eof(self) -> None:
        self._eof = True
        queue = self._queue
        owed = bool(queue) and type(queue[0].event) is not HttpFailure
        queue.extend(Owed(event) for event in self._session.receive_eof())
        if (owed and self._settings.cancel_on_eof) or not queue or self._lingering:
            self._scope.cancel()
        self._news.set()

    def _fail(self, failure: HttpFailure) -> None:
        """Take no more requests; say why, after the answers that are owed, and close."""
        self._session.fail()
        self._settle_budget()
        self._queue.append(Owed(failure))
        self._news.set()

    def _settle_budget(self) -> bool:
        """Bring what is taken from the budget up to date; False if there is not enough."""
        return self._lease.settle(self._owed_bytes + self._session.buffered_bytes)

    def _drop_queue(self) -> None:
        """Cancel what nobody will be answered."""
        while self._queue:
            self._drop(self._queue.popleft())

    def _drop(self, owed: Owed) -> None:
        if owed.arrived_s is not None and type(owed.event) is HttpRequest:
            answer = owed.answer
            told = answer if isinstance(answer, HttpStream) and answer.reason else None
            self._calls.answered_http(owed.event, told, owed.arrived_s, owed.infer)
        if isinstance(owed.answer, (Reply, HttpStream, CoroutineType)):
            owed.answer.close()
        if type(owed.event) is HttpRequest and owed.event.trace is not None:
            owed.event.trace.release()

    # Answering.

    async def _answer_all(self) -> None:
        queue = self._queue
        while True:
            owed = queue[0] if queue else None
            if owed is None or (
                type(owed.answer) is Reply and owed.unsent is None and not owed.answer.has_response
            ):
                if owed is None and self._eof:
                    break
                await self._news.wait()
                continue
            event = owed.event
            if type(event) is HttpRequest:
                await self._answer(event, owed)
                if owed.answer is not None:
                    continue
                self._owed_bytes -= len(event.body)
                if event.trace is not None:
                    event.trace.sent("HTTP_SEND_END", perf_counter_ns())
            elif type(event) is HttpFailure:
                if self._calls.enabled:
                    self._calls.refused_http(event)
                refusal = event.response
                await self._send(encode_response(refusal, keep_alive=False))
                await self._linger()
                return
            else:
                await self._send([CONTINUE])
            queue.popleft()
            self._settle_budget()
            self._room.set()
            if not owed.keep_alive or (self._draining and not queue):
                break
        self._scope.cancel()

    async def _answer(self, request: HttpRequest, owed: Owed) -> None:
        """Write the answer to one request; `owed.answer` is None once it is written."""
        if owed.unsent is None:
            answer = owed.answer
            assert answer is not None
            while not isinstance(answer, HttpResponse):
                if isinstance(answer, HttpStream):
                    await self._send_stream(request, owed, answer)
                    return
                if isinstance(answer, Reply):
                    if not answer.has_response:
                        answer.notify = self._answer_now
                        return  # once more when it is there
                    answer = self._finish(owed, answer)
                else:
                    try:
                        answer = await answer
                    except Exception:  # the last line, as in `_start`  # noqa: BLE001
                        answer = self._server_fault()
                owed.answer = answer
            owed.unsent = self._encode(request, owed, answer)
        unsent = owed.unsent
        size = sum(map(len, unsent)) if len(unsent) > 1 else 0  # small ones are joined to one
        self._owed_bytes += size
        if size and not self._settle_budget():
            self._owed_bytes -= size
            size = 0
            unsent = owed.unsent = self._encode(request, owed, error_response(503, BUDGET_USED_UP))
        await self._send(unsent)
        self._owed_bytes -= size
        owed.answer = None

    async def _send_stream(self, request: HttpRequest, owed: Owed, stream: HttpStream) -> None:
        """Write an answer piece by piece; a fault on the way can only cut the connection."""
        http_10 = request.version == HTTP_1_0
        owed.keep_alive = self._keeps_alive(request) and not http_10
        if request.trace is not None:
            request.trace.stamp("HTTP_SEND_START", perf_counter_ns())
        try:
            await write_stream(
                stream, self._send_counted, keep_alive=owed.keep_alive, http_10=http_10
            )
        except Exception:  # the last line, as in `_start`  # noqa: BLE001
            self._server_fault()
            self._scope.cancel()
        if owed.arrived_s is not None:
            self._calls.answered_http(request, stream, owed.arrived_s)
            owed.arrived_s = None
        stream.close()
        owed.answer = None

    async def _send_counted(self, buffers: Sequence[Buffer]) -> None:
        size = sum(map(len, buffers))
        self._owed_bytes += size
        if not self._settle_budget():
            _log.warning("a streamed response is cut: %s", BUDGET_USED_UP)
            self._scope.cancel()
        await self._send(buffers)
        self._owed_bytes -= size

    def _keeps_alive(self, request: HttpRequest) -> bool:
        """Whether the connection stays open after the request whose turn it is."""
        if not self._draining:
            return request.keep_alive
        return request.keep_alive and len(self._queue) > 1

    def _finish(self, owed: Owed, reply: Reply) -> HttpResponse | Awaitable[HttpResponse]:
        if owed.arrived_s is not None:
            owed.infer = reply.request
        try:
            return self._service.finish(reply.request, reply.receive_nowait())
        except Exception:  # the last line, as in `_start`  # noqa: BLE001
            return self._server_fault(reply.request)

    def _encode(self, request: HttpRequest, owed: Owed, response: HttpResponse) -> Sequence[Buffer]:
        owed.keep_alive = self._keeps_alive(request)
        if owed.arrived_s is not None:
            self._calls.answered_http(request, response, owed.arrived_s, owed.infer)
            owed.arrived_s = None
        if request.trace is not None:
            request.trace.stamp("HTTP_SEND_START", perf_counter_ns())
        return encode_response(
            response,
            keep_alive=owed.keep_alive,
            head_only=request.method == b"HEAD",
            http_10=request.version == HTTP_1_0,
        )

    def _answer_now(self) -> None:
        """Write the answer to a lone request, as far as that goes without waiting.

        Called by whoever sends the reply, which it must not harm. Anything but the ordinary is
        left to the answering task.
        """
        queue = self._queue
        owed = queue[0]
        event = owed.event
        if (
            len(queue) == 1
            and type(event) is HttpRequest
            and type(owed.answer) is Reply
            and event.keep_alive
            and event.trace is None
            and not (self._draining or self._eof or self._writing)
        ):
            response = self._finish(owed, owed.answer)
            if type(response) is not HttpResponse:
                owed.answer = response
                self._news.set()
                return
            buffers = self._encode(event, owed, response)
            if len(buffers) > 1:  # a large one, which the budget has to have room for
                owed.unsent = buffers
                self._news.set()
                return
            try:
                owed.unsent = self._stream.send_nowait(buffers)
            except trio.BrokenResourceError:
                self._scope.cancel()
                return
            if not owed.unsent:
                self._progress += 1
                queue.popleft()
                self._owed_bytes -= len(event.body)
                self._settle_budget()
                return
        self._news.set()

    def _server_fault(self, request: InferRequest | None = None) -> HttpResponse:
        what = "a fault of the server while answering an HTTP request"
        _log.exception(what, extra=about(request))
        return error_response(500, "the server failed to answer this request")

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()  # a cut may have answered at this moment
        self._writing = True
        try:
            await self._stream.send_all(buffers)
        except trio.BrokenResourceError:
            self._scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()
        self._writing = False
        self._progress += 1

    async def _linger(self) -> None:
        """Let a refused client read the answer before the connection goes."""
        try:
            await self._stream.send_eof()
        except trio.BrokenResourceError:
            pass
        else:
            self._lingering = True
            if not self._eof:
                await trio.sleep(LINGER_S)
        self._scope.cancel()
