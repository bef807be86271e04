"""Puts the messages of one call together from its payload, and accounts for them.

Source: the document "gRPC over HTTP2", Length-Prefixed-Message.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from grpclib.const import Status

from .grpc_compression import IDENTITY, Inflater, MessageError

PREFIX_BYTES: Final = 5
"""The compressed flag and the length in front of every message."""
INLINE_INFLATED_BYTES_MAX: Final = 512 * 1024
"""What is inflated at once of the data of one read: about a millisecond. Messages that are larger,
and those behind them, are left to whoever has a thread for them."""


class DeflatedMessage:
    """A whole message that is to be inflated by whoever takes it.

    Attributes:
      inflater: Has inflated nothing yet.
      entry: What the inbox keeps of it: its size and the held bytes.
    """

    __slots__ = ("entry", "inflater")

    def __init__(self, inflater: Inflater, entry: list[int]) -> None:
        self.inflater = inflater
        self.entry = entry


class InlineAllowance:
    """How many bytes the inboxes of a connection may still inflate of the data of this read."""

    __slots__ = ("left_bytes",)

    def __init__(self) -> None:
        self.left_bytes = INLINE_INFLATED_BYTES_MAX


Message: TypeAlias = bytes | bytearray | DeflatedMessage


class MessageInbox:
    """The messages a client sends in one call.

    Memory grows with what arrived, never with what a length claims. Payload is held, that is
    kept from the flow-control windows, until its message is consumed. An incomplete message may
    be larger than the window, so it is not held while no complete one waits in front of it.

    Args:
      encoding: Coding of the messages flagged as compressed; a supported one.
      message_bytes_max: Largest message, as it comes and decompressed.
      inline: What may be inflated at once.

    Attributes:
      buffered_bytes: Size of the incomplete message and of those read and not consumed.
    """

    __slots__ = (
        "_body",
        "_compressed",
        "_encoding",
        "_held_bytes",
        "_inline",
        "_message_bytes_max",
        "_missing_bytes",
        "_prefix",
        "_unconsumed",
        "buffered_bytes",
    )

    def __init__(self, encoding: str, message_bytes_max: int, inline: InlineAllowance) -> None:
        self._encoding = encoding
        self._inline = inline
        self._message_bytes_max = message_bytes_max
        self._prefix = b""
        self._body: bytearray | None = None
        self._missing_bytes = 0
        self._compressed = False
        self._held_bytes = 0
        self._unconsumed: deque[list[int]] = deque()  # size and held bytes, oldest first
        self.buffered_bytes = 0

    @property
    def unconsumed_messages(self) -> int:
        """Messages read and not consumed."""
        return len(self._unconsumed)

    def read(self, data: memoryview, messages: list[Message]) -> int:
        """Append the messages that `data` completes to `messages`; copies payload once.

        Returns:
          The bytes to give back to the windows.

        Raises:
          MessageError: A message cannot be taken.
        """
        size = len(data)
        self._held_bytes += size
        position = 0
        while position < size:
            if self._body is not None:
                stop = min(position + self._missing_bytes, size)
                self._body += data[position:stop]
                self.buffered_bytes += stop - position
                self._missing_bytes -= stop - position
                position = stop
                if not self._missing_bytes:
                    body, self._body = self._body, None
                    self.buffered_bytes -= len(body)
                    messages.append(self._complete(body, size - position))
                continue
            start = position - len(self._prefix)
            prefix = self._prefix + bytes(data[position : start + PREFIX_BYTES])
            position = start + PREFIX_BYTES
            if position > size:
                self._prefix = prefix
                break
            self._prefix = b""
            length = self._begin(prefix)
            stop = position + length
            if stop <= size:
                messages.append(self._complete(bytes(data[position:stop]), size - stop))
                position = stop
            else:
                self._body = bytearray()
                self._missing_bytes = length
        return 0 if self._unconsumed else self._release()

    def finish(self) -> None:
        """Take the end of the client's messages.

        Raises:
          MessageError: The last one is incomplete.
        """
        if self._body is not None or self._prefix:
            raise MessageError(
                Status.INTERNAL, "The last message must be complete, its end did not come."
            )

    def consume(self, n_bytes: int) -> int:
        """Consume `n_bytes` of messages, oldest first, and return the bytes to give back."""
        unconsumed = self._unconsumed
        credit = 0
        while unconsumed and unconsumed[0][0] <= n_bytes:
            size, held_bytes = unconsumed.popleft()
            n_bytes -= size
            credit += held_bytes
            self.buffered_bytes -= size
        if unconsumed:
            unconsumed[0][0] -= n_bytes
            self.buffered_bytes -= n_bytes
            return credit
        return credit + self._release()

    def inflated(self, message: DeflatedMessage) -> None:
        """Account for a message that has been inflated meanwhile."""
        entry = message.entry
        size = len(message.inflater.message)
        self.buffered_bytes += size - entry[0]
        entry[0] = size

    def close(self) -> int:
        """Drop everything and return the bytes to give back."""
        credit = self._release() + sum(held_bytes for _, held_bytes in self._unconsumed)
        self._unconsumed.clear()
        self._body = None
        self.buffered_bytes = 0
        return credit

    def _release(self) -> int:
        held_bytes, self._held_bytes = self._held_bytes, 0
        return held_bytes

    def _begin(self, prefix: bytes) -> int:
        """Check a message's prefix and return its length."""
        flag, length = prefix[0], int.from_bytes(prefix[1:], "big")
        if flag > 1:
            raise MessageError(
                Status.INTERNAL, f"The compressed flag of a message must be 0 or 1, got {flag}."
            )
        if length > self._message_bytes_max:
            raise MessageError(
                Status.RESOURCE_EXHAUSTED,
                f"A message may have {self._message_bytes_max} bytes, this one has {length}.",
            )
        if flag and self._encoding == IDENTITY:
            raise MessageError(
                Status.INTERNAL, "A compressed message must come with grpc-encoding in the headers."
            )
        self._compressed = flag == 1
        return length

    def _complete(self, message: bytes | bytearray, following_bytes: int) -> Message:
        """Account for a message; of the held bytes the last `following_bytes` are not its own."""
        whole = True
        if self._compressed:
            inflated = self._inflate_some(message)
            whole = inflated is not None
            message = inflated if inflated is not None else message
        size = len(message)
        entry = [size, self._held_bytes - following_bytes]
        self._unconsumed.append(entry)
        self._held_bytes = following_bytes
        self.buffered_bytes += size
        if whole:
            return message
        return DeflatedMessage(Inflater(message, self._encoding, self._message_bytes_max), entry)

    def _inflate_some(self, message: bytes | bytearray) -> bytearray | None:
        """Inflate a message that is not too large for it to be done at once, else None."""
        left_bytes = self._inline.left_bytes
        if not left_bytes:
            return None
        inflater = Inflater(message, self._encoding, self._message_bytes_max)
        inflater.step(left_bytes)
        self._inline.left_bytes = left_bytes - len(inflater.message)
        return inflater.message if inflater.is_whole else None
