"""HTTP/2 on the wire: frame kinds, error codes, settings and how frames are packed.

Source: RFC 9113 sections 4, 6 and 7, and RFC 7541 section 6.2.2 for the header fields we send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from hpack.hpack import encode_integer

Buffer: TypeAlias = bytes | bytearray | memoryview

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

FRAME_HEADER_BYTES: Final = 9
STREAM_ID_MAX: Final = 2**31 - 1
WINDOW_MAX: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
FRAME_BYTES_MIN: Final = 16_384
"""The frame size every peer accepts, and the smallest MAX_FRAME_SIZE it may ask for."""
FRAME_BYTES_CEILING: Final = 2**24 - 1
"""The largest MAX_FRAME_SIZE a peer may ask for."""

FRAME_HEADER: Final = Struct(">HBBBI")
"""Payload length (16 high bits, 8 low bits), kind, flags, stream id."""
SETTING: Final = Struct(">HI")
UINT32: Final = Struct(">I")
GOAWAY_HEAD: Final = Struct(">II")


class Http2ErrorCode(IntEnum):
    """Why a stream or a connection ended, as RST_STREAM and GOAWAY say it."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2ConnectionError(Exception):
    """The peer broke the protocol in a way that ends the whole connection.

    Attributes:
      code: What GOAWAY says.
      message: One sentence: what was expected and what came.
    """

    def __init__(self, code: Http2ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def protocol_error(message: str) -> Http2ConnectionError:
    """Return the error of a peer that breaks the rules."""
    return Http2ConnectionError(Http2ErrorCode.PROTOCOL_ERROR, message)


def flow_control_error(message: str) -> Http2ConnectionError:
    """Return the error of a peer that overruns or overfills a window."""
    return Http2ConnectionError(Http2ErrorCode.FLOW_CONTROL_ERROR, message)


def flood(message: str) -> Http2ConnectionError:
    """Return the error of a peer that keeps to the rules, but costs more than it may."""
    return Http2ConnectionError(Http2ErrorCode.ENHANCE_YOUR_CALM, message)


def frame_header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """Return the 9 bytes in front of a payload of `length` bytes."""
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_header(kind, flags, stream_id, len(payload)) + payload


def settings_frame(settings: Mapping[int, int]) -> bytes:
    """Return a SETTINGS frame with the given values."""
    payload = b"".join(SETTING.pack(key, value) for key, value in settings.items())
    return frame(SETTINGS, 0, 0, payload)


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def rst_stream_frame(stream_id: int, code: int) -> bytes:
    """Return an RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def goaway_frame(last_stream_id: int, code: int, message: str = "") -> bytes:
    """Return a GOAWAY frame with `message` as its debug data."""
    return frame(GOAWAY, 0, 0, GOAWAY_HEAD.pack(last_stream_id, code) + message.encode())


def encode_fields(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block that leaves the peer's dynamic table alone.

    Every field is a literal without indexing, so the bytes mean the same on every connection
    at any time and can be made once. Only `:status: 200` is an index into the static table.
    """
    block = bytearray()
    for name, value in fields:
        if name == ":status" and value == "200":
            block.append(0x88)
            continue
        block.append(0)
        for text in (name, value):
            octets = text.encode("utf-8")
            block += encode_integer(len(octets), 7)
            block += octets
    return bytes(block)
