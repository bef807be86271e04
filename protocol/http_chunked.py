"""The framing of a chunked HTTP/1.1 body (RFC 9112 7.1), taken off by llhttp."""

from __future__ import annotations

from typing import Final, final

from httptools import HttpRequestParser

from .http_request import HttpLimits, Refused, feed

CHUNK_FRAMING_BYTES_MAX: Final = 2 * 1024**2
"""Sizes, extensions and trailers of one body: 32 bytes for each of 65,536 chunks."""

_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_EMPTY_LINE: Final = b"\r\n\r\n"
_LF: Final = ord("\n")


@final
class ChunkDecoder:
    """Collects one chunked body; extensions and trailers are checked and dropped.

    Args:
      limits: What the client may send.

    Attributes:
      body: What has come of the body.
      is_complete: Whether the empty line behind the last chunk has come.
    """

    __slots__ = (
        "_chunks",
        "_fed_bytes",
        "_limits",
        "_parser",
        "_refusal",
        "_tail",
        "body",
        "is_complete",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self.body = bytearray()
        self.is_complete = False
        self._limits = limits
        self._chunks = 0  # begun, the empty last one included
        self._fed_bytes = 0
        self._refusal: Refused | None = None
        self._tail = b""  # the last three bytes fed
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(_HEAD)  # so that it stands where a chunked body begins

    def receive_data(self, data: bytes, start: int) -> int:
        """Take `data` from `start` on, at most to the end of the body; return where that ended.

        A body ends with an empty line, but the parser does not tell where it saw the end. So it
        is fed up to one empty line at a time, and asked.

        Raises:
          Refused: The framing is malformed, or the body is over a limit.
        """
        view = memoryview(data)
        end = start
        while end < len(data) and not self.is_complete:
            position = end
            end = self._next_empty_line(data, start, position)
            feed(self._parser, view[position:end])
            if self._refusal is not None:
                raise self._refusal
        self._tail = (self._tail + data[max(start, end - 3) : end])[-3:]
        self._fed_bytes += end - start
        if self._fed_bytes - len(self.body) > CHUNK_FRAMING_BYTES_MAX:
            limit = CHUNK_FRAMING_BYTES_MAX
            raise Refused(400, f"the framing of a chunked body may have {limit} bytes, got more")
        return end

    def _next_empty_line(self, data: bytes, start: int, position: int) -> int:
        """Return where the first empty line after `position` ends, or else the end of `data`."""
        if position == start:
            straddling = self._tail + data[start : start + 3]
            found = straddling.find(_EMPTY_LINE)
            if found >= 0:
                return start + found + len(_EMPTY_LINE) - len(self._tail)
        found = data.find(_EMPTY_LINE, position)
        # The line before the last one is never empty, so a run of line ends is no end of a body.
        while found > start and data[found - 1] == _LF:
            found = data.find(_EMPTY_LINE, found + 2)
        return len(data) if found < 0 else found + len(_EMPTY_LINE)

    def on_chunk_header(self) -> None:
        """Count a chunk; called by the parser."""
        self._chunks += 1

    def on_body(self, piece: bytes) -> None:
        """Collect a piece of a chunk; called by the parser."""
        limits = self._limits
        if self._chunks > limits.chunks_max:
            advice = "send fewer, larger chunks"
            message = f"a body may have {limits.chunks_max} non-empty chunks, got more: {advice}"
            self._refusal = Refused(400, message)
        elif len(self.body) + len(piece) > limits.body_bytes_max:
            message = f"a body may have {limits.body_bytes_max} bytes, got more"
            self._refusal = Refused(400, message)
        else:
            self.body += piece

    def on_message_complete(self) -> None:
        """Note the end of the body; called by the parser."""
        self.is_complete = True
