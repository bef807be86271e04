"""What clients hear whose requests are left when the exit timeout passes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import UNAVAILABLE, infer_message
from tests.support.http_client import request_bytes
from tests.support.memory_server import memory_server
from tritrio.actors.frontend import EXIT_TIMEOUT_PASSED


async def test_requests_that_are_queued_or_executing_are_told_that_the_server_exits(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 9.0}) as server:
        executing, queued = server.http(), server.http()
        executing.infer("plain", [[1]])
        executing.infer("plain", [[5]])  # pipelined behind it
        await wait_all_tasks_blocked()
        queued.infer("plain", [[2]])
        grpc = server.grpc()
        call = grpc.infer("plain", [[3]])
        stream = grpc.stream()
        stream.send(infer_message("plain", [[4]]))
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        await trio.sleep(1)
        server.parts.http.cut()
        server.parts.grpc.cut()
        for client in (executing, queued):
            answer = await client.response()
            assert (answer.status, answer.json) == (503, {"error": EXIT_TIMEOUT_PASSED})
            assert answer.headers["connection"] == "close"
            assert await client.closed() - server.start_s == 1.0
        for each in (call, stream):
            assert (await each.done(), each.text) == (UNAVAILABLE, EXIT_TIMEOUT_PASSED)
        await server.drained()
        assert server.elapsed_s() == 1.0


async def test_a_stream_that_has_begun_is_cut_without_another_word(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http(capacity_bytes=400)
        body = orjson.dumps({"INPUT0": [7, 50]})
        client.send(request_bytes("/v2/models/repeat/generate_stream", body))
        assert (await client.head()).status == 200
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        server.parts.http.cut()
        rest = client.buffer
        with suppress(trio.BrokenResourceError):
            while data := await client.end.read():
                rest += data
        assert b"data:" in rest
        assert b"HTTP/1.1" not in rest
        await server.drained()


async def test_a_client_that_reads_nothing_does_not_hold_up_the_cut(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 9.0}) as server:
        client = server.http(capacity_bytes=10)
        client.infer("plain", [[1]])
        grpc = server.grpc(capacity_bytes=100)
        grpc.call("ServerMetadata", b"", response_type=pb.ServerMetadataResponse, flush=False)
        grpc.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        server.parts.http.cut()
        server.parts.grpc.cut()
        await server.drained()
        assert server.elapsed_s() == 0.0


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_frontends_say_in_words_what_a_stop_waits_for(
    count: int, autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        for _ in range(count):
            server.http()
        await wait_all_tasks_blocked()
        words = ("HTTP has 0 connections", "HTTP has 1 connection", "HTTP has 2 connections")
        assert str(server.parts.http) == words[count]
