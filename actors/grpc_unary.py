"""The methods of the inference service that take one message and answer with one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from grpclib.const import Cardinality, Handler

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.pb import inference as pb
from .grpc_stream import GrpcStream

SERVICE: Final = "inference.GRPCInferenceService"
"""The service of the inference protocol and its extensions."""

UnaryMethod: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Answers a request message with a response message, or raises `RequestError`."""


def unary_handlers(methods: Mapping[str, UnaryMethod]) -> dict[str, Handler]:
    """Return path -> grpclib handler.

    Args:
      methods: Name -> implementation; its messages are <name>Request and <name>Response.
    """
    return {f"/{SERVICE}/{name}": _handler(name, method) for name, method in methods.items()}


def _handler(name: str, method: UnaryMethod) -> Handler:
    request_type, response_type = (getattr(pb, f"{name}{kind}") for kind in ("Request", "Response"))

    async def handle(stream: GrpcStream) -> None:
        message = await stream.recv_message()
        if message is None:
            raise RequestError(ErrorCode.INTERNAL, "expected one request message, got none")
        await stream.send_message(await method(message))

    return Handler(handle, Cardinality.UNARY_UNARY, request_type, response_type)
