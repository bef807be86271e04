"""Clients for the HTTP/2 tests: the h2 library as the oracle, and frames by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived as DataArrived
from h2.settings import SettingCodes, Settings
from hpack import Encoder
from hyperframe.frame import Frame

from tritrio.protocol.http2_events import (
    DataReceived,
    Http2Limits,
    RequestReceived,
)
from tritrio.protocol.http2_frames import encode_fields
from tritrio.protocol.http2_session import Http2Session

OK_HEADERS = encode_fields([(":status", "200"), ("content-type", "text/plain")])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GRPC_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "localhost:8001"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-test"),
]


class Session(Protocol):
    def receive_data(self, data: bytes) -> Sequence[Any]: ...

    def take_output(self) -> list[bytes | bytearray | memoryview]: ...


def raw_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags))
    return head + stream_id.to_bytes(4, "big") + payload


def request_block(headers: Sequence[tuple[str, str]] = GRPC_HEADERS) -> bytes:
    """Return a header block that leaves the server's dynamic table empty."""
    return Encoder().encode([(name, value, True) for name, value in headers], huffman=False)


def request_frame(
    stream_id: int,
    headers: Sequence[tuple[str, str]] = GRPC_HEADERS,
    *,
    end_stream: bool = False,
) -> bytes:
    return raw_frame(1, 4 | end_stream, stream_id, request_block(headers))


def greeting(*settings: tuple[int, int]) -> bytes:
    payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings)
    return PREFACE + raw_frame(4, 0, 0, payload)


def message(payload: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(payload).to_bytes(4, "big") + payload


def output(session: Session) -> bytes:
    return b"".join(session.take_output())


def parse_frames(octets: bytes) -> list[Any]:
    frames = []
    while octets:
        frame, length = Frame.parse_frame_header(memoryview(octets[:9]))
        frame.parse_body(memoryview(octets[9 : 9 + length]))
        frames.append(frame)
        octets = octets[9 + length :]
    return frames


class Oracle:
    """An h2 client joined to a session under test.

    Attributes:
      h2: The library's connection.
      seen: Events of the library, in order, over all exchanges.
    """

    def __init__(self, session: Session, settings: dict[SettingCodes, int] | None = None) -> None:
        self.session = session
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        if settings:
            self.h2.local_settings = Settings(client=True, initial_values=settings)
        self.h2.initiate_connection()
        self.seen: list[Any] = []

    def exchange(self) -> list[Any]:
        """Carry bytes both ways until both are silent, and return the session's events."""
        events: list[Any] = []
        while True:
            sent = self.h2.data_to_send()
            received = output(self.session)
            if not sent and not received:
                return events
            if sent:
                events += self.session.receive_data(sent)
            if received:
                self.seen += self.h2.receive_data(received)

    def request(
        self,
        data: bytes | None = None,
        headers: Sequence[tuple[str, str]] = GRPC_HEADERS,
        *,
        end_stream: bool = True,
    ) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, headers, end_stream=end_stream and data is None)
        if data is not None:
            self.h2.send_data(stream_id, data, end_stream=end_stream)
        return stream_id

    def of(self, kind: type, stream_id: int | None = None) -> list[Any]:
        return [
            event
            for event in self.seen
            if isinstance(event, kind)
            and (stream_id is None or getattr(event, "stream_id", None) == stream_id)
        ]

    def data(self, stream_id: int) -> bytes:
        return b"".join(event.data for event in self.of(DataArrived, stream_id))

    def headers(self, kind: type, stream_id: int) -> dict[str, str]:
        (event,) = self.of(kind, stream_id)
        return dict(event.headers)


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in values)


def session(**limits: int) -> Http2Session:
    return Http2Session(Http2Limits(**limits))


def greeted(**limits: int) -> Http2Session:
    """A session that has seen a client's preface and whose first output is written."""
    made = session(**limits)
    assert made.receive_data(greeting()) == []
    made.take_output()
    return made


def feed(under_test: Http2Session, octets: bytes) -> list[Any]:
    return list(under_test.receive_data(octets))


def plain(events: list[Any]) -> list[Any]:
    """Events as tuples that can be compared, with neighbouring payload joined."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, RequestReceived):
            found.append(("request", event.stream_id, event.block.fields, event.end_stream))
        elif isinstance(event, DataReceived):
            data = bytes(event.data)
            if found and found[-1][0] == "data" and found[-1][1] == event.stream_id:
                data = found.pop()[2] + data
            found.append(("data", event.stream_id, data, event.end_stream))
        else:
            found.append((type(event).__name__, event))
    return found


def resets(octets: bytes) -> list[tuple[int, int]]:
    frames = [frame for frame in parse_frames(octets) if frame.type == 3]
    return [(frame.stream_id, frame.error_code) for frame in frames]


def goaways(octets: bytes) -> list[tuple[int, int]]:
    frames = [frame for frame in parse_frames(octets) if frame.type == 7]
    return [(frame.last_stream_id, frame.error_code) for frame in frames]
