"""What an HTTP/2 connection has to write: frames in order, DATA as far as the windows allow.

Source: RFC 9113 sections 5.2 and 6.9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from .http2_frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MIN,
    FRAME_HEADER_BYTES,
    HEADERS,
    WINDOW_MAX,
    Buffer,
    flood,
    flow_control_error,
    frame_header,
)

JOINED_PIECE_BYTES_MAX: Final = 1 << 16
"""Below this a copy is cheaper than a system call of its own; above it the piece stays a view."""
JOINED_BYTES_MAX: Final = 1 << 20
"""Pieces are joined up to about this size, so that one copy stays small beside the message."""
_TABLE_SIZE_ZERO: Final = b"\x20"
"""HPACK: our blocks use no dynamic table; said once, it fits whatever size the peer allows."""


class Stream:
    """One stream that is open or half-closed; a closed one leaves no trace.

    Attributes:
      stream_id: Its number.
      send_window: Bytes the peer still takes; below zero after it shrank its initial window.
      receive_window: Bytes the peer may still send.
      receive_credit: Bytes given back but not told the peer yet.
      queue: Payload held back by flow control, or None.
      queued_bytes: Bytes in `queue`.
      trailers: The header block that ends the stream once the queue is empty, or None.
      ends: Whether the queue, or `trailers`, ends the stream.
      local_closed: Whether our END_STREAM is written.
      remote_closed: Whether the peer's END_STREAM came.
    """

    __slots__ = (
        "ends",
        "local_closed",
        "queue",
        "queued_bytes",
        "receive_credit",
        "receive_window",
        "remote_closed",
        "send_window",
        "stream_id",
        "trailers",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.stream_id = stream_id
        self.send_window = send_window
        self.receive_window = receive_window
        self.receive_credit = 0
        self.queue: deque[Buffer] | None = None
        self.queued_bytes = 0
        self.trailers: bytes | None = None
        self.ends = False
        self.local_closed = False
        self.remote_closed = False


class Http2Writer:
    """The output of one connection and its send windows.

    Args:
      answers_max: Most `answers`.

    Attributes:
      send_window: Bytes the peer still takes on the connection.
      initial_window: Send window of a new stream, from the peer's settings.
      frame_bytes_max: The peer's MAX_FRAME_SIZE.
      queued_bytes: Payload held back by flow control, over all streams.
      output_bytes: Bytes to write now.
      answers: Frames in the output that the peer provoked without a call being served.
    """

    def __init__(self, answers_max: int) -> None:
        self._answers_max = answers_max
        self.send_window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_bytes_max = FRAME_BYTES_MIN
        self.queued_bytes = 0
        self.output_bytes = 0
        self.answers = 0
        self._output: list[Buffer] = []
        self._waiting: dict[int, Stream] = {}  # wait for the connection window, longest first
        self._table_size_said = False

    @property
    def has_output(self) -> bool:
        """Whether there is something to write now."""
        return bool(self._output)

    def take_output(self) -> list[Buffer]:
        """Return everything to write now, in order, and forget it."""
        output = self._output
        if not output:
            return []
        size = self.output_bytes
        self._output = []
        self.output_bytes = 0
        self.answers = 0
        if size <= JOINED_PIECE_BYTES_MAX:
            return [b"".join(output)]
        return list(_joined(output))

    def control(self, octets: bytes) -> None:
        """Write one control frame."""
        self._output.append(octets)
        self.output_bytes += len(octets)

    def answer(self, octets: bytes) -> None:
        """Write a control frame that the peer provoked.

        Raises:
          Http2ConnectionError: as `check_answers` does.
        """
        self.control(octets)
        self.answers += 1
        self.check_answers()

    def check_answers(self) -> None:
        """Bound what a peer that does not read has provoked.

        Raises:
          Http2ConnectionError: Too many answers wait for it.
        """
        if self.answers > self._answers_max:
            raise flood(f"At most {self._answers_max} answers may wait to be read.")

    def headers(self, stream: Stream, block: bytes, *, end_stream: bool) -> None:
        """Write a header block, after the payload that is still queued."""
        if stream.queue is not None:
            assert end_stream
            stream.trailers = block
            stream.ends = True
            return
        if not self._table_size_said:
            self._table_size_said = True
            block = _TABLE_SIZE_ZERO + block
        size = len(block)
        flags = END_STREAM if end_stream else 0
        frame_max = self.frame_bytes_max
        if size <= frame_max:
            head = frame_header(HEADERS, flags | END_HEADERS, stream.stream_id, size)
            self._output.append(head + block)
            self.output_bytes += FRAME_HEADER_BYTES + size
        else:
            kind = HEADERS
            for start in range(0, size, frame_max):
                piece = block[start : start + frame_max]
                if start + frame_max >= size:
                    flags |= END_HEADERS
                self._output.append(frame_header(kind, flags, stream.stream_id, len(piece)) + piece)
                self.output_bytes += FRAME_HEADER_BYTES + len(piece)
                kind, flags = CONTINUATION, 0
        stream.local_closed = end_stream

    def data(
        self, stream: Stream, parts: Sequence[Buffer], size: int, *, end_stream: bool = False
    ) -> None:
        """Write payload, or queue what the windows do not allow yet.

        Args:
          stream: Where; its response headers are written already.
          parts: Byte buffers that stay unchanged until they are written. They are not copied.
          size: Bytes in `parts`.
          end_stream: Whether the stream ends with them.
        """
        if (
            stream.queue is None
            and 0 < size <= stream.send_window
            and size <= self.send_window
            and size <= self.frame_bytes_max
        ):
            stream.send_window -= size
            self.send_window -= size
            flags = END_STREAM if end_stream else 0
            self._output.append(frame_header(DATA, flags, stream.stream_id, size))
            self._output += parts
            self.output_bytes += FRAME_HEADER_BYTES + size
            stream.local_closed = end_stream
            return
        if stream.queue is None:
            stream.queue = deque()
        stream.queue += [part for part in parts if len(part)]
        stream.queued_bytes += size
        self.queued_bytes += size
        stream.ends = end_stream
        self.flush(stream)

    def response(
        self, stream: Stream, head: bytes, parts: Sequence[Buffer], size: int, trailers: bytes
    ) -> None:
        """Write headers, payload and trailers; in one go if no window and no frame size minds."""
        if not (
            self._table_size_said
            and 0 < size <= stream.send_window
            and size <= self.send_window
            and len(head) <= FRAME_BYTES_MIN >= len(trailers)
            and size <= self.frame_bytes_max
        ):
            self.headers(stream, head, end_stream=False)
            self.data(stream, parts, size)
            self.headers(stream, trailers, end_stream=True)
            return
        stream.send_window -= size
        self.send_window -= size
        stream_id = stream.stream_id
        self._output += (
            frame_header(HEADERS, END_HEADERS, stream_id, len(head))
            + head
            + frame_header(DATA, 0, stream_id, size),
            *parts,
            frame_header(HEADERS, END_HEADERS | END_STREAM, stream_id, len(trailers)) + trailers,
        )
        self.output_bytes += 3 * FRAME_HEADER_BYTES + len(head) + size + len(trailers)
        stream.local_closed = True

    def flush(self, stream: Stream) -> bool:
        """Write what the windows allow of the stream's queue.

        Returns:
          Whether the stream had a queue and it is empty now.
        """
        queue = stream.queue
        if queue is None:
            return False
        while stream.queued_bytes:
            size = min(
                stream.send_window, self.send_window, self.frame_bytes_max, stream.queued_bytes
            )
            if size <= 0:
                if stream.send_window > 0:
                    self._waiting[stream.stream_id] = stream
                return False
            stream.send_window -= size
            self.send_window -= size
            stream.queued_bytes -= size
            self.queued_bytes -= size
            last = stream.ends and stream.trailers is None and not stream.queued_bytes
            self._output.append(
                frame_header(DATA, END_STREAM if last else 0, stream.stream_id, size)
            )
            self._output += _take_bytes(queue, size)
            self.output_bytes += FRAME_HEADER_BYTES + size
            stream.local_closed = last
        stream.queue = None
        if stream.trailers is not None:
            self.headers(stream, stream.trailers, end_stream=True)
        elif stream.ends and not stream.local_closed:
            self._output.append(frame_header(DATA, END_STREAM, stream.stream_id, 0))
            self.output_bytes += FRAME_HEADER_BYTES
            stream.local_closed = True
        return True

    def set_initial_window(self, size: int, streams: Sequence[Stream]) -> list[Stream]:
        """Change the windows of all streams and return those whose queues that emptied.

        Raises:
          Http2ConnectionError: A window would grow over 2**31 - 1.
        """
        change = size - self.initial_window
        if max((stream.send_window for stream in streams), default=0) + change > WINDOW_MAX:
            raise flow_control_error(
                f"INITIAL_WINDOW_SIZE must keep windows at most {WINDOW_MAX}, got {size}."
            )
        self.initial_window = size
        for stream in streams:
            stream.send_window += change
        return [stream for stream in streams if self.flush(stream)]

    def open_connection_window(self, increment: int) -> list[Stream]:
        """Add to the connection's window and return the streams whose queues that emptied.

        Raises:
          Http2ConnectionError: The window would grow over 2**31 - 1.
        """
        self.send_window += increment
        if self.send_window > WINDOW_MAX:
            raise flow_control_error(
                f"The connection window must stay at most {WINDOW_MAX}, got {self.send_window}."
            )
        emptied = []
        while self._waiting and self.send_window > 0:
            stream = self._waiting.pop(next(iter(self._waiting)))
            if self.flush(stream):
                emptied.append(stream)
        return emptied

    def forget(self, stream: Stream) -> None:
        """Drop what the stream still has queued."""
        self._waiting.pop(stream.stream_id, None)
        self.queued_bytes -= stream.queued_bytes
        stream.queued_bytes = 0
        stream.queue = None


def _take_bytes(queue: deque[Buffer], size: int) -> list[Buffer]:
    """Remove `size` bytes from the front of the queue; a buffer that is cut becomes views."""
    taken: list[Buffer] = []
    while size:
        part = queue[0]
        length = len(part)
        if length <= size:
            taken.append(queue.popleft())
            size -= length
        else:
            view = memoryview(part)
            taken.append(view[:size])
            queue[0] = view[size:]
            size = 0
    return taken


def _joined(pieces: Iterable[Buffer]) -> Iterable[Buffer]:
    """Yield the pieces in order, neighbours that are small as one."""
    small: list[Buffer] = []
    size = 0
    for piece in pieces:
        length = len(piece)
        if length < JOINED_PIECE_BYTES_MAX and size < JOINED_BYTES_MAX:
            small.append(piece)
            size += length
            continue
        if small:
            yield b"".join(small)
            small, size = [], 0
        if length < JOINED_PIECE_BYTES_MAX:
            small.append(piece)
            size = length
        else:
            yield piece
    if small:
        yield b"".join(small)
