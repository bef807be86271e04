"""The `grpc.reflection` services, v1 and v1alpha: tools such as grpcurl learn the services here."""

from __future__ import annotations

from typing import Final, final

import trio
from grpclib.const import Cardinality, Handler

from ..protocol.errors import invalid_argument
from ..protocol.grpc_codec import parse_message
from ..protocol.grpc_reflection import served_descriptors
from ..protocol.pb.grpc.reflection.v1 import ServerReflectionRequest, ServerReflectionResponse
from .grpc_stream import GrpcStream

QUESTION_BYTES_MAX: Final = 64 * 1024
"""A question is a name or two, and its answer repeats it."""


@final
class ReflectionService:
    """Answers questions one after the other, none before the client takes the answers."""

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler."""
        handler = Handler(
            self._answer_all,
            Cardinality.STREAM_STREAM,
            ServerReflectionRequest,
            ServerReflectionResponse,
        )
        return {
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo": handler
            for version in ("v1", "v1alpha")
        }

    async def _answer_all(self, stream: GrpcStream) -> None:
        while (data := await stream.recv_bytes()) is not None:
            size = len(data)
            if size > QUESTION_BYTES_MAX:
                raise invalid_argument(
                    f"a reflection request may have {QUESTION_BYTES_MAX} bytes, got {size}"
                )
            question = parse_message(ServerReflectionRequest, data)
            stream.release(size)
            await stream.send_message(served_descriptors().answer(question))
            await trio.lowlevel.checkpoint()  # a client may ask a hundred thousand at once
