"""Cuts the bytes of an HTTP/2 connection into frames, however they were split on the way.

It refuses what is wrong about a frame by itself, before its payload is waited for, and puts
header blocks together. What a frame means for its stream is the handler's business.
Source: RFC 9113 sections 3.4, 4 and 6.
"""

from __future__ import annotations

from typing import Final, Protocol

from .http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    GOAWAY,
    GOAWAY_HEAD,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_ID_MAX,
    UINT32,
    WINDOW_MAX,
    WINDOW_UPDATE,
    Http2ConnectionError,
    Http2ErrorCode,
    flood,
    protocol_error,
)

RECEIVED_FRAME_BYTES_MAX: Final = 1 << 20
"""DATA is passed on as it arrives, so a big frame costs no memory and saves frame headers."""
HEADER_BLOCK_BYTES_MAX: Final = 64 << 10
"""Compressed and over all its frames; it is held in memory until it is complete."""
CONTINUATIONS_MAX: Final = 16
"""Frames a block may be continued in: with the smallest frames, 4 hold the largest block."""
SETTINGS_MAX: Final = 64
"""Values in one SETTINGS frame; some ten are defined."""
_FIXED_LENGTHS: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_KINDS_READ: Final = frozenset((HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION))
_NOTHING: Final = memoryview(b"")


class FrameHandler(Protocol):
    """Takes the frames; every method may raise Http2ConnectionError."""

    def on_data(self, stream_id: int, n_bytes: int, padding_bytes: int, *, ends: bool) -> None:
        """A DATA frame begins: `n_bytes` count for flow control, padding among them."""

    def on_payload(self, stream_id: int, data: memoryview, *, ends: bool) -> None:
        """A piece of its payload; none at all only where the stream ends with it."""

    def on_block(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        """A whole header block."""

    def on_rst_stream(self, stream_id: int, code: int) -> None:
        """RST_STREAM."""

    def on_settings(self, settings: list[tuple[int, int]]) -> None:
        """SETTINGS to be acknowledged."""

    def on_ping(self, payload: bytes) -> None:
        """PING to be answered."""

    def on_goaway(self) -> None:
        """The peer will open no more streams."""

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """WINDOW_UPDATE; stream 0 is the connection."""

    def on_idle_talk(self) -> None:
        """A frame that changes nothing: an acknowledgement, PRIORITY, an unknown kind."""


class FrameReader:
    """The receiving end of one connection.

    Args:
      handler: Who takes the frames.
    """

    def __init__(self, handler: FrameHandler) -> None:
        self._handler = handler
        self._greeted = False
        self._settings_seen = False
        # Bytes that are no whole frame yet, and how many are needed to go on.
        self._tail = bytearray()
        self._needed = 0
        # The DATA frame that is arriving, and bytes of any frame that are passed over.
        self._data_id = 0
        self._data_left = 0
        self._data_ends = False
        self._skip_left = 0
        # The header block that is arriving: its stream, END_STREAM, CONTINUATION frames so far.
        self._block_id = 0
        self._block_ends = False
        self._continuations = 0
        self._block = bytearray()

    @property
    def is_greeted(self) -> bool:
        """Whether the preface has come, the settings that belong to it included."""
        return self._settings_seen

    @property
    def buffered_bytes(self) -> int:
        """Bytes of incomplete frames and header blocks."""
        return len(self._tail) + len(self._block)

    def receive(self, data: bytes | bytearray) -> None:
        """Take received bytes and pass on what they complete; payload of bytes is not copied.

        Raises:
          Http2ConnectionError: The bytes break the protocol; the reader is of no more use.
        """
        if self._tail:
            self._tail += data
            if len(self._tail) < self._needed:
                return
            data, self._tail = self._tail, bytearray()
        data = bytes(data)
        position = 0
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise protocol_error("A connection must start with the HTTP/2 preface.")
            if len(data) < len(PREFACE):
                self._keep(data, len(PREFACE))
                return
            self._greeted = True
            position = len(PREFACE)
        self._receive_frames(data, position)

    def _receive_frames(self, data: bytes, position: int) -> None:
        end = len(data)
        view = memoryview(data)
        while position < end:
            if self._data_left:
                size = min(self._data_left, end - position)
                self._data_left -= size
                self._handler.on_payload(
                    self._data_id,
                    view[position : position + size],
                    ends=self._data_ends and not self._data_left,
                )
                position += size
                continue
            if self._skip_left:
                size = min(self._skip_left, end - position)
                self._skip_left -= size
                position += size
                continue
            body = position + FRAME_HEADER_BYTES
            if body > end:
                self._keep(data[position:], FRAME_HEADER_BYTES)
                return
            high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
            length = (high << 8) | low
            stream_id &= STREAM_ID_MAX
            self._check(kind, flags, stream_id, length)
            if kind == DATA:
                needed = body + 1 if flags & PADDED else body
            elif kind in _KINDS_READ:
                needed = body + length
            else:
                self._pass_over(kind, length)
                position = body
                continue
            if needed > end:
                self._keep(data[position:], needed - position)
                return
            if kind == DATA:
                self._begin_data(stream_id, flags, length, data[body] if needed > body else None)
            else:
                self._dispatch(kind, flags, stream_id, data[body:needed])
            position = needed

    def _keep(self, tail: bytes, needed: int) -> None:
        self._tail = bytearray(tail)
        self._needed = needed

    def _check(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Refuse what the header of a frame already shows to be wrong."""
        if length > RECEIVED_FRAME_BYTES_MAX:
            raise _frame_size_error(f"at most {RECEIVED_FRAME_BYTES_MAX}", length)
        if self._block_id and (kind != CONTINUATION or stream_id != self._block_id):
            raise protocol_error("A header block must be continued before anything else.")
        if not self._settings_seen:
            if kind != SETTINGS or flags & ACK:
                raise protocol_error("The first frame must be SETTINGS.")
            self._settings_seen = True
        if kind <= HEADERS:
            if not stream_id & 1:
                raise protocol_error(f"Streams of a client have odd numbers, got {stream_id}.")
            if flags & PADDED and not length:
                raise _frame_size_error("at least 1 where there is padding", length)
            if kind == HEADERS and length > HEADER_BLOCK_BYTES_MAX:
                raise flood(f"A header block may have {HEADER_BLOCK_BYTES_MAX} bytes.")
        else:
            self._check_control(kind, flags, stream_id, length)

    def _check_control(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        fixed = _FIXED_LENGTHS.get(kind)
        if fixed is not None and length != fixed:
            raise _frame_size_error(str(fixed), length)
        if kind in (PRIORITY, RST_STREAM, CONTINUATION):
            if not stream_id & 1:
                raise protocol_error(f"Streams of a client have odd numbers, got {stream_id}.")
            if kind == CONTINUATION and length + len(self._block) > HEADER_BLOCK_BYTES_MAX:
                raise flood(f"A header block may have {HEADER_BLOCK_BYTES_MAX} bytes.")
        elif kind in (SETTINGS, PING, GOAWAY):
            if stream_id:
                raise protocol_error(f"Frame kind {kind} must be on stream 0, got {stream_id}.")
            if kind == SETTINGS and (length % SETTING.size or (flags & ACK and length)):
                raise _frame_size_error("6 a value, or none in an acknowledgement", length)
            if kind == SETTINGS and length > SETTINGS_MAX * SETTING.size:
                raise flood(f"A SETTINGS frame may have {SETTINGS_MAX} values.")
            if kind == GOAWAY and length < GOAWAY_HEAD.size:
                raise _frame_size_error(f"at least {GOAWAY_HEAD.size}", length)
        elif kind == PUSH_PROMISE:
            raise protocol_error("A client must not push.")

    def _pass_over(self, kind: int, length: int) -> None:
        """Skip the payload of a frame that says all we need by its kind, or nothing to us."""
        self._skip_left = length
        if kind == GOAWAY:
            self._handler.on_goaway()
        else:
            self._handler.on_idle_talk()

    def _begin_data(self, stream_id: int, flags: int, length: int, padding: int | None) -> None:
        overhead = 0 if padding is None else 1 + padding
        if overhead > length:
            raise protocol_error("Padding must be shorter than its frame.")
        ends = bool(flags & END_STREAM)
        self._handler.on_data(stream_id, length, overhead, ends=ends)
        self._data_id = stream_id
        self._data_left = length - overhead
        self._data_ends = ends
        self._skip_left = padding or 0
        if ends and not self._data_left:
            self._handler.on_payload(stream_id, _NOTHING, ends=True)

    def _dispatch(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        handler = self._handler
        if kind == HEADERS:
            self._on_headers(stream_id, flags, payload)
        elif kind == WINDOW_UPDATE:
            handler.on_window_update(stream_id, UINT32.unpack(payload)[0] & WINDOW_MAX)
        elif kind == CONTINUATION:
            self._on_continuation(stream_id, flags, payload)
        elif kind == RST_STREAM:
            handler.on_rst_stream(stream_id, UINT32.unpack(payload)[0])
        elif flags & ACK:
            handler.on_idle_talk()
        elif kind == PING:
            handler.on_ping(payload)
        else:
            handler.on_settings(list(SETTING.iter_unpack(payload)))

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & (PADDED | PRIORITIZED):
            start, stop = 0, len(payload)
            if flags & PADDED:
                start = 1
                stop -= payload[0]
            if flags & PRIORITIZED:
                start += _FIXED_LENGTHS[PRIORITY]
            if start > stop:
                raise protocol_error("Padding and priority must be shorter than their frame.")
            payload = payload[start:stop]
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._handler.on_block(stream_id, payload, ends=ends)
        else:
            self._block_id = stream_id
            self._block_ends = ends
            self._continuations = 0
            self._block = bytearray(payload)

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not self._block_id:
            raise protocol_error("CONTINUATION must follow HEADERS.")
        self._continuations += 1
        if self._continuations > CONTINUATIONS_MAX:
            raise flood(f"A header block may have {CONTINUATIONS_MAX} CONTINUATION frames.")
        self._block += payload
        if flags & END_HEADERS:
            block = bytes(self._block)
            self._block = bytearray()
            self._block_id = 0
            self._handler.on_block(stream_id, block, ends=self._block_ends)


def _frame_size_error(expected: str, length: int) -> Http2ConnectionError:
    return Http2ConnectionError(
        Http2ErrorCode.FRAME_SIZE_ERROR, f"The frame must have {expected} bytes, got {length}."
    )
