"""The GRPCInferenceService: grpclib handlers over the router.

Every method is an ordinary grpclib handler (an async function of a stream); `mapping` is what a
grpclib service's `__mapping__` gives. Semantics: the KServe v2 gRPC protocol as served by Triton.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, final

import trio
from grpclib.const import Cardinality, Handler

from ..protocol import grpc_codec
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.grpc_headers import CallHead
from ..protocol.header_forwarding import GRPC_ERROR_KEY, HeaderForwarding
from ..protocol.infer_wire import (
    decode_model_infer,
    encode_model_infer_response,
    encode_stream_response,
    peek_request_id,
)
from ..protocol.pb import inference as pb
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Buffer
from .grpc_stream import GrpcStream
from .inference import refuse_decoupled, submit
from .model_control import ModelControl
from .region_access import RegionAccess, require
from .reply import Reply
from .router import Router
from .routing_table import ModelVersion
from .server_info import ServerInfo

STREAM_REQUESTS_MAX = 1024
"""Most requests of one ModelStreamInfer stream in flight; then the stream is not read further,
which is flow control's own back-pressure. More than any model's queue needs to stay full."""

SERVICE = "inference.GRPCInferenceService"
"""The service of the inference protocol and its extensions."""

UnaryMethod: TypeAlias = Callable[[Any], Awaitable[Any]]


@final
class ModelInfer:
    """The ModelInfer method, mostly without a task of its own: see `grpc_direct.DirectMethod`.

    Args:
      router: Where models are found.
      regions: Where tensors in shared memory are; None for a server without.
    """

    path = f"/{SERVICE}/ModelInfer"

    def __init__(
        self,
        router: Router,
        regions: RegionAccess | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._router = router
        self._regions = regions
        self._forwarding = forwarding

    def start(
        self, message: Buffer, arrived_s: float, head: CallHead
    ) -> Reply | Awaitable[list[Buffer]]:
        """Submit the request in a message.

        Raises:
          RequestError: it was refused.
        """
        request = decode_model_infer(message)
        if self._forwarding is not None:
            request.parameters |= self._forwarding.grpc_parameters(head.metadata)
        version = self._router.table.find(request.model_name, request.model_version)
        refuse_decoupled(version, "ModelInfer")
        if request.shared_memory is not None:
            return self._infer_in_regions(version, request, arrived_s)
        return submit(version, request, arrived_s)

    async def _infer_in_regions(
        self, version: ModelVersion, request: InferRequest, arrived_s: float
    ) -> list[Buffer]:
        return _message(await require(self._regions).infer(version, request, arrived_s), request)

    def finish(self, reply: Reply) -> list[Buffer]:
        """Return the response message, once the reply has its response.

        Raises:
          RequestError: the request failed.
        """
        return _message(reply.receive_nowait(), reply.request)

    async def serve(self, stream: GrpcStream) -> None:
        """Answer a call in a task of its own, for answers whose compression takes a while."""
        data = await stream.recv_bytes()
        if data is None:
            raise RequestError(ErrorCode.INTERNAL, "expected one request message, got none")
        reply = self.start(data, stream.arrived_s, stream.head)
        if not isinstance(reply, Reply):
            await stream.send_buffers(await reply)
            return
        try:
            await stream.send_buffers(_message(await reply.receive(), reply.request))
        finally:
            reply.close()


def _message(response: InferResponse, request: InferRequest) -> list[Buffer]:
    if response.error is not None:
        raise response.error
    return encode_model_infer_response(response, request)


@final
class InferenceService:
    """Answers the service's methods; holds no state of its own."""

    def __init__(
        self,
        *,
        router: Router,
        control: ModelControl,
        info: ServerInfo,
        regions: RegionAccess | None = None,
        forwarding: HeaderForwarding | None = None,
        compression_level: int = 0,
    ) -> None:
        self._router = router
        self._control = control
        self._forwarding = forwarding
        self._compression_level = compression_level
        self._info = info
        self._regions = regions

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler; for ModelInfer only where answers are compressed."""
        handlers = {
            f"/{SERVICE}/ModelStreamInfer": Handler(
                self._model_stream_infer,
                Cardinality.STREAM_STREAM,
                pb.ModelInferRequest,
                pb.ModelStreamInferResponse,
            ),
        }
        if self._compression_level:
            handlers[ModelInfer.path] = Handler(
                self._model_infer,
                Cardinality.UNARY_UNARY,
                pb.ModelInferRequest,
                pb.ModelInferResponse,
            )
        for name, method, request_type, reply_type in self._unary_methods():
            handlers[f"/{SERVICE}/{name}"] = Handler(
                unary(method), Cardinality.UNARY_UNARY, request_type, reply_type
            )
        return handlers

    def _unary_methods(self) -> list[tuple[str, UnaryMethod, type[Any], type[Any]]]:
        return [
            ("ServerLive", self._server_live, pb.ServerLiveRequest, pb.ServerLiveResponse),
            ("ServerReady", self._server_ready, pb.ServerReadyRequest, pb.ServerReadyResponse),
            ("ModelReady", self._model_ready, pb.ModelReadyRequest, pb.ModelReadyResponse),
            (
                "ServerMetadata",
                self._server_metadata,
                pb.ServerMetadataRequest,
                pb.ServerMetadataResponse,
            ),
            (
                "ModelMetadata",
                self._model_metadata,
                pb.ModelMetadataRequest,
                pb.ModelMetadataResponse,
            ),
            ("ModelConfig", self._model_config, pb.ModelConfigRequest, pb.ModelConfigResponse),
            (
                "ModelStatistics",
                self._model_statistics,
                pb.ModelStatisticsRequest,
                pb.ModelStatisticsResponse,
            ),
            (
                "RepositoryIndex",
                self._repository_index,
                pb.RepositoryIndexRequest,
                pb.RepositoryIndexResponse,
            ),
            (
                "RepositoryModelLoad",
                self._repository_model_load,
                pb.RepositoryModelLoadRequest,
                pb.RepositoryModelLoadResponse,
            ),
            (
                "RepositoryModelUnload",
                self._repository_model_unload,
                pb.RepositoryModelUnloadRequest,
                pb.RepositoryModelUnloadResponse,
            ),
        ]

    # Inference.

    async def _model_infer(self, stream: GrpcStream) -> None:
        stream.compression_level = self._compression_level
        await ModelInfer(self._router, self._regions, self._forwarding).serve(stream)

    async def _model_stream_infer(self, stream: GrpcStream) -> None:
        stream.compression_level = self._compression_level
        await _InferStream(stream, self._router, self._regions, self._forwarding).serve()

    # Health, metadata and the rest.

    async def _server_live(self, _: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._router.live())

    async def _server_ready(self, _: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._router.ready())

    async def _model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        try:
            version = self._router.table.find(request.name, request.version)
        except RequestError as error:
            if error.code is ErrorCode.INVALID_ARG:
                raise  # that is no version
            return pb.ModelReadyResponse(ready=False)
        check = version.check_ready
        return pb.ModelReadyResponse(ready=check is None or await check())

    async def _server_metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        info = self._info
        return pb.ServerMetadataResponse(
            name=info.name, version=info.version, extensions=list(info.extensions)
        )

    async def _model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        table = self._router.table
        version = table.find(request.name, request.version)
        versions = [request.version] if request.version else table.versions_ready(request.name)
        return grpc_codec.model_metadata_message(version.spec, versions)

    async def _model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        version = self._router.table.find(request.name, request.version)
        return pb.ModelConfigResponse(config=version.config)

    async def _model_statistics(
        self, request: pb.ModelStatisticsRequest
    ) -> pb.ModelStatisticsResponse:
        entries = self._router.table.statistics_of(request.name, request.version)
        return grpc_codec.statistics_message(entries)

    async def _repository_index(
        self, request: pb.RepositoryIndexRequest
    ) -> pb.RepositoryIndexResponse:
        if request.repository_name:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                "choosing a repository by name is not supported; leave repository_name empty",
            )
        return grpc_codec.repository_index_message(
            self._router.table.index(ready_only=request.ready)
        )

    async def _repository_model_load(
        self, request: pb.RepositoryModelLoadRequest
    ) -> pb.RepositoryModelLoadResponse:
        await self._control.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def _repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        await self._control.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()


def unary(method: UnaryMethod) -> Callable[[GrpcStream], Awaitable[None]]:
    """Return the grpclib handler function of a method with one request and one reply."""

    async def handle(stream: GrpcStream) -> None:
        message = await stream.recv_message()
        if message is None:
            raise RequestError(ErrorCode.INTERNAL, "expected one request message, got none")
        await stream.send_message(await method(message))

    return handle


class _InFlight:
    """One request of a stream between intake and its last response.

    Attributes:
      request_id: The client's id for it.
      size_bytes: Its message, held until it is answered.
      empty_final: Whether the client wants an empty final response.
      reply: Where its responses come, or None if it was refused.
      error: Why it was refused.
    """

    __slots__ = ("empty_final", "error", "reply", "request_id", "size_bytes")

    def __init__(self, request_id: str, size_bytes: int) -> None:
        self.request_id = request_id
        self.size_bytes = size_bytes
        self.empty_final = False
        self.reply: Reply | None = None
        self.error: RequestError | None = None


@final
class _InferStream:
    """One ModelStreamInfer call: takes requests at once, answers each kind in its order.

    Responses of ordinary models are written in request order, those of decoupled models as they
    come. Errors are messages of the stream and do not end it, unless the client asked for gRPC
    errors.
    """

    def __init__(
        self,
        stream: GrpcStream,
        router: Router,
        regions: RegionAccess | None,
        forwarding: HeaderForwarding | None,
    ) -> None:
        self._stream = stream
        self._router = router
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
                if entry.reply is not None:
                    entry.reply.close()
        if self._fatal is not None:
            raise self._fatal

    def _end_with(self, error: RequestError) -> None:
        assert self._scope is not None
        self._fatal = error
        self._scope.cancel()

    async def _take_all(self, nursery: trio.Nursery) -> None:
        while True:
            data = await self._stream.recv_bytes()
            if data is None:
                return
            entry = _InFlight("", len(data))
            await self._free.acquire_on_behalf_of(entry)
            decoupled = False
            try:
                request = decode_model_infer(data)
                entry.request_id = request.id
                entry.empty_final = request.empty_final_response
                if self._forwarding is not None:
                    request.parameters |= self._forwarding.grpc_parameters(self._stream.metadata)
                version = self._router.table.find(request.model_name, request.model_version)
                decoupled = version.spec.decoupled
                now_s = trio.current_time()
                if request.shared_memory is None:
                    entry.reply = submit(version, request, now_s)
                else:
                    entry.reply = await require(self._regions).submit(version, request, now_s)
            except RequestError as error:
                if error.code is ErrorCode.INTERNAL:
                    self._end_with(error)  # not a ModelInferRequest at all
                    return
                entry.request_id = entry.request_id or peek_request_id(data)
                entry.error = error
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

    async def _sent(self, response: InferResponse, request: InferRequest) -> bool:
        """Write one response; False if it cannot be written, which ends its request alone."""
        try:
            if request.shared_memory is not None:
                await require(self._regions).write(request, response)
            await self._stream.send_buffers(encode_stream_response(response, request))
        except RequestError as error:
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
                if response.error is not None and self._grpc_errors:
                    self._end_with(response.error)
                elif not response.empty or entry.empty_final:
                    if response.empty or response.error is not None:
                        response.model_version = reply.request.model_version  # as it was asked for
                    if not await self._sent(response, reply.request):
                        return
                if response.final:
                    return
        except RequestError as error:
            self._end_with(error)
        finally:
            if reply is not None:
                reply.close()
            stream.release(entry.size_bytes)
            self._free.release_on_behalf_of(entry)
