"""What one HTTP/2 connection may ask of us, and what it tells the layer above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from .http2_frames import Http2ErrorCode, flood
from .http2_headers import HeaderBlock

STREAMS_MAX: Final = 1000
"""Calls at once on a connection: far more than a server runs, far less than hurts."""
STREAM_WINDOW_BYTES: Final = 16 << 20
"""A stream's upload is not slowed by round trips below some 1 Gbit/s at 100 ms."""
CONNECTION_WINDOW_BYTES: Final = 64 << 20
"""Several streams at full speed; what waits unconsumed on a connection stays below it."""
HEADER_LIST_BYTES_MAX: Final = 32 << 10
"""Twice what gRPC clients accept themselves; a larger request is answered with 431."""
RESETS_MAX: Final = 1000
"""Streams the peer may cost us without a completed one: all that can be open may be given up at
once, but opening and resetting for ever is an attack. Each completed stream earns one back."""
STRIKES_MAX: Final = 100_000
"""Frames without use in a row, such as pings: one every 10 s on a quiet stream for 11 days."""
ANSWERS_MAX: Final = 1000
"""Answers waiting to be written; a peer that asks without reading must not fill memory."""


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """What one connection may ask of us; the constants of this module say why."""

    streams_max: int = STREAMS_MAX
    stream_window_bytes: int = STREAM_WINDOW_BYTES
    connection_window_bytes: int = CONNECTION_WINDOW_BYTES
    header_list_bytes_max: int = HEADER_LIST_BYTES_MAX
    resets_max: int = RESETS_MAX
    strikes_max: int = STRIKES_MAX
    answers_max: int = ANSWERS_MAX


@dataclass(slots=True)
class RequestReceived:
    """A stream was opened with these headers, which are well-formed and within the limit."""

    stream_id: int
    block: HeaderBlock
    end_stream: bool


@dataclass(slots=True)
class DataReceived:
    """Payload of a stream, as it arrived; a view of the bytes given to `receive_data`.

    Whoever takes it calls `acknowledge` with its length, now or later. Trailers come as no
    bytes with `end_stream`.
    """

    stream_id: int
    data: memoryview
    end_stream: bool


@dataclass(slots=True)
class StreamReset:
    """A stream ended before its time: the peer reset it, or broke its rules."""

    stream_id: int
    code: int
    message: str


@dataclass(slots=True)
class QueueEmptied:
    """Payload that flow control had held back is in the output now."""

    stream_id: int


@dataclass(slots=True)
class PingReceived:
    """The peer has pinged, which is answered already.

    Attributes:
      repeated: Whether nothing but idle talk has passed since its last ping.
    """

    repeated: bool


@dataclass(slots=True)
class ConnectionFailed:
    """The peer broke the connection's rules; GOAWAY is in the output and nothing else follows."""

    code: Http2ErrorCode
    message: str


Http2Event: TypeAlias = (
    RequestReceived | DataReceived | StreamReset | QueueEmptied | PingReceived | ConnectionFailed
)


class PeerConduct:
    """Counts what a peer costs without asking for anything; both counts forgive.

    Args:
      limits: `resets_max` and `strikes_max` of it.
    """

    def __init__(self, limits: Http2Limits) -> None:
        self._resets_max = limits.resets_max
        self._strikes_max = limits.strikes_max
        self._resets_left = limits.resets_max
        self._strikes = 0
        self._pinged = False  # since something useful happened; looked after by `strike`

    def praise(self) -> None:
        """Something useful happened: idle talk before it is forgotten."""
        self._strikes = 0

    def strike(self) -> None:
        """Count a frame without use.

        Raises:
          Http2ConnectionError: It was one too many in a row.
        """
        if not self._strikes:
            self._pinged = False
        self._strikes += 1
        if self._strikes > self._strikes_max:
            raise flood(f"At most {self._strikes_max} frames in a row may be idle talk.")

    def ping(self) -> bool:
        """Count a ping, and return whether it is not the first since something useful happened.

        Raises:
          Http2ConnectionError: as `strike` does.
        """
        self.strike()
        repeated, self._pinged = self._pinged, True
        return repeated

    def earn_reset(self) -> None:
        """A stream was completed."""
        if self._resets_left < self._resets_max:
            self._resets_left += 1

    def spend_reset(self) -> None:
        """Count a stream that ended before its time by the peer's doing.

        Raises:
          Http2ConnectionError: It was one too many beside those completed.
        """
        self._resets_left -= 1
        if self._resets_left < 0:
            raise flood(f"At most {self._resets_max} streams may be broken off in a row.")
