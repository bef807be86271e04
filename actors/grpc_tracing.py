"""Traces over gRPC: the RPC TraceSetting, and what the inference methods do for a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import final

import trio
from grpclib.const import Cardinality, Handler

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.pb import inference as pb
from ..protocol.requests import InferRequest
from ..protocol.trace import GRPC
from ..protocol.trace_context import parse_trace_context
from .grpc_stream import GrpcStream
from .http_tracing import check_model
from .inference import submit
from .reply import Reply
from .router import Router
from .routing_table import ModelVersion
from .tracing import Tracing

PATH = "/inference.GRPCInferenceService/TraceSetting"


@final
class TraceSettingMethod:
    """Answers TraceSetting."""

    def __init__(self, *, router: Router, tracing: Tracing) -> None:
        self._router = router
        self._tracing = tracing

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler."""
        return {
            PATH: Handler(
                self._serve,
                Cardinality.UNARY_UNARY,
                pb.TraceSettingRequest,
                pb.TraceSettingResponse,
            )
        }

    async def _serve(self, stream: GrpcStream) -> None:
        request: pb.TraceSettingRequest | None = await stream.recv_message()
        if request is None:
            raise RequestError(ErrorCode.INTERNAL, "expected one request message, got none")
        model = request.model_name
        check_model(self._router, model)
        update = {name: setting.value or None for name, setting in request.settings.items()}
        self._tracing.update(model, update)
        settings = {
            name: pb.TraceSettingResponseSettingValue(value=values)
            for name, values in self._tracing.texts(model).items()
        }
        await stream.send_message(pb.TraceSettingResponse(settings=settings))


def sample_call(
    tracing: Tracing,
    request: InferRequest,
    metadata: Mapping[str, Sequence[str | bytes]],
    waited_s: float,
) -> None:
    """Trace an inference, if it is sampled.

    Args:
      tracing: What samples.
      request: The inference.
      metadata: Of its call.
      waited_s: Since when its message was waited for, in clock seconds.
    """
    waited_ns = int((trio.current_time() - waited_s) * 1e9)
    caller = parse_trace_context(_text(metadata, "traceparent"), _text(metadata, "tracestate"))
    tracing.sample(request, GRPC, perf_counter_ns() - waited_ns, caller)


def submit_call(version: ModelVersion, request: InferRequest, arrived_s: float) -> Reply:
    """Do as `submit`; of a request that it refuses the trace has no more to come."""
    if request.trace is None:
        return submit(version, request, arrived_s)
    try:
        return submit(version, request, arrived_s)
    except BaseException:
        release(request)
        raise


def release(request: InferRequest) -> None:
    """Add nothing more to a request's trace, if it has one."""
    if request.trace is not None:
        request.trace.release()


def _text(metadata: Mapping[str, Sequence[str | bytes]], key: str) -> str:
    values = metadata.get(key)
    return values[0] if values and isinstance(values[0], str) else ""
