"""One gRPC call, and what a client sees of its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb

from .cases import Case, Json
from .servers import HOST, Server

CALL_LIMIT_S = 10.0
SERVICE = "inference.GRPCInferenceService"
MESSAGE_BYTES_MAX = 2**31 - 1

Message: TypeAlias = Any
"""A protobuf message, or bytes that are sent as they are."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call; of several messages if the method streams.

    Attributes:
      method: The method's name, or a whole path.
      compression: How the client compresses its messages.
    """

    method: str
    messages: tuple[Message, ...]
    metadata: tuple[tuple[str, str], ...] = ()
    compression: grpc.Compression = grpc.Compression.NoCompression

    @property
    def streams(self) -> bool:
        """Whether it is the streaming method."""
        return self.method == "ModelStreamInfer"


@dataclass(frozen=True, slots=True)
class GrpcSeen:
    """What a client sees.

    Attributes:
      status: The name of the status the call ended with.
      json: The reply as its JSON form, every field printed; of a stream, the list of them.
      errors: The status text of a failed call, or the error messages of a stream.
    """

    status: str
    json: Json
    errors: tuple[str, ...] = ()

    def comparable(self) -> dict[str, Any]:
        """Everything but error texts."""
        return {"status": self.status, "json": self.json, "errors": len(self.errors)}


def exchange(server: Server, case: Case[Call], limit_s: float = CALL_LIMIT_S) -> GrpcSeen:
    """Make the case's call on its own channel and read the answer to its end."""
    call, mask = case.request, case.mask
    path = call.method if "/" in call.method else f"/{SERVICE}/{call.method}"
    options: dict[str, Any] = {
        "metadata": call.metadata,
        "compression": call.compression,
        "timeout": limit_s,
    }
    with _channel(server) as channel:
        kind = channel.stream_stream if call.streams else channel.unary_unary
        method = kind(path, request_serializer=_bytes_of, response_deserializer=_reader(call))
        replies: list[Json] = []
        errors: list[str] = []
        try:
            if call.streams:
                for reply in method(iter(call.messages), **options):
                    replies.append(_stream_reply(reply, errors))
            else:
                (message,) = call.messages
                replies.append(_as_json(method(message, **options)))
        except grpc.RpcError as error:
            return GrpcSeen(error.code().name, replies, (*errors, error.details()))
    content = replies if call.streams else replies[0]
    return GrpcSeen("OK", mask(content) if mask else content, tuple(errors))


@contextmanager
def _channel(server: Server) -> Iterator[grpc.Channel]:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ]
    channel = grpc.insecure_channel(f"{HOST}:{server.ports.grpc}", options)
    try:
        yield channel
    finally:
        channel.close()


def _bytes_of(message: Message) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def _reader(call: Call) -> Callable[[bytes], Message]:
    reply = getattr(pb, f"{call.method}Response", None)
    return bytes if reply is None else reply.FromString


def _as_json(message: Message) -> Json:
    if isinstance(message, bytes):
        return message.hex()
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _stream_reply(message: Message, errors: list[str]) -> Json:
    content = _as_json(message)
    if message.error_message:
        errors.append(message.error_message)
        content["error_message"] = "a text"
    return content
