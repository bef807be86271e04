"""What we say in SETTINGS, and what a peer may say.

Source: RFC 9113, section 6.5.2.
"""

from __future__ import annotations

from .http2_events import Http2Limits
from .http2_frames import (
    ENABLE_PUSH,
    FRAME_BYTES_CEILING,
    FRAME_BYTES_MIN,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    WINDOW_MAX,
    flow_control_error,
    protocol_error,
    settings_frame,
)
from .http2_reader import RECEIVED_FRAME_BYTES_MAX


def own_settings_frame(limits: Http2Limits) -> bytes:
    """Return the SETTINGS frame that tells a peer our limits."""
    return settings_frame(
        {
            MAX_CONCURRENT_STREAMS: limits.streams_max,
            INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            MAX_FRAME_SIZE: RECEIVED_FRAME_BYTES_MAX,
            MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
    )


def read_settings(settings: list[tuple[int, int]]) -> dict[int, int]:
    """Return the last value of each setting.

    Raises:
      Http2ConnectionError: a value is out of its range, also one that a later one replaces.
    """
    for key, value in settings:
        if key == MAX_FRAME_SIZE and not FRAME_BYTES_MIN <= value <= FRAME_BYTES_CEILING:
            raise protocol_error(f"MAX_FRAME_SIZE must be 2**14 to 2**24-1, got {value}.")
        if key == ENABLE_PUSH and value > 1:
            raise protocol_error(f"ENABLE_PUSH must be 0 or 1, got {value}.")
        if key == INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise flow_control_error(
                f"INITIAL_WINDOW_SIZE must keep windows at most {WINDOW_MAX}, got {value}."
            )
    return dict(settings)
