"""The shared memory calls, and servers that lend none, over connections in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import (
    NOT_FOUND,
    OK,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Call,
    GrpcClient,
)
from tests.support.memory_server import memory_server
from tests.support.memory_stream import connection
from tests.support.regions import (
    CUDA,
    INFER,
    ROW,
    SYSTEM,
    grpc_message,
    http_body,
    post,
)
from tests.support.shared_memory import PAGE, shared_object
from tritrio.actors.grpc_connection import GrpcConnection
from tritrio.actors.grpc_service import InferenceService, ModelInfer
from tritrio.actors.grpc_settings import GrpcSettings
from tritrio.actors.grpc_shared_memory import GrpcSharedMemory
from tritrio.actors.http_api import HttpApi
from tritrio.actors.http_shared_memory import HttpSharedMemory
from tritrio.actors.server_info import ServerInfo
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.grpc_headers import CallHead
from tritrio.protocol.http_request import HTTP_1_1, HttpRequest
from tritrio.protocol.http_response import HttpResponse


@pytest.fixture
def item() -> Iterator[Path]:
    """An object of two pages."""
    with shared_object(2 * PAGE) as path:
        yield path


async def test_registering_is_off_by_default_and_says_how_it_is_switched_on(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        for path in (f"{SYSTEM}/region/r/register", f"{CUDA}/region/r/register"):
            answer = await post(client, path)
            assert answer.status == 501
            assert "--allow-client-shm" in answer.json["error"]
        for path in (f"{SYSTEM}/unregister", f"{CUDA}/region/r/unregister"):
            assert (await post(client, path)).status == 501
        for path in (f"{SYSTEM}/status", f"{CUDA}/status"):
            client.get(path)
            assert (await client.response()).json == []
        assert (await post(client, INFER, http_body(ROW, ("r", 0, 12), None))).status == 404
        calls = {
            "SystemSharedMemoryRegister": UNIMPLEMENTED,
            "SystemSharedMemoryUnregister": UNIMPLEMENTED,
            "CudaSharedMemoryRegister": UNIMPLEMENTED,
            "CudaSharedMemoryUnregister": UNIMPLEMENTED,
            "SystemSharedMemoryStatus": OK,
            "CudaSharedMemoryStatus": OK,
        }
        grpc = server.grpc()
        assert {name: await grpc.call(name, b"").done() for name in calls} == calls
        call = grpc.call("ModelInfer", grpc_message(ROW, ("r", 0, 12), None))
        assert await call.done() == NOT_FOUND


async def test_grpc_registers_lists_and_unregisters(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with memory_server(models, allow_client_shared_memory=True) as server:
        client = server.grpc()

        def call(method: str, **fields: Any) -> Call:
            message = getattr(pb, f"{method}Request")(**fields)
            return client.call(method, message, response_type=getattr(pb, f"{method}Response"))

        register = call(
            "SystemSharedMemoryRegister", name="a", key=item.name, offset=PAGE, byte_size=64
        )
        assert await register.done() == OK
        listing = call("SystemSharedMemoryStatus")
        assert await listing.done() == OK
        (region,) = listing.messages[0].regions.values()
        assert (region.name, region.key, region.offset, region.byte_size) == (
            "a",
            item.name,
            PAGE,
            64,
        )
        assert await call("CudaSharedMemoryUnregister", name="a").done() == OK
        assert await call("SystemSharedMemoryStatus", name="a").done() == OK
        assert await call("CudaSharedMemoryStatus", name="a").done() == NOT_FOUND
        assert await call("SystemSharedMemoryUnregister", name="a").done() == OK
        assert await call("SystemSharedMemoryStatus", name="a").done() == NOT_FOUND


HEAD = CallHead([(b":method", b"POST"), (b":path", b"/x"), (b"content-type", b"application/grpc")])


async def test_a_server_without_shared_memory_says_so(
    autojump_clock: MockClock, models: Path, item: Path
) -> None:
    async with memory_server(models) as server:
        router, budget = server.core.router, server.parts.budget
        info = ServerInfo("test", "1")
        api = HttpApi(
            router=router,
            info=info,
            input_bytes_max=1000,
            budget=budget,
            tracing=server.core.tracing,
        )
        api.extend(HttpSharedMemory(None).mapping())
        for path, body in (
            (f"{SYSTEM}/region/r/register", b"{}"),
            (f"{CUDA}/unregister", b""),
            (INFER, orjson.dumps(http_body(ROW, ("r", 0, 12), None))),
        ):
            response = await api.handle(http_request(path, body))
            assert isinstance(response, HttpResponse)
            assert response.status == 503
            assert isinstance(response.body, bytes)
            assert b"no support for shared memory" in response.body
        message = grpc_message(ROW, ("r", 0, 12), None).SerializeToString()
        answer = ModelInfer(router, server.core.tracing).start(
            message,
            trio.current_time(),
            HEAD,
        )
        with pytest.raises(RequestError) as caught:
            await answer  # type: ignore[misc]
        assert caught.value.code is ErrorCode.UNAVAILABLE
        service = InferenceService(router=router, info=info, tracing=server.core.tracing)
        handlers = service.mapping() | GrpcSharedMemory(None).mapping()
        end, stream_end = connection()
        connected = GrpcConnection(
            stream=stream_end, handlers=handlers, direct={}, budget=budget, settings=GrpcSettings()
        )
        server.nursery.start_soon(connected.run)
        client = GrpcClient(end)
        server.clients.append(client)
        server.nursery.start_soon(client.run)
        assert await client.call("CudaSharedMemoryStatus", b"").done() == UNAVAILABLE
        stream = client.stream()
        stream.send(grpc_message(ROW, ("r", 0, 12), None), end=True)
        assert await stream.done() == OK
        assert "no support for shared memory" in stream.messages[0].error_message


def http_request(path: str, body: bytes) -> HttpRequest:
    return HttpRequest(
        method=b"POST",
        target=path.encode(),
        path=path.encode(),
        version=HTTP_1_1,
        headers={},
        raw_headers=[],
        content_length=len(body),
        keep_alive=True,
        expects_continue=False,
        body=body,
    )
