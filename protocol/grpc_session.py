"""The server's side of one gRPC connection: bytes in, calls and messages out, and back.

No socket, no clock: deadlines are told, not kept. Messages come whole, and decompressed unless
that is work for a thread; what a client does wrong ends its call, or the connection, without the
caller's help.
Source: the document "gRPC over HTTP2"; leniency as grpc-core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from grpclib.const import Status

from .grpc_compression import (
    IDENTITY,
    MessageError,
    choose_encoding,
)
from .grpc_events import (
    CallCancelled,
    CallEvent,
    CallStarted,
    ClientPinged,
    ConnectionClosed,
    DeflatedReceived,
    GrpcEvent,
    HalfClosed,
    MessageReceived,
    WindowOpened,
)
from .grpc_headers import OK_TRAILERS, RESPONSE_HEADERS, CallHead, Metadata, trailers
from .grpc_messages import (
    INLINE_INFLATED_BYTES_MAX,
    PREFIX_BYTES,
    DeflatedMessage,
    InlineAllowance,
    Message,
    MessageInbox,
)
from .http2_events import (
    ConnectionFailed,
    DataReceived,
    Http2Limits,
    PingReceived,
    QueueEmptied,
    RequestReceived,
    StreamReset,
)
from .http2_frames import Buffer, flood
from .http2_session import Http2Session

__all__ = [
    "MESSAGE_BYTES_MAX",
    "UNCONSUMED_MESSAGES_MAX",
    "CallCancelled",
    "CallEvent",
    "CallStarted",
    "ConnectionClosed",
    "DeflatedReceived",
    "GrpcEvent",
    "GrpcLimits",
    "GrpcSession",
    "HalfClosed",
    "MessageReceived",
    "WindowOpened",
]

MESSAGE_BYTES_MAX: Final = 2**31 - 1
"""What protobuf can parse, and Triton's limit in both directions."""
TOO_MANY_PINGS: Final = "too_many_pings"
"""What gRPC clients look for in a GOAWAY to ping less often from then on."""
UNCONSUMED_MESSAGES_MAX: Final = 200_000
"""On a connection. An empty message costs 50 times its bytes on the wire, so the window alone is no
bound; messages of 84 bytes and more fill a stream's window before this."""


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What one connection may ask of us.

    Attributes:
      message_bytes_max: Largest message taken, as it comes and decompressed.
      http2: Limits of the connection below.
    """

    message_bytes_max: int = MESSAGE_BYTES_MAX
    http2: Http2Limits = field(default_factory=Http2Limits)


class _Call:
    """One call that is neither ended by us nor cancelled.

    Attributes:
      head: What its headers say.
      inbox: What the client has sent.
      response_encoding: Coding of our messages; None before the first.
    """

    __slots__ = ("head", "inbox", "response_encoding")

    def __init__(self, head: CallHead, inbox: MessageInbox) -> None:
        self.head = head
        self.inbox = inbox
        self.response_encoding: str | None = None


class GrpcSession:
    """One server-side gRPC connection; its preface is in the output from the start.

    Calls are named by `stream_id`. What is asked for a call that is over does nothing, since the
    client may end one at any time.

    Args:
      limits: What the client may ask for.
    """

    def __init__(self, limits: GrpcLimits) -> None:
        self._message_bytes_max = limits.message_bytes_max
        self._http2 = Http2Session(limits.http2)
        self._calls: dict[int, _Call] = {}
        self._inline = InlineAllowance()
        self._buffered_bytes = 0
        self._unconsumed_messages = 0

    @property
    def is_greeted(self) -> bool:
        """Whether the client has begun as HTTP/2 has it."""
        return self._http2.is_greeted

    @property
    def has_output(self) -> bool:
        """Whether there is something to write now."""
        return self._http2.has_output

    @property
    def output_bytes(self) -> int:
        """Bytes to write now; flow control does not bound them, so heed them before sending."""
        return self._http2.output_bytes

    @property
    def active_calls(self) -> int:
        """Calls that are not over, or whose last bytes flow control still holds back."""
        return self._http2.open_streams

    @property
    def buffered_bytes(self) -> int:
        """Bytes held: incomplete and unconsumed messages, and all that is not written yet."""
        return self._buffered_bytes + self._http2.buffered_bytes

    @property
    def should_close(self) -> bool:
        """Whether to close the connection once the output is written."""
        return self._http2.should_close

    def take_output(self) -> list[Buffer]:
        """Return everything to write now, in order, and forget it; large parts are not copied."""
        return self._http2.take_output()

    def receive_data(self, data: bytes | bytearray) -> list[GrpcEvent]:
        """Take received bytes, split anywhere, and return what they mean."""
        events: list[GrpcEvent] = []
        self._inline.left_bytes = INLINE_INFLATED_BYTES_MAX
        for event in self._http2.receive_data(data):
            if isinstance(event, DataReceived):
                self._on_data(event, events)
            elif isinstance(event, RequestReceived):
                self._on_request(event, events)
            elif isinstance(event, StreamReset):
                call = self._calls.get(event.stream_id)
                if call is not None:
                    self._forget(event.stream_id, call)
                    events.append(CallCancelled(event.stream_id, event.message))
            elif isinstance(event, QueueEmptied):
                events.append(WindowOpened(event.stream_id))
            elif isinstance(event, PingReceived):
                events.append(ClientPinged(event.repeated))
            else:
                assert isinstance(event, ConnectionFailed)
                self._close(event.message, events)
        return events

    def received_eof(self) -> list[GrpcEvent]:
        """Take the end of the connection and return the calls that it cancels."""
        events: list[GrpcEvent] = []
        self._http2.received_eof()
        self._close("The client closed the connection.", events)
        return events

    def response_encoding(self, stream_id: int, level: int) -> str:
        """Return the coding that the messages of a call may be compressed with.

        Args:
          stream_id: The call.
          level: How hard they shall be compressed. The first message decides for the call: after
            an uncompressed one there is no compressed one.
        """
        call = self._calls.get(stream_id)
        if call is None:
            return IDENTITY
        return call.response_encoding or choose_encoding(call.head.accept_encoding, level)

    def send_message(
        self,
        stream_id: int,
        parts: Sequence[Buffer],
        *,
        encoding: str = IDENTITY,
        compressed: bool = False,
    ) -> None:
        """Send one message; response headers go before the first.

        Args:
          stream_id: The call.
          parts: The message in pieces, byte buffers that stay unchanged until they are written.
            They are not copied.
          encoding: What `response_encoding` said.
          compressed: Whether the parts are in this coding; they need not be.
        """
        call = self._calls.get(stream_id)
        if call is None:
            return
        if call.response_encoding is None:
            call.response_encoding = encoding
            self._http2.send_headers(stream_id, RESPONSE_HEADERS[encoding], end_stream=False)
        buffers: list[Buffer] = [
            part if type(part) is bytes else memoryview(part).cast("B") for part in parts
        ]
        size = 0
        for buffer in buffers:
            size += len(buffer)
        self._http2.send_data(
            stream_id, [(compressed << 32 | size).to_bytes(PREFIX_BYTES, "big"), *buffers]
        )

    def answer(self, stream_id: int, parts: Sequence[Buffer]) -> None:
        """Send the only message of a call and end it with OK.

        Args:
          stream_id: A call without a message so far.
          parts: The message, as in `send_message`; not compressed.
        """
        call = self._calls.get(stream_id)
        if call is None:
            return
        assert call.response_encoding is None, "answer() is for calls without a message"
        size = 0
        for part in parts:
            size += len(part)
        self._http2.send_response(
            stream_id,
            RESPONSE_HEADERS[IDENTITY],
            [size.to_bytes(PREFIX_BYTES, "big"), *parts],
            PREFIX_BYTES + size,
            OK_TRAILERS,
        )
        self._forget(stream_id, call)

    def end_call(
        self,
        stream_id: int,
        status: Status,
        message: str = "",
        metadata: Metadata = (),
        *,
        retry_after_s: float | None = None,
    ) -> None:
        """End a call with a status, after what is still held back of its messages.

        Args:
          stream_id: The call.
          status: The outcome.
          message: Says more about it; cut to what clients take.
          metadata: Trailing metadata.
          retry_after_s: When the call may be tried again, in seconds; None says nothing.

        Raises:
          ValueError: A metadata key or value cannot be sent.
          TypeError: A "-bin" value is not bytes, or another one not str.
        """
        call = self._calls.get(stream_id)
        if call is None:
            return
        alone = call.response_encoding is None
        block = trailers(status, message, metadata, alone=alone, retry_after_s=retry_after_s)
        self._http2.send_headers(stream_id, block, end_stream=True)
        self._forget(stream_id, call)

    def unsent_bytes(self, stream_id: int) -> int:
        """Return the bytes of the call that flow control holds back."""
        return self._http2.unsent_bytes(stream_id)

    def inflated(self, event: DeflatedReceived) -> MessageReceived:
        """Take note that a message is inflated, and return the event that it is now."""
        call = self._calls.get(event.stream_id)
        if call is not None:
            self._buffered_bytes -= call.inbox.buffered_bytes
            call.inbox.inflated(event.message)
            self._buffered_bytes += call.inbox.buffered_bytes
        return MessageReceived(event.stream_id, event.message.inflater.message, event.ends)

    def consumed(self, stream_id: int, n_bytes: int) -> None:
        """Give the receive window of messages back, oldest first.

        Args:
          stream_id: The call.
          n_bytes: Their size as they were passed on; a message counts once all of it is consumed.
        """
        call = self._calls.get(stream_id)
        if call is None:
            return
        inbox = call.inbox
        self._buffered_bytes -= inbox.buffered_bytes
        self._unconsumed_messages -= inbox.unconsumed_messages
        credit = inbox.consume(n_bytes)
        self._buffered_bytes += inbox.buffered_bytes
        self._unconsumed_messages += inbox.unconsumed_messages
        self._http2.acknowledge(stream_id, credit)

    def start_shutdown(self) -> None:
        """Ask the client to start no more calls; those on their way are still served."""
        self._http2.start_shutdown()

    def finish_shutdown(self) -> None:
        """Refuse calls from now on, in a way that lets clients try them elsewhere."""
        self._http2.finish_shutdown()

    def send_ping(self) -> None:
        """See `Http2Session.send_ping`."""
        self._http2.send_ping()

    def refuse_pings(self) -> list[GrpcEvent]:
        """End the connection for a client that pings too often; return what that cancels."""
        events: list[GrpcEvent] = []
        self._http2.fail(flood(TOO_MANY_PINGS))
        self._close("The client pinged too often.", events)
        return events

    def end_all(self, status: Status, message: str) -> None:
        """End every call with a status."""
        for stream_id in list(self._calls):
            self.end_call(stream_id, status, message)

    def _on_request(self, event: RequestReceived, events: list[GrpcEvent]) -> None:
        stream_id = event.stream_id
        head = event.block.parsed
        if not isinstance(head, CallHead):
            head = event.block.parsed = CallHead(event.block.fields)
        if head.refusal is not None:
            self._http2.refuse(stream_id, head.refusal)
            return
        if head.fault is not None:
            status, message, list_encodings = head.fault
            self._http2.refuse(
                stream_id, trailers(status, message, alone=True, list_encodings=list_encodings)
            )
            return
        inbox = MessageInbox(head.encoding, self._message_bytes_max, self._inline)
        self._calls[stream_id] = _Call(head, inbox)
        events.append(CallStarted(stream_id, head.path, head.timeout_s, head))
        if event.end_stream:
            events.append(HalfClosed(stream_id))

    def _on_data(self, event: DataReceived, events: list[GrpcEvent]) -> None:
        stream_id = event.stream_id
        call = self._calls.get(stream_id)
        if call is None:
            self._http2.acknowledge(stream_id, len(event.data))
            return
        messages: list[Message] = []
        fault: MessageError | None = None
        inbox = call.inbox
        self._buffered_bytes -= inbox.buffered_bytes
        try:
            credit = inbox.read(event.data, messages)
            if event.end_stream:
                inbox.finish()
        except MessageError as error:
            fault, credit = error, 0
        self._buffered_bytes += inbox.buffered_bytes
        received: MessageReceived | DeflatedReceived | None = None
        for message in messages:
            if isinstance(message, DeflatedMessage):
                received = DeflatedReceived(stream_id, message)
            else:
                received = MessageReceived(stream_id, message)
            events.append(received)
        self._unconsumed_messages += len(messages)
        if self._unconsumed_messages > UNCONSUMED_MESSAGES_MAX:
            fault = MessageError(
                Status.RESOURCE_EXHAUSTED,
                f"At most {UNCONSUMED_MESSAGES_MAX} messages of a connection may wait.",
            )
        if credit:
            self._http2.acknowledge(stream_id, credit)
        if fault is not None:
            self.end_call(stream_id, fault.status, fault.message)
            events.append(CallCancelled(stream_id, fault.message, fault.status))
        elif event.end_stream:
            if received is not None:
                received.ends = True
            else:
                events.append(HalfClosed(stream_id))

    def _forget(self, stream_id: int, call: _Call) -> None:
        """Drop a call that is over and give all it holds of the windows back."""
        del self._calls[stream_id]
        self._buffered_bytes -= call.inbox.buffered_bytes
        self._unconsumed_messages -= call.inbox.unconsumed_messages
        self._http2.acknowledge(stream_id, call.inbox.close())

    def _close(self, reason: str, events: list[GrpcEvent]) -> None:
        for stream_id, call in list(self._calls.items()):
            self._forget(stream_id, call)
            events.append(CallCancelled(stream_id, reason))
        events.append(ConnectionClosed(reason))
