"""Helpers of the gRPC session tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h2.events import (
    ResponseReceived,
    TrailersReceived,
)
from h2.settings import SettingCodes

from tritrio.protocol.grpc_session import (
    CallStarted,
    GrpcLimits,
    GrpcSession,
    HalfClosed,
    MessageReceived,
)
from tritrio.protocol.http2_events import Http2Limits

from .http2_support import (
    GRPC_HEADERS,
    Oracle,
    greeting,
)

PATH = "/inference.GRPCInferenceService/ModelInfer"
GZIP = [*GRPC_HEADERS, ("grpc-encoding", "gzip"), ("grpc-accept-encoding", "identity, gzip")]


def session(**limits: int) -> GrpcSession:
    message_bytes_max = limits.pop("message_bytes_max", 2**31 - 1)
    return GrpcSession(GrpcLimits(message_bytes_max, Http2Limits(**limits)))


def greeted(**limits: int) -> GrpcSession:
    made = session(**limits)
    assert made.receive_data(greeting((4, 1 << 30))) == []
    made.take_output()
    return made


def changed(**fields: str | None) -> list[tuple[str, str]]:
    """The usual headers with some replaced, added or (None) left out."""
    new = {name.replace("_", "-"): value for name, value in fields.items()}
    headers = [(name, new.pop(name.lstrip(":"), value)) for name, value in GRPC_HEADERS]
    return [(n, v) for n, v in [*headers, *new.items()] if v is not None]


def plain(events: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for event in events:
        if isinstance(event, CallStarted):
            found.append(("call", event.stream_id, event.path))
        elif isinstance(event, MessageReceived):
            found.append(("message", event.stream_id, bytes(event.data)))
            if event.ends:  # the same as the event of its own that comes if the end comes later
                found.append(HalfClosed(event.stream_id))
        else:
            found.append(event)
    return found


def start(
    under_test: GrpcSession,
    data: bytes | None = None,
    headers: Sequence[tuple[str, str]] = GRPC_HEADERS,
    *,
    end_stream: bool = False,
    settings: dict[SettingCodes, int] | None = None,
) -> tuple[Oracle, int, list[Any]]:
    client = Oracle(under_test, settings)
    stream_id = client.request(data, headers, end_stream=end_stream)
    return client, stream_id, client.exchange()


def outcome(client: Oracle, stream_id: int) -> tuple[int, str | None]:
    """The status and message the client sees, from trailers or from trailers alone."""
    events = client.of(TrailersReceived, stream_id) or client.of(ResponseReceived, stream_id)
    fields = dict(events[-1].headers)
    return int(fields["grpc-status"]), fields.get("grpc-message")
