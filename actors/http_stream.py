"""A response over HTTP that goes out piece by piece, as what makes it makes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from ..protocol.http_response import LAST_CHUNK, encode_chunk, encode_stream_head
from ..protocol.tensors import Buffer


class HttpStream(ABC):
    """One response whose body has no known size.

    Whoever is given one takes its pieces until there are no more, or closes it before that; either
    way it is closed in the end.

    Attributes:
      status: The status code.
      headers: (name, value); without those that say how the body is framed.
      reason: What failed, once something has.
    """

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        self.headers = headers
        self.reason = ""

    @abstractmethod
    async def next_piece(self) -> Buffer | None:
        """Wait for the next piece of the body, which is not empty; None behind the last."""

    @abstractmethod
    def last_words(self, reason: str) -> Buffer:
        """Return the piece that tells why there are no more."""

    @abstractmethod
    def close(self) -> None:
        """Take no more pieces, and cancel the work for them; idempotent, never waits."""


async def write_stream(
    stream: HttpStream,
    write: Callable[[Sequence[Buffer]], Awaitable[None]],
    *,
    keep_alive: bool,
    http_10: bool,
) -> None:
    """Write a response from its head to its end; see `encode_stream_head`."""
    head = encode_stream_head(stream.status, stream.headers, keep_alive=keep_alive, http_10=http_10)
    await write([head])
    while (piece := await stream.next_piece()) is not None:
        await write([piece] if http_10 else encode_chunk(piece))
    if not http_10:
        await write([LAST_CHUNK])


def cut_stream(stream: HttpStream, reason: str, *, http_10: bool) -> list[Buffer]:
    """Return what ends a response between two of its pieces, so that its client hears why."""
    piece = stream.last_words(reason)
    return [piece] if http_10 else [*encode_chunk(piece), LAST_CHUNK]
