"""What a gRPC session reports: calls that start, their messages, and how they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from grpclib.const import Status

from .grpc_headers import CallHead
from .grpc_messages import DeflatedMessage


@dataclass(slots=True)
class CallStarted:
    """A client has begun a call.

    Attributes:
      stream_id: Names the call from here on.
      path: The method, as "/package.Service/Method"; not checked.
      timeout_s: Time the client gives it from now on, in seconds, or None.
      head: The rest of what its headers say.
    """

    stream_id: int
    path: str
    timeout_s: float | None
    head: CallHead

    @property
    def metadata(self) -> dict[str, list[str | bytes]]:
        """The client's metadata by lower-case key; shared, so it must not be changed."""
        return self.head.metadata

    @property
    def encoding(self) -> str:
        """How its compressed messages are coded."""
        return self.head.encoding

    @property
    def accept_encoding(self) -> str:
        """The codings the client takes, as it listed them."""
        return self.head.accept_encoding


@dataclass(slots=True)
class MessageReceived:
    """A whole message of a call, decompressed; the receiver owns `data`.

    Attributes:
      stream_id: The call.
      data: The message.
      ends: Whether it is known to be the client's last; no `HalfClosed` follows then.
    """

    stream_id: int
    data: bytes | bytearray
    ends: bool = False


@dataclass(slots=True)
class DeflatedReceived:
    """A whole message of a call, to be decompressed and then given to `GrpcSession.inflated`.

    Attributes:
      stream_id: The call.
      message: The message.
      ends: As in `MessageReceived`.
    """

    stream_id: int
    message: DeflatedMessage
    ends: bool = False


@dataclass(slots=True)
class HalfClosed:
    """The client sends no more messages in this call."""

    stream_id: int


@dataclass(slots=True)
class CallCancelled:
    """The call is over: the client gave it up, left, or did something wrong in it.

    Nothing more can be sent in it, and no event of it follows.

    Attributes:
      stream_id: The call.
      reason: Why, in a sentence.
      status: What the client was told, if it was; else CANCELLED.
    """

    stream_id: int
    reason: str
    status: Status = Status.CANCELLED


@dataclass(slots=True)
class WindowOpened:
    """Nothing of the call is held back by flow control any more."""

    stream_id: int


class ConnectionEvent:
    """What happens to the connection and to no one call."""

    __slots__ = ()


@dataclass(slots=True)
class ClientPinged(ConnectionEvent):
    """The client has pinged, which is answered already.

    Attributes:
      repeated: Whether nothing but idle talk has passed since its last ping.
    """

    repeated: bool


@dataclass(slots=True)
class ConnectionClosed(ConnectionEvent):
    """The connection is over, by the client's end or by its fault; close it after the output."""

    reason: str


CallEvent: TypeAlias = MessageReceived | HalfClosed | CallCancelled | WindowOpened
"""What happens to a call that has started."""
GrpcEvent: TypeAlias = CallStarted | CallEvent | DeflatedReceived | ClientPinged | ConnectionClosed
