"""The REST handler as an ASGI application, for hypercorn or to be mounted elsewhere.

Around every request runs a pump that always drains what the server delivers: hypercorn queues a
bounded number of events a request and blocks its whole connection on them, and tells of a client
that left only to those who listen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from time import perf_counter_ns
from typing import Any, TypeAlias, final

import trio

from ..memory.budget import BUDGET_USED_UP, ByteBudget, Lease
from ..protocol.http_request import BODY_BYTES_MAX, HTTP_1_0, HTTP_1_1, HttpRequest, path_of_url
from ..protocol.http_response import JOINED_BYTES_MAX, HttpResponse, error_response
from ..protocol.tensors import Buffer
from ._asgi_lifespan import answer_lifespan
from .http_api import HttpApi
from .http_stream import HttpStream
from .log_control import CallLog

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

BODY_TIMEOUT_S = 60.0
"""How long a client may send nothing of a body; the same patience our own server has."""

WRITE_TIMEOUT_S = 60.0
"""How long a client may refuse to take an answer; likewise."""


@final
class HttpApplication:
    """An ASGI 3 application; logs requests in `calls`, if it is given."""

    def __init__(self, *, api: HttpApi, budget: ByteBudget, calls: CallLog | None = None) -> None:
        self._api = api
        self._calls = calls or CallLog()
        self._budget = budget
        self._draining = False
        self._receiving: set[trio.CancelScope] = set()

    def begin_shutdown(self) -> None:
        """Wait for no more of the bodies that have come in part."""
        self._draining = True
        for scope in self._receiving:
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; cancels it when the client is gone."""
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # before it is accepted: 403
        if scope["type"] != "http":
            return
        request = _request(scope)
        arrived_s = trio.current_time()
        body = _Body(self._budget)
        answer: HttpResponse | HttpStream | None = None
        try:
            refusal = self._api.admit(request)
            if refusal is not None:
                response = refusal.response
            elif not await self._receive(body, receive):
                return
            elif body.refusal is not None:
                response = body.refusal
            else:
                request.body = body.data
                answered = await self._answer(request, receive, send)
                if not isinstance(answered, HttpResponse):
                    answer = answered
                    return
                response = answered
            if not body.admit_answer(response):
                response = error_response(503, BUDGET_USED_UP)
            answer = response
            with trio.move_on_after(WRITE_TIMEOUT_S), suppress(trio.BusyResourceError):
                # Busy: the client left at this moment, and hypercorn is closing its connection.
                await _send(request, response, send)
        finally:
            if self._calls.enabled:
                self._calls.answered_http(request, answer, arrived_s)
            body.release()
            if request.trace is not None:
                request.trace.release()

    async def _receive(self, body: _Body, receive: Receive) -> bool:
        """Take the whole body; False if the client left."""
        with trio.CancelScope() as scope:
            self._receiving.add(scope)
            if self._draining:
                scope.cancel()
            try:
                return await body.receive(receive)
            finally:
                self._receiving.discard(scope)
        body.release()
        body.refusal = error_response(503, "the server is exiting")
        return True

    async def _answer(
        self, request: HttpRequest, receive: Receive, send: Send
    ) -> HttpResponse | HttpStream | None:
        """Run the handler while listening for the client's departure.

        Returns:
          The response; a stream that has been sent; None if the client left.
        """
        response: HttpResponse | HttpStream | None = None
        begun = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            answer = await self._api.handle(request)
            if isinstance(answer, HttpStream):
                with closing(answer):
                    begun = await _send_in_time(send, _head_of(answer))
                    begun = begun and await _send_pieces(answer, send)
                    response = answer if begun else None
            else:
                response = answer
            nursery.cancel_scope.cancel()
        if begun:
            # Only now that nobody listens: hypercorn then says that the client left, even if it did
            # not. Also for a client that did leave, or hypercorn never reads of its end.
            await _send_in_time(send, {"type": "http.response.body", "body": b""})
        return response


@final
class _Body:
    """A request body on its way in, and its answer's on the way out, in the byte budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._lease = Lease(budget)
        self.data = bytearray()
        self.refusal: HttpResponse | None = None

    async def receive(self, receive: Receive) -> bool:
        """Take the whole body, dropping it once refused; False if the client left."""
        while True:
            with trio.move_on_after(BODY_TIMEOUT_S) as scope:
                message = await receive()
            if scope.cancelled_caught:
                self.release()
                self.refusal = error_response(408, "the rest of the body did not arrive in time")
                return True
            if message["type"] == "http.disconnect":
                return False
            piece = message.get("body", b"")
            if self.refusal is None and not self._take(piece):
                self.release()
            if not message.get("more_body", False):
                return True

    def _take(self, piece: bytes) -> bool:
        if len(self.data) + len(piece) > BODY_BYTES_MAX:
            self.refusal = error_response(400, f"a body may have {BODY_BYTES_MAX} bytes, got more")
            return False
        if not self._lease.settle(self._lease.held_bytes + len(piece)):
            self.refusal = error_response(503, BUDGET_USED_UP)
            return False
        self.data += piece
        return True

    def admit_answer(self, response: HttpResponse) -> bool:
        """Take an answer's body from the budget, too; False if a large one does not fit."""
        size = sum(map(len, _parts(response)))
        return size <= JOINED_BYTES_MAX or self._lease.settle(self._lease.held_bytes + size)

    def release(self) -> None:
        """Give everything back; idempotent."""
        self._lease.settle(0)
        self.data = bytearray()


def _request(scope: Scope) -> HttpRequest:
    raw_headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    headers: dict[bytes, bytes] = {}
    for name, value in raw_headers:
        key = name.lower()
        headers[key] = headers[key] + b", " + value if key in headers else value
    path = path_of_url(scope.get("raw_path") or scope["path"].encode())
    root = scope.get("root_path", "").encode()
    if root and path.startswith(root):
        path = path[len(root) :]  # mounted below a prefix
    query = scope.get("query_string", b"")
    length = headers.get(b"content-length", b"")
    return HttpRequest(
        method=scope["method"].encode(),
        target=path + b"?" + query if query else path,
        path=path,
        version=HTTP_1_0 if scope.get("http_version") == "1.0" else HTTP_1_1,
        headers=headers,
        raw_headers=raw_headers,
        content_length=int(length) if length.isdigit() else None,
        keep_alive=True,
        expects_continue=False,
    )


def _parts(response: HttpResponse) -> Sequence[Buffer]:
    return [response.body] if isinstance(response.body, bytes) else response.body


def _head_of(stream: HttpStream) -> dict[str, Any]:
    return {"type": "http.response.start", "status": stream.status, "headers": stream.headers}


async def _send_pieces(stream: HttpStream, send: Send) -> bool:
    """Send the body of a stream, but for its end; False if the client does not take it."""
    while (piece := await stream.next_piece()) is not None:
        body = {"type": "http.response.body", "body": bytes(piece), "more_body": True}
        if not await _send_in_time(send, body):
            return False
    return True


async def _send_in_time(send: Send, message: dict[str, Any]) -> bool:
    """Send a message; False if the client takes it not in time, or has left at this moment."""
    with trio.move_on_after(WRITE_TIMEOUT_S), suppress(trio.BusyResourceError):
        await send(message)
        return True
    return False


async def _send(request: HttpRequest, response: HttpResponse, send: Send) -> None:
    trace = request.trace
    if trace is not None:
        trace.stamp("HTTP_SEND_START", perf_counter_ns())
    parts = _parts(response)
    length = sum(len(part) for part in parts)
    headers = [*response.headers, (b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    body = b"" if request.method == b"HEAD" else b"".join(parts)
    await send({"type": "http.response.body", "body": body})
    if trace is not None:
        trace.sent("HTTP_SEND_END", perf_counter_ns())
