"""Shutdown of the frontends, and what they survive."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import OK, UNAVAILABLE, framed, infer_message, rows_of
from tests.support.http_client import infer_bytes, request_bytes
from tests.support.memory_server import memory_server
from tests.support.memory_stream import connection
from tritrio.actors._connection_watch import DRAINING_WRITE_S, TICK_S
from tritrio.actors.byte_stream import ByteStream
from tritrio.actors.frontend import Frontend
from tritrio.actors.grpc_connection import GOAWAY_GRACE_S

STREAM_ID_MAX = 2**31 - 1


async def test_idle_connections_close_when_a_shutdown_begins(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        fresh, used, grpc = server.http(), server.http(), server.grpc()
        await used.ask("plain", [[1]])
        server.begin_shutdown()
        assert await fresh.closed() == server.start_s
        assert await used.closed() == server.start_s
        assert await grpc.closed() - server.start_s == GOAWAY_GRACE_S
        await server.drained()
        assert server.elapsed_s() == GOAWAY_GRACE_S
        assert grpc.goaways == [
            (server.start_s, STREAM_ID_MAX),
            (server.start_s + GOAWAY_GRACE_S, 0),
        ]


async def test_busy_connections_get_their_answers_and_close_then(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 4.0, "batched": 2.0}) as server:
        http, grpc = server.http(), server.grpc()
        http.infer("plain", [[1]])
        call = grpc.infer("batched", [[2]] * 4)
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        response = await http.response()
        assert response.rows == [[1]]
        assert response.headers["connection"] == "close"
        assert await http.closed() - server.start_s == 4.0
        assert call.status == OK
        assert rows_of(call.messages[0]) == [[2]] * 4
        assert call.ended_s - server.start_s == 2.0
        assert await grpc.closed() - server.start_s == 2.0
        await server.drained()
        assert server.elapsed_s() == 4.0
        assert server.counts("plain") == (1, 0, 0)


async def test_pipelined_requests_are_all_answered_before_the_close(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.http()
        for number in range(3):
            client.infer("plain", [[number]])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        answers = [await client.response() for _ in range(3)]
        assert [answer.rows for answer in answers] == [[[0]], [[1]], [[2]]]
        assert ["connection" in answer.headers for answer in answers] == [False, False, True]
        assert await client.closed() - server.start_s == 3.0
        await server.drained()


async def test_connection_whose_answer_is_being_read_closes_after_it(
    autojump_clock: MockClock, models: Path
) -> None:
    """The answer had begun, and promised that the connection stays open."""
    async with memory_server(models) as server:
        client = server.http(capacity_bytes=10)
        client.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        response = await client.response()
        assert response.rows == [[1]]
        assert "connection" not in response.headers
        assert await client.closed() == server.start_s
        await server.drained()


@pytest.mark.parametrize("missing", [1, 200])
async def test_request_that_has_come_in_part_does_not_hold_the_shutdown(
    autojump_clock: MockClock, models: Path, missing: int
) -> None:
    """Half a body, or half a head."""
    async with memory_server(models) as server:
        client = server.http()
        data = infer_bytes("plain", [list(range(30))])
        client.send(data[:-missing])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        assert await client.closed() == server.start_s
        await server.drained()


async def test_half_a_request_behind_one_in_flight_does_not_hold_the_shutdown(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.http()
        data = infer_bytes("plain", [[1]])
        client.send(data + data[:-1])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        response = await client.response()
        assert response.rows == [[1]]
        assert response.headers["connection"] == "close"
        await server.drained()
        assert server.elapsed_s() == 1.0


async def test_grpc_connection_without_a_word_does_not_hold_the_shutdown(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        for greeting in (b"", b"PRI * HTTP/2.0"):
            end, stream = connection()
            server.nursery.start_soon(server.parts.grpc.serve, stream)
            end.write(greeting)
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        await server.drained()
        assert server.elapsed_s() == GOAWAY_GRACE_S


@pytest.mark.parametrize("method", ["ModelInfer", "ServerLive"])
@pytest.mark.parametrize("size", [0, 3])
async def test_grpc_call_whose_request_is_still_coming_ends_with_the_shutdown(
    autojump_clock: MockClock, models: Path, method: str, size: int
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        call = client.call(method)
        client.send_data(call.stream_id, framed(infer_message("plain", [[1]]))[:size], end=False)
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        assert await call.done() == UNAVAILABLE
        assert call.text == "the server is exiting"
        await server.drained()
        assert server.elapsed_s() == GOAWAY_GRACE_S


async def test_new_inference_is_refused_once_a_shutdown_began(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        http, grpc = server.http(), server.grpc()
        http.infer("plain", [[1]])
        running = grpc.infer("plain", [[2]])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        http.infer("plain", [[3]])
        refused = grpc.infer("plain", [[4]])
        assert await refused.done() == UNAVAILABLE
        assert [(await http.response()).status for _ in range(2)] == [200, 503]
        assert await running.done() == OK
        await server.drained()
        assert server.counts("plain") == (2, 0, 0)


async def test_connection_that_comes_during_the_shutdown_is_closed(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        busy = server.http()
        busy.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        http, grpc = server.http(), server.grpc()
        assert await http.closed() == server.start_s
        assert await grpc.closed() - server.start_s == GOAWAY_GRACE_S
        await busy.response()
        await server.drained()
        assert server.elapsed_s() == 1.0


async def test_open_stream_ends_with_the_shutdown_once_it_is_answered(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.grpc()
        stream = client.stream()
        stream.send(infer_message("plain", [[1]]))
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        await stream.received(1)
        assert await stream.done() == UNAVAILABLE
        await server.drained()
        assert server.elapsed_s() == 1.0


@pytest.mark.parametrize("steps", range(12))
async def test_shutdown_may_begin_at_any_step_of_a_connections_end(
    autojump_clock: MockClock, models: Path, steps: int
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        await wait_all_tasks_blocked()
        client.end.reset()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        server.begin_shutdown()
        await server.drained()


async def test_stream_without_requests_ends_with_the_shutdown(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        assert await stream.done() == UNAVAILABLE
        await server.drained()
        assert server.elapsed_s() == GOAWAY_GRACE_S


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_client_that_never_reads_is_cut_soon_once_a_shutdown_began(
    autojump_clock: MockClock, models: Path, protocol: str
) -> None:
    async with memory_server(models) as server:
        if protocol == "http":
            server.http(capacity_bytes=10).infer("plain", [[1]])
        else:
            server.grpc(capacity_bytes=10, reads=False).infer("plain", [[1]])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        await server.drained()
        assert DRAINING_WRITE_S <= server.elapsed_s() <= DRAINING_WRITE_S + 2 * TICK_S


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_client_whose_flow_control_is_closed_is_cut_soon_once_a_shutdown_began(
    autojump_clock: MockClock, models: Path, method: str
) -> None:
    """The answer is there, or its stream waits to send more; the client takes nothing."""
    async with memory_server(models) as server:
        client = server.grpc(window_bytes=0)
        call = client.call(method, end=False)
        model, row = ("plain", [1]) if method == "ModelInfer" else ("repeat", [1, 300_000])
        call.send(infer_message(model, [row]), end=method == "ModelInfer")
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        await server.drained()
        assert DRAINING_WRITE_S <= server.elapsed_s() <= DRAINING_WRITE_S + 2 * TICK_S


async def test_client_that_reads_slowly_is_not_cut_by_a_shutdown(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http(capacity_bytes=16)
        client.infer("plain", [list(range(100))])
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        received = b""
        while not received.endswith(b"]}]}"):
            await trio.sleep(DRAINING_WRITE_S - 1.5)
            received += await client.end.read()
        assert server.elapsed_s() > 10 * DRAINING_WRITE_S
        await server.drained()


async def test_health_says_so_once_a_shutdown_began(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client, grpc = server.http(), server.grpc()
        client.send(infer_bytes("plain", [[1]]) + request_bytes("/v2/health/ready"))
        await wait_all_tasks_blocked()
        server.begin_shutdown()
        call = grpc.call("ServerReady", b"", response_type=pb.ServerReadyResponse)
        assert await call.done() == OK
        assert not call.messages[0].ready


async def test_fault_in_one_connection_ends_no_other(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client, broken = server.http(), server.http()
        client.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        mine = next(c for c in server.parts.http._connections if not c._queue)  # type: ignore[attr-defined]
        del mine._session  # type: ignore[attr-defined]
        broken.send(b"GET")
        await broken.closed()
        assert (await client.response()).rows == [[1]]
        (record,) = [record for record in caplog.records if record.name == "tritrio.frontend"]
        assert record.levelno == logging.ERROR


class _Quick:
    """A connection that greets and closes."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def run(self) -> None:
        await self._stream.send_all([b"hello"])
        await self._stream.aclose()

    def begin_shutdown(self) -> None:
        pass

    def tick(self) -> None:
        pass

    def cut(self, reason: str) -> None:
        pass


async def test_shutdown_closes_the_listeners() -> None:
    frontend = Frontend("HTTP", _Quick)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(frontend.run, listeners)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            assert await stream.receive_some(10) == b"hello"
        frontend.begin_shutdown()
        await frontend.drained()
        await wait_all_tasks_blocked()
        probe = socket.socket()
        with probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        nursery.cancel_scope.cancel()


async def test_shutdown_may_begin_while_a_connection_is_closing(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        end, stream = connection()
        closing = trio.Event()
        close = stream.aclose

        async def slow_close() -> None:
            closing.set()
            with trio.CancelScope(shield=True):
                await trio.sleep(1.0)
            await close()

        stream.aclose = slow_close  # type: ignore[method-assign]
        server.nursery.start_soon(server.parts.grpc.serve, stream)
        end.close()
        await closing.wait()
        server.begin_shutdown()
        await server.drained()
        assert server.elapsed_s() == 1.0
