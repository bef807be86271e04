"""The GRPCInferenceService: grpclib handlers over the router.

Every method is an ordinary grpclib handler (an async function of a stream); `mapping` is what a
grpclib service's `__mapping__` gives. Semantics: the KServe v2 gRPC protocol as served by Triton.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import final

from grpclib.const import Cardinality, Handler

from ..protocol import grpc_codec
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.grpc_headers import CallHead
from ..protocol.header_forwarding import HeaderForwarding
from ..protocol.infer_wire import decode_model_infer, encode_model_infer_response
from ..protocol.pb import inference as pb
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Buffer
from .grpc_infer_stream import InferStream
from .grpc_stream import GrpcStream
from .grpc_tracing import release, sample_call, submit_call
from .grpc_unary import SERVICE, unary_handlers
from .inference import refuse_decoupled
from .region_access import RegionAccess, require
from .reply import Reply
from .router import Router
from .routing_table import ModelVersion
from .server_info import ServerInfo
from .tracing import Tracing


@final
class ModelInfer:
    """The ModelInfer method, mostly without a task of its own: see `grpc_direct.DirectMethod`.

    Args:
      router: Where models are found.
      tracing: Samples inferences.
      regions: Where tensors in shared memory are; None for a server without.
    """

    path = f"/{SERVICE}/ModelInfer"

    def __init__(
        self,
        router: Router,
        tracing: Tracing,
        regions: RegionAccess | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._router = router
        self._tracing = tracing
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
        if self._tracing.active:
            sample_call(self._tracing, request, head.metadata, arrived_s)
        if request.shared_memory is not None:
            return self._infer_in_regions(version, request, arrived_s)
        return submit_call(version, request, arrived_s)

    async def _infer_in_regions(
        self, version: ModelVersion, request: InferRequest, arrived_s: float
    ) -> list[Buffer]:
        try:
            response = await require(self._regions).infer(version, request, arrived_s)
            return _message(response, request)
        finally:
            release(request)

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
        stream.infer_message = data
        reply = self.start(data, stream.arrived_s, stream.head)
        if not isinstance(reply, Reply):
            await stream.send_buffers(await reply)
            return
        try:
            await stream.send_buffers(_message(await reply.receive(), reply.request))
        finally:
            reply.close()
            release(reply.request)


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
        info: ServerInfo,
        tracing: Tracing,
        regions: RegionAccess | None = None,
        forwarding: HeaderForwarding | None = None,
        compression_level: int = 0,
    ) -> None:
        self._router = router
        self._forwarding = forwarding
        self._compression_level = compression_level
        self._info = info
        self._tracing = tracing
        self._regions = regions

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler; for ModelInfer only where answers are compressed."""
        handlers = unary_handlers(
            {
                "ServerLive": self._server_live,
                "ServerReady": self._server_ready,
                "ModelReady": self._model_ready,
                "ServerMetadata": self._server_metadata,
                "ModelMetadata": self._model_metadata,
                "ModelConfig": self._model_config,
                "ModelStatistics": self._model_statistics,
            }
        )
        handlers[f"/{SERVICE}/ModelStreamInfer"] = Handler(
            self._model_stream_infer,
            Cardinality.STREAM_STREAM,
            pb.ModelInferRequest,
            pb.ModelStreamInferResponse,
        )
        if self._compression_level:
            handlers[ModelInfer.path] = Handler(
                self._model_infer,
                Cardinality.UNARY_UNARY,
                pb.ModelInferRequest,
                pb.ModelInferResponse,
            )
        return handlers

    # Inference.

    async def _model_infer(self, stream: GrpcStream) -> None:
        stream.compression_level = self._compression_level
        await ModelInfer(self._router, self._tracing, self._regions, self._forwarding).serve(stream)

    async def _model_stream_infer(self, stream: GrpcStream) -> None:
        stream.compression_level = self._compression_level
        await InferStream(
            stream, self._router, self._tracing, self._regions, self._forwarding
        ).serve()

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
