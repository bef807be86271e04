"""Server reflection beside other calls: a client with many questions holds nobody up."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import OK, UNAVAILABLE, framed
from tests.support.memory_server import memory_server
from tritrio.protocol.pb.grpc.reflection.v1 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

PATH = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
QUESTION = bytes(ServerReflectionRequest(list_services=""))


class Reply:
    """As protobuf's classes are used."""

    FromString = staticmethod(ServerReflectionResponse.parse)


async def test_other_calls_are_answered_between_the_answers_to_many_questions(
    autojump_clock: MockClock, models: Path
) -> None:
    count = 1000
    async with memory_server(models) as server:
        asking, other = server.grpc(), server.grpc()
        call = asking.call(PATH, response_type=Reply)
        asking.send_data(call.stream_id, framed(QUESTION) * count, end=True)
        for _ in range(10):
            live = other.call("ServerLive", b"", response_type=pb.ServerLiveResponse)
            assert await live.done() == OK
        assert 0 < len(call.messages) < count
        assert await call.done() == OK
        assert len(call.messages) == count


async def test_a_stop_ends_the_stream_of_a_client_that_asks_no_more(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        call = server.grpc().call(PATH, QUESTION, end=False, response_type=Reply)
        await call.received(1)
        server.begin_shutdown()
        assert await call.done() == UNAVAILABLE
        assert len(call.messages) == 1
