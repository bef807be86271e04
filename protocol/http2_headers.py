"""Header blocks that arrive: HPACK decoding with a cache, and what makes a request malformed.

Source: RFC 7541 and RFC 9113 sections 8.2 and 8.3.
"""

from __future__ import annotations

import re
from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import table_entry_size

from .http2_frames import Http2ConnectionError, Http2ErrorCode, encode_fields, flood

HEADER_LIST_BYTES_CEILING: Final = 128 << 10
"""Decoding stops here, and so does the connection: a short block can name a long entry often."""
HEADERS_TOO_LARGE: Final = encode_fields([(":status", "431"), ("content-length", "0")])
"""The answer to a request whose headers are over the limit but could be decoded."""
CACHED_BLOCKS_MAX: Final = 128
"""A client has a few methods, each with a few sets of metadata; more is no repetition."""
CACHED_BLOCK_BYTES_MAX: Final = 128
"""One byte a field: a block that is longer is unusual, and not worth keeping."""

_FIELD_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]").search
_REQUEST_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


class HeaderBlock:
    """One decoded header block; requests with the same bytes may share it, so it is not changed.

    Attributes:
      fields: Names and values, raw, in the order they came.
      list_bytes: Size as MAX_HEADER_LIST_SIZE counts it (RFC 9113 section 6.5.2).
      is_request: Whether it holds pseudo-headers; trailers do not.
      fault: What makes it malformed as a request, in one sentence, or None.
      parsed: What the layer above made of it; kept here so that it is made once a block.
    """

    __slots__ = ("fault", "fields", "is_request", "list_bytes", "parsed")

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        self.fields = fields
        self.list_bytes = sum(table_entry_size(name, value) for name, value in fields)
        self.is_request = any(name[:1] == b":" for name, _ in fields)
        self.fault = request_fault(fields)
        self.parsed: object = None


class HeaderDecoder:
    """HPACK decoding of a connection's header blocks, quick for those that repeat.

    A block of one-byte indices alone means the same until the dynamic table changes; a gRPC client
    sends little else after its first call. So such a block is looked up by its bytes.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=HEADER_LIST_BYTES_CEILING)
        self._cache: dict[bytes, HeaderBlock] = {}

    def decode(self, octets: bytes) -> HeaderBlock:
        """Return the fields of one whole header block.

        Raises:
          Http2ConnectionError: The block is no HPACK, or decodes to more than the limit. The
            tables of both sides differ from then on, so only the connection can end.
        """
        block = self._cache.get(octets)
        if block is not None:
            return block
        entries = self._decoder.header_table.dynamic_entries
        before = (len(entries), entries[0] if entries else None)
        try:
            block = HeaderBlock([(h[0], h[1]) for h in self._decoder.decode(octets, raw=True)])
        except OversizedHeaderListError as error:
            raise flood(
                f"A header list must decode to at most {HEADER_LIST_BYTES_CEILING} bytes."
            ) from error
        except HPACKError as error:
            raise Http2ConnectionError(
                Http2ErrorCode.COMPRESSION_ERROR, "A header block must be valid HPACK."
            ) from error
        if before[0] != len(entries) or (entries and before[1] is not entries[0]):
            self._cache.clear()
        elif 0 < len(octets) <= CACHED_BLOCK_BYTES_MAX and min(octets) >= 0x80:
            if len(self._cache) >= CACHED_BLOCKS_MAX:
                self._cache.clear()
            self._cache[octets] = block
        return block


def request_fault(fields: list[tuple[bytes, bytes]]) -> str | None:
    """Return why the fields cannot be a request, in one sentence, or None.

    Of RFC 9113 section 8.2 only the rule about the value of `te` is not enforced.
    """
    pseudo: set[bytes] = set()
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if name not in _REQUEST_PSEUDO or name in pseudo or regular:
                return f"Pseudo-headers must be known, once and first, got {name!r}."
            if not value:
                return f"{name!r} must not be empty."
            pseudo.add(name)
        else:
            regular = True
            if name in _CONNECTION_FIELDS or _FIELD_NAME(name) is None:
                return f"Field names must be lower case and about the request, got {name!r}."
        if _BAD_VALUE(value) is not None:
            return f"Field values must hold no control characters, {name!r} does."
    if len(pseudo - {b":authority"}) < 3:
        return "A request must have :method, :scheme and :path."
    return None
