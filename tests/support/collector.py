"""A collector of spans: a small HTTP server that takes what OTLP exporters send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SPANS_LIMIT_S = 20.0


@dataclass(frozen=True)
class Span:
    """One span.

    Attributes:
      trace_id: In hexadecimal digits, like the ids of the span and of its parent ("" for none).
      events: Names, in order.
      error: Its status message; "" if all is well.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    attributes: dict[str, Any]
    events: tuple[str, ...]
    error: str
    start_ns: int
    end_ns: int


@dataclass
class Collector:
    """What has come so far.

    Attributes:
      resource: The attributes of the server that sent spans.
    """

    server: ThreadingHTTPServer
    resource: dict[str, Any] = field(default_factory=dict)
    _spans: list[Span] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.server.server_port}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            for group in request.resource_spans:
                self.resource |= _attributes(group.resource.attributes)
                self._spans += [_span(each) for scope in group.scope_spans for each in scope.spans]
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[Span]:
        """Wait for so many spans, and forget them."""
        with self._changed:
            come = self._changed.wait_for(lambda: len(self._spans) >= count, SPANS_LIMIT_S)
            spans, self._spans = self._spans, []
        assert come, [span.name for span in spans]
        return spans


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})  # noqa: TID251
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def _span(message: Any) -> Span:
    return Span(
        name=message.name,
        trace_id=message.trace_id.hex(),
        span_id=message.span_id.hex(),
        parent_id=message.parent_span_id.hex(),
        state=message.trace_state,
        attributes=_attributes(message.attributes),
        events=tuple(event.name for event in message.events),
        error=message.status.message,
        start_ns=message.start_time_unix_nano,
        end_ns=message.end_time_unix_nano,
    )


def _attributes(messages: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in messages}
