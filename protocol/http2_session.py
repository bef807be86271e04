"""The server's side of one HTTP/2 connection: bytes in, events and bytes out.

No socket, no clock. Requests may come in any order and number the limits allow; closed streams
leave no state. What breaks a stream resets it; what breaks the connection ends it with GOAWAY.
Source: RFC 9113.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .http2_events import (
    ConnectionFailed,
    DataReceived,
    Http2Event,
    Http2Limits,
    PeerConduct,
    PingReceived,
    QueueEmptied,
    RequestReceived,
    StreamReset,
)
from .http2_frames import (
    ACK,
    DEFAULT_WINDOW,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PING,
    SETTINGS,
    STREAM_ID_MAX,
    WINDOW_MAX,
    Buffer,
    Http2ConnectionError,
    Http2ErrorCode,
    flow_control_error,
    frame,
    goaway_frame,
    protocol_error,
    rst_stream_frame,
    window_update_frame,
)
from .http2_headers import HEADERS_TOO_LARGE, HeaderBlock, HeaderDecoder
from .http2_reader import FrameReader
from .http2_settings import own_settings_frame, read_settings
from .http2_writer import Http2Writer, Stream

_NOTHING: Final = memoryview(b"")


class Http2Session:
    """One server-side connection; our preface is in the output from the start.

    Calls for a stream that is closed do nothing, since the peer may close one at any time. The
    methods `on_...` are the reader's (see `FrameHandler`).

    Args:
      limits: What the peer may ask for.
    """

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._reader = FrameReader(self)
        self._writer = Http2Writer(limits.answers_max)
        self._decoder = HeaderDecoder()
        self._conduct = PeerConduct(limits)
        self._streams: dict[int, Stream] = {}
        self._events: list[Http2Event] = []
        self._last_id = 0
        self._leaving = False
        self._finishing = False
        self._peer_leaving = False
        self._failed = False
        self._receive_window = max(limits.connection_window_bytes, DEFAULT_WINDOW)
        self._receive_credit = 0
        self._writer.control(own_settings_frame(limits))
        if self._receive_window > DEFAULT_WINDOW:
            self._writer.control(window_update_frame(0, self._receive_window - DEFAULT_WINDOW))

    @property
    def is_greeted(self) -> bool:
        """Whether the peer's preface has come."""
        return self._reader.is_greeted

    @property
    def has_output(self) -> bool:
        """Whether there is something to write now."""
        return self._writer.has_output

    @property
    def output_bytes(self) -> int:
        """Bytes to write now."""
        return self._writer.output_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for this connection: output, queued payload, incomplete frames."""
        return self._writer.output_bytes + self._writer.queued_bytes + self._reader.buffered_bytes

    @property
    def open_streams(self) -> int:
        """Streams that are not closed on both sides."""
        return len(self._streams)

    @property
    def should_close(self) -> bool:
        """Whether to close the connection once the output is written."""
        leaving = self._finishing or self._peer_leaving
        return self._failed or (leaving and not self._streams)

    def unsent_bytes(self, stream_id: int) -> int:
        """Return the payload bytes of the stream that flow control holds back."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.queued_bytes

    def receive_data(self, data: bytes | bytearray) -> list[Http2Event]:
        """Take received bytes, split anywhere, and return what they mean.

        Views in the events keep `data` alive. After `ConnectionFailed` everything is ignored.
        """
        if self._failed:
            return []
        try:
            self._writer.check_answers()
            self._reader.receive(data)
        except Http2ConnectionError as error:
            self.fail(error)
        events, self._events = self._events, []
        return events

    def take_output(self) -> list[Buffer]:
        """Return everything to write now, in order, and forget it.

        Small pieces come joined; large payload buffers come as they were given.
        """
        return self._writer.take_output()

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        """Write response headers, or with `end_stream` trailers, made by `encode_fields`.

        Trailers wait for queued payload. A response that ends before its request is followed by
        RST_STREAM with NO_ERROR, as RFC 9113 section 8.1 allows.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._conduct.praise()
        self._writer.headers(stream, block, end_stream=end_stream)
        if stream.local_closed:
            self._complete(stream)

    def send_data(
        self, stream_id: int, parts: Sequence[Buffer], *, end_stream: bool = False
    ) -> None:
        """Write payload as far as the windows allow and queue the rest.

        Args:
          stream_id: A stream whose response headers are written.
          parts: Buffers of single bytes (memoryviews of format B). They are not copied, so they
            stay unchanged until they are written.
          end_stream: Whether the response ends with them.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._conduct.praise()
        size = 0
        for part in parts:
            size += len(part)
        self._writer.data(stream, parts, size, end_stream=end_stream)
        if stream.local_closed:
            self._complete(stream)

    def send_response(
        self, stream_id: int, head: bytes, parts: Sequence[Buffer], size: int, trailers: bytes
    ) -> None:
        """Write a whole response: headers, payload and trailers, as the methods above do.

        Args:
          stream_id: A stream without a response so far.
          head: The header block.
          parts: The payload, as in `send_data`.
          size: Bytes in `parts`.
          trailers: The header block that ends the stream.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._conduct.praise()
        self._writer.response(stream, head, parts, size, trailers)
        if stream.local_closed:
            self._complete(stream)

    def refuse(self, stream_id: int, block: bytes) -> None:
        """Answer a request that is at fault with headers alone; many unread ones are a flood."""
        self.send_headers(stream_id, block, end_stream=True)
        self._writer.answers += 1

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        """Give `n_bytes` of received payload back to the windows of connection and stream."""
        credit = self._receive_credit + n_bytes
        if credit * 4 >= self._limits.connection_window_bytes and not self._failed:
            self._receive_window += credit
            self._writer.control(window_update_frame(0, credit))
            credit = 0
        self._receive_credit = credit
        stream = self._streams.get(stream_id)
        if stream is None or stream.remote_closed:
            return
        credit = stream.receive_credit + n_bytes
        if credit * 2 >= self._limits.stream_window_bytes:
            stream.receive_window += credit
            self._writer.control(window_update_frame(stream_id, credit))
            credit = 0
        stream.receive_credit = credit

    def send_ping(self) -> None:
        """Ask the peer whether it is there; anything that it sends is an answer."""
        if not self._failed:
            self._writer.control(frame(PING, 0, 0, bytes(8)))

    def start_shutdown(self) -> None:
        """Ask the peer to open no more streams; those on their way are still served."""
        if not self._leaving and not self._failed:
            self._leaving = True
            self._writer.control(goaway_frame(STREAM_ID_MAX, Http2ErrorCode.NO_ERROR))

    def finish_shutdown(self) -> None:
        """Say which stream was the last; later ones are refused, so that clients retry them."""
        if not self._finishing and not self._failed:
            self._leaving = self._finishing = True
            self._writer.control(goaway_frame(self._last_id, Http2ErrorCode.NO_ERROR))

    def received_eof(self) -> None:
        """The peer will send nothing more: nothing of what it asked for can be finished."""
        self._failed = True
        self._forget_all()

    def on_data(self, stream_id: int, n_bytes: int, padding_bytes: int, *, ends: bool) -> None:
        """Take the beginning of a DATA frame: account for it in both windows."""
        if stream_id > self._last_id:
            raise protocol_error(f"DATA must be on an open stream, {stream_id} is idle.")
        self._receive_window -= n_bytes
        if self._receive_window < 0:
            raise flow_control_error("DATA must fit the connection window.")
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.receive_window -= n_bytes
            if stream.remote_closed:
                self._break(stream, Http2ErrorCode.STREAM_CLOSED, "DATA came after its end.")
            elif stream.receive_window < 0:
                self._break(
                    stream, Http2ErrorCode.FLOW_CONTROL_ERROR, "DATA must fit the stream window."
                )
        if padding_bytes:
            self.acknowledge(stream_id, padding_bytes)
        if n_bytes > padding_bytes:
            self._conduct.praise()
        elif not ends or stream is None:
            self._conduct.strike()

    def on_payload(self, stream_id: int, data: memoryview, *, ends: bool) -> None:
        """Pass payload on, or give it back at once where the stream is closed."""
        stream = self._streams.get(stream_id)
        if stream is None:
            self.acknowledge(stream_id, len(data))
            return
        if ends:
            stream.remote_closed = True
        self._events.append(DataReceived(stream_id, data, ends))

    def on_block(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        """Take a header block: a request, or the trailers of one."""
        fields = self._decoder.decode(block)
        if stream_id <= self._last_id:
            self._on_trailers(stream_id, fields, ends=ends)
            return
        self._last_id = stream_id
        if self._finishing or len(self._streams) >= self._limits.streams_max:
            self._conduct.strike()
            self._writer.answer(rst_stream_frame(stream_id, Http2ErrorCode.REFUSED_STREAM))
            return
        if fields.fault is not None:
            self._writer.answer(rst_stream_frame(stream_id, Http2ErrorCode.PROTOCOL_ERROR))
            self._conduct.spend_reset()
            return
        stream = Stream(stream_id, self._writer.initial_window, self._limits.stream_window_bytes)
        stream.remote_closed = ends
        self._streams[stream_id] = stream
        self._conduct.praise()
        if fields.list_bytes > self._limits.header_list_bytes_max:
            self.refuse(stream_id, HEADERS_TOO_LARGE)
            self._writer.check_answers()
            return
        self._events.append(RequestReceived(stream_id, fields, ends))

    def _on_trailers(self, stream_id: int, fields: HeaderBlock, *, ends: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if fields.is_request:
                raise protocol_error(f"Stream numbers must grow, got {stream_id} again.")
            self._conduct.strike()  # they were on their way when we closed the stream
        elif stream.remote_closed:
            self._break(stream, Http2ErrorCode.STREAM_CLOSED, "HEADERS came after its end.")
        elif fields.is_request or not ends:
            self._break(stream, Http2ErrorCode.PROTOCOL_ERROR, "Trailers must end the stream.")
        else:
            self.on_payload(stream_id, _NOTHING, ends=True)

    def on_rst_stream(self, stream_id: int, code: int) -> None:
        """Take a reset."""
        if stream_id > self._last_id:
            raise protocol_error(f"RST_STREAM must be on an open stream, {stream_id} is idle.")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._conduct.strike()
            return
        self._drop(stream)
        self._events.append(StreamReset(stream_id, code, "The client reset the stream."))
        self._conduct.spend_reset()

    def on_settings(self, settings: list[tuple[int, int]]) -> None:
        """Heed the peer's settings. HEADER_TABLE_SIZE is moot: our blocks use no dynamic table."""
        self._conduct.strike()
        given = read_settings(settings)
        self._writer.frame_bytes_max = given.get(MAX_FRAME_SIZE, self._writer.frame_bytes_max)
        self._writer.answer(frame(SETTINGS, ACK, 0))
        # What the window lets through comes after the answer.
        size = given.get(INITIAL_WINDOW_SIZE, self._writer.initial_window)
        for stream in self._writer.set_initial_window(size, list(self._streams.values())):
            self._on_emptied(stream)

    def on_ping(self, payload: bytes) -> None:
        """Answer a ping."""
        repeated = self._conduct.ping()
        self._writer.answer(frame(PING, ACK, 0, payload))
        self._events.append(PingReceived(repeated))

    def on_goaway(self) -> None:
        """Finish what is in flight; a peer that leaves may still open streams it had begun."""
        self._peer_leaving = True
        self._conduct.strike()

    def on_idle_talk(self) -> None:
        """Ignore a frame, but count it."""
        self._conduct.strike()

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """Open a window and write what it lets through."""
        written = self._writer.output_bytes
        if not stream_id:
            if not increment:
                raise protocol_error("A window must be opened by at least 1, got 0.")
            for stream in self._writer.open_connection_window(increment):
                self._on_emptied(stream)
        else:
            self._open_stream_window(stream_id, increment)
        if self._writer.output_bytes == written:
            self._conduct.strike()
        else:
            self._conduct.praise()

    def _open_stream_window(self, stream_id: int, increment: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_id or not stream_id & 1:
                raise protocol_error(f"A window of stream {stream_id}, which is idle, was opened.")
        elif not increment:
            self._break(stream, Http2ErrorCode.PROTOCOL_ERROR, "A window was opened by 0.")
        elif stream.send_window + increment > WINDOW_MAX:
            self._break(stream, Http2ErrorCode.FLOW_CONTROL_ERROR, "A window passed 2**31 - 1.")
        else:
            stream.send_window += increment
            if self._writer.flush(stream):
                self._on_emptied(stream)

    def _on_emptied(self, stream: Stream) -> None:
        """What was held back is in the output; the stream may have ended with it."""
        if stream.local_closed:
            self._complete(stream)
        else:
            self._events.append(QueueEmptied(stream.stream_id))

    def _complete(self, stream: Stream) -> None:
        """Close a stream whose response is written."""
        del self._streams[stream.stream_id]
        if not stream.remote_closed:
            self._writer.control(rst_stream_frame(stream.stream_id, Http2ErrorCode.NO_ERROR))
        self._conduct.earn_reset()

    def _drop(self, stream: Stream) -> None:
        del self._streams[stream.stream_id]
        self._writer.forget(stream)

    def _break(self, stream: Stream, code: Http2ErrorCode, message: str) -> None:
        """Reset a stream on which the peer broke the rules."""
        self._drop(stream)
        self._events.append(StreamReset(stream.stream_id, code, message))
        self._writer.answer(rst_stream_frame(stream.stream_id, code))
        self._conduct.spend_reset()

    def _forget_all(self) -> None:
        for stream in self._streams.values():
            self._writer.forget(stream)
        self._streams.clear()
        self._reader = FrameReader(self)

    def fail(self, error: Http2ConnectionError) -> None:
        """End the connection for what the peer did; `should_close` is true from now on."""
        self._failed = True
        self._forget_all()
        self._writer.control(goaway_frame(self._last_id, error.code, error.message))
        self._events.append(ConnectionFailed(error.code, error.message))
