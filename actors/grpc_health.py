"""The `grpc.health.v1.Health` service: `Check` says whether the server is ready."""

from __future__ import annotations

from typing import final

from grpclib.const import Cardinality, Handler

from ..protocol.pb.grpc.health.v1 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthCheckResponseServingStatus,
)
from .grpc_stream import GrpcStream
from .router import Router


@final
class HealthService:
    """Answers `Check`; the `service` asked for is ignored, as Triton does."""

    def __init__(self, *, router: Router) -> None:
        self._router = router

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler."""
        return {
            "/grpc.health.v1.Health/Check": Handler(
                self._check, Cardinality.UNARY_UNARY, HealthCheckRequest, HealthCheckResponse
            )
        }

    async def _check(self, stream: GrpcStream) -> None:
        await stream.recv_message()
        status = HealthCheckResponseServingStatus
        ready = self._router.ready()
        await stream.send_message(
            HealthCheckResponse(status=status.SERVING if ready else status.NOT_SERVING)
        )
