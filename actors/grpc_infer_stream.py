"""ModelStreamInfer: many requests and their responses on one stream."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import final

import trio
from grpclib.const import Status

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.header_forwarding import GRPC_ERROR_KEY, HeaderForwarding
from ..protocol.infer_wire import decode_model_infer, encode_stream_response, peek_request_id
from ..protocol.requests import InferRequest, InferResponse
from .grpc_stream import GrpcStream
from .grpc_tracing import release, sample_call
from .inference import submit
from .log_control import GONE, ID_CHARS_MAX, about
from .region_access import RegionAccess, require
from .reply import Reply
from .router import Router
from .tracing import Tracing

STREAM_REQUESTS_MAX = 1024
"""Most requests of one ModelStreamInfer stream in flight; then the stream is not read further,
which is flow control's own back-pressure. More than any model's queue needs to stay full."""


class _InFlight:
    """One request of a stream between intake and its last response.

    Attributes:
      request_id: The client's id for it.
      size_bytes: Its message, held until it is answered.
      empty_final: Whether the client wants an empty final response.
      reply: Where its responses come, or None if it was refused.
      error: Why it was refused, or has failed.
      arrived_s: When it came, if it still has a line of the log to get.
      answered: Whether its last response was sent.
    """

    __slots__ = (
        "answered",
        "arrived_s",
        "empty_final",
        "error",
        "reply",
        "request_id",
        "size_bytes",
    )

    def __init__(self, request_id: str, size_bytes: int) -> None:
        self.request_id = request_id
        self.size_bytes = size_bytes
        self.empty_final = False
        self.reply: Reply | None = None
        self.error: RequestError | None = None
        self.arrived_s: float | None = None
        self.answered = False


@final
class InferStream:
    """One ModelStreamInfer call: takes requests at once, answers each kind in its order.

    Responses of ordinary models are written in request order, those of decoupled models as they
    come. Errors are messages of the stream and do not end it, unless the client asked for gRPC
    errors.
    """

    def __init__(
        self,
        stream: GrpcStream,
        router: Router,
        tracing: Tracing,
        regions: RegionAccess | None,
        forwarding: HeaderForwarding | None,
    ) -> None:
        self._stream = stream
        self._router = router
        self._tracing = tracing
        self._regions = regions
        self._forwarding = forwarding
        self._ordered: deque[_InFlight] = deque()
        self._ordered_arrived = trio.Event()
        self._free = trio.CapacityLimiter(STREAM_REQUESTS_MAX)
        self._taken_all = False
        self._grpc_errors = stream.metadata.get(GRPC_ERROR_KEY, [""])[0] == "true"
        self._scope: trio.CancelScope | None = None
        self._fatal: RequestError | None = None

    async def serve(self) -> None:
        """Serve until the client has half-closed and every request is answered.

        Raises:
          RequestError: a message is malformed, or the first failure if the client asked for
            gRPC errors; what else is in flight is cancelled.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._answer_ordered)
                await self._take_all(nursery)
                self._taken_all = True
                self._ordered_arrived.set()
        finally:
            for entry in self._ordered:
                self._log(entry)
                if entry.reply is not None:
                    entry.reply.close()
                    release(entry.reply.request)
        if self._fatal is not None:
            raise self._fatal

    def _end_with(self, error: RequestError) -> None:
        assert self._scope is not None
        self._fatal = error
        self._scope.cancel()

    def _log(self, entry: _InFlight) -> None:
        """Write the line of a request that is over, if it is to have one."""
        if entry.arrived_s is None:
            return
        status, reason = Status.CANCELLED, GONE
        if entry.error is not None:
            status, reason = entry.error.code.grpc_status, entry.error.message
        elif entry.answered:
            status, reason = Status.OK, ""
        extra = {"request_id": entry.request_id[:ID_CHARS_MAX]}
        if entry.reply is not None:
            extra = about(entry.reply.request)
        call = f"gRPC {self._stream.path}: request"
        self._stream.log.answered(call, status.name, entry.arrived_s, extra, reason=reason)
        entry.arrived_s = None

    async def _take_all(self, nursery: trio.Nursery) -> None:
        while True:
            waited_s = trio.current_time()
            data = await self._stream.recv_bytes()
            if data is None:
                return
            entry = _InFlight("", len(data))
            if self._stream.log.enabled:
                entry.arrived_s = trio.current_time()
            await self._free.acquire_on_behalf_of(entry)
            decoupled = False
            request: InferRequest | None = None
            try:
                request = decode_model_infer(data)
                entry.request_id = request.id
                entry.empty_final = request.empty_final_response
                if self._forwarding is not None:
                    request.parameters |= self._forwarding.grpc_parameters(self._stream.metadata)
                version = self._router.table.find(request.model_name, request.model_version)
                decoupled = version.spec.decoupled
                now_s = trio.current_time()
                if self._tracing.active:
                    sample_call(self._tracing, request, self._stream.metadata, waited_s)
                if request.shared_memory is None:
                    entry.reply = submit(version, request, now_s)
                else:
                    entry.reply = await require(self._regions).submit(version, request, now_s)
                entry.reply.expires_s = self._stream.deadline_s
            except RequestError as error:
                if error.code is ErrorCode.INTERNAL:
                    self._end_with(error)  # not a ModelInferRequest at all
                    return
                entry.request_id = entry.request_id or peek_request_id(data)
                entry.error = error
                if request is not None:
                    release(request)
            if decoupled and entry.reply is not None:
                nursery.start_soon(self._answer, entry)
            else:
                self._ordered.append(entry)
                self._ordered_arrived.set()

    async def _answer_ordered(self) -> None:
        while True:
            while self._ordered:
                await self._answer(self._ordered[0])
                self._ordered.popleft()
            if self._taken_all:
                return
            self._ordered_arrived = trio.Event()
            await self._ordered_arrived.wait()

    async def _sent(self, response: InferResponse, entry: _InFlight, request: InferRequest) -> bool:
        """Write one response; False if it cannot be written, which ends its request alone."""
        trace = request.trace
        try:
            if request.shared_memory is not None:
                await require(self._regions).write(request, response)
            buffers = encode_stream_response(response, request)
            if trace is not None:
                trace.stamp("GRPC_SEND_START", perf_counter_ns())
            await self._stream.send_buffers(buffers)
            if trace is not None:
                trace.stamp("GRPC_SEND_END", perf_counter_ns())
        except RequestError as error:
            entry.error = error
            if self._grpc_errors:
                raise
            version = request.model_version
            failed = InferResponse(response.model_name, version, request.id, error=error)
            await self._stream.send_buffers(encode_stream_response(failed, request))
            return False
        return True

    async def _answer(self, entry: _InFlight) -> None:
        """Write every response of one request."""
        reply, stream = entry.reply, self._stream
        try:
            if reply is None:
                assert entry.error is not None
                refused = InferResponse("", "", entry.request_id, error=entry.error)
                await stream.send_buffers(encode_stream_response(refused, enqueued=False))
                return
            while True:
                response = await reply.receive()
                entry.error = response.error or entry.error
                if response.error is not None and self._grpc_errors:
                    self._end_with(response.error)
                elif not response.empty or entry.empty_final:
                    if response.empty or response.error is not None:
                        response.model_version = reply.request.model_version  # as it was asked for
                    if not await self._sent(response, entry, reply.request):
                        return
                if response.final:
                    entry.answered = True
                    return
        except RequestError as error:
            self._end_with(error)
        finally:
            self._log(entry)
            if reply is not None:
                reply.close()
                release(reply.request)
            stream.release(entry.size_bytes)
            self._free.release_on_behalf_of(entry)
