"""Traces as spans of OpenTelemetry, sent by OTLP over HTTP.

A request is a span with the name of its model, its computing a span below that. Around a client's
request is one more, `InferRequest`, with what the frontend did.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final, final

import trio
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from ..protocol.trace import COMPUTE, GRPC, HTTP, Stamp, Trace
from ..protocol.trace_config import TraceConfig
from ..protocol.trace_context import TraceContext
from ..protocol.trace_settings import TraceSetting

EXPORT_S: Final = 5.0
"""How long one batch of spans may take to be sent, repeated tries included, in seconds; it is lost
then. Spans are not worth more memory or a longer stop."""

STOP_S: Final = 3.0
"""How long the end of the server waits for the last spans, in seconds."""

_SCOPE: Final = "tritrio"
_FRONTEND: Final = frozenset({*HTTP, *GRPC, "INFER_RESPONSE_COMPLETE"})
_COMPUTE: Final = frozenset(COMPUTE)

_log = logging.getLogger("tritrio.tracing")


class _GivenIds(IdGenerator):
    """Names spans as they were announced, which was before they were made.

    Attributes:
      context: The next span.
    """

    context = TraceContext("", "")

    def generate_span_id(self) -> int:
        return int(self.context.span_id, 16)

    def generate_trace_id(self) -> int:
        return int(self.context.trace_id, 16)


@final
class TraceSpans:
    """Takes traces and exports them.

    The threads of the exporter take what is queued; a collector that does not answer costs spans,
    and never a request.

    Args:
      config: Where they go, and in which batches.
    """

    def __init__(self, config: TraceConfig) -> None:
        self._config = config
        self._ids = _GivenIds()
        self._tracer: Tracer | None = None
        self._stopping = trio.Event()
        self._stopped = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Export until `stop`, or cancelled; then send what is left, within `STOP_S`."""
        config = self._config
        url = config.url if "://" in config.url else f"http://{config.url}"
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_S)
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(dict(config.resource)),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=config.bsp_max_queue_size,
                schedule_delay_millis=config.bsp_schedule_delay_ms,
                max_export_batch_size=config.bsp_max_export_batch_size,
            )
        )
        self._tracer = provider.get_tracer(_SCOPE)
        task_status.started()
        try:
            await self._stopping.wait()
        finally:
            with trio.CancelScope(deadline=trio.current_time() + STOP_S, shield=True) as scope:
                shut_down: Callable[[], None] = provider.shutdown
                await trio.to_thread.run_sync(shut_down, abandon_on_cancel=True)
            if scope.cancelled_caught:
                exporter.shutdown()  # type: ignore[no-untyped-call] # no more tries: the thread that exports ends with this one
                _log.error("the last spans could not be sent within %g s", STOP_S)
            self._stopped.set()

    async def stop(self) -> None:
        """Send what is left, within `STOP_S`."""
        self._stopping.set()
        await self._stopped.wait()

    def new_context(self, caller: TraceContext | None) -> TraceContext:
        """Return a new span, of its caller's trace if there is one."""
        span_id = secrets.token_hex(8)
        if caller is None:
            return TraceContext(secrets.token_hex(16), span_id)
        return caller._replace(span_id=span_id)

    def begun(self, setting: TraceSetting) -> None:
        """Take no note: each trace is exported by itself."""

    def replaced(self, settings: Iterable[TraceSetting]) -> None:
        """Take no note, likewise."""

    def ended(self, trace: Trace) -> None:
        """Make the spans of a trace that has ended, and queue them."""
        began, own = trace.began, trace.context
        assert began is not None
        assert own is not None
        wall_ns = time.time_ns() - time.perf_counter_ns()
        stamps = [
            Stamp(event.name, event.ns + wall_ns)
            for event in trace.events
            if isinstance(event, Stamp)
        ]
        compute = [stamp for stamp in stamps if stamp.name in _COMPUTE]
        frontend = [stamp for stamp in stamps if stamp.name in _FRONTEND]
        others = [stamp for stamp in stamps if stamp.name not in _COMPUTE | _FRONTEND]
        attributes: dict[str, AttributeValue] = {
            "triton.model_name": began.model_name,
            "triton.model_version": int(began.model_version),
            "triton.trace_id": trace.number,
            "triton.trace_parent_id": 0 if trace.parent is None else trace.parent.number,
        }
        if began.request_id:
            attributes["triton.request_id"] = began.request_id
        if compute:
            self._export("compute", self.new_context(own), own, compute)
        parent = trace.caller if trace.root is None else trace.root
        self._export(
            began.model_name, own, parent, others, attributes=attributes, error=trace.error
        )
        if trace.root is not None:
            around = sorted([*frontend, others[0], others[-1]], key=lambda stamp: stamp.ns)
            self._export(
                "InferRequest",
                trace.root,
                trace.caller,
                frontend,
                error=trace.error,
                start_ns=around[0].ns,
                end_ns=around[-1].ns,
            )

    def _export(
        self,
        name: str,
        own: TraceContext,
        parent: TraceContext | None,
        stamps: list[Stamp],
        *,
        attributes: dict[str, AttributeValue] | None = None,
        error: str = "",
        start_ns: int = 0,
        end_ns: int = 0,
    ) -> None:
        self._ids.context = own
        assert self._tracer is not None
        span = self._tracer.start_span(
            name,
            context=Context() if parent is None else span_context(parent),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=start_ns or stamps[0].ns,
        )
        for stamp in stamps:
            span.add_event(stamp.name, timestamp=stamp.ns)
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_ns or stamps[-1].ns)


def span_context(parent: TraceContext) -> Context:
    """Return a context in which a span that others have is the current one."""
    span = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=TraceState.from_header([parent.state]) if parent.state else None,
    )
    return set_span_in_context(NonRecordingSpan(span), Context())
