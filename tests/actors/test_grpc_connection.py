"""gRPC connections of the whole server: deadlines, starvation, faults, all in virtual time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    OK,
    UNIMPLEMENTED,
    framed,
    infer_message,
    rows_of,
)
from tests.support.memory_server import memory_server
from tests.support.memory_stream import connection
from tritrio.actors._connection_watch import TICK_S, Patience
from tritrio.actors.grpc_settings import GrpcSettings
from tritrio.actors.grpc_stream import UNSENT_BYTES_MAX
from tritrio.protocol.errors import FailureReason

IDLE_S = GrpcSettings().patience.idle_s
HEAD_S = GrpcSettings().patience.head_s
LIVE = "ServerLive"


@pytest.mark.parametrize(
    ("limit", "seconds"), [("0m", 0.0), ("250m", 0.25), ("1S", 1.0), ("2M", 120.0)]
)
async def test_deadline_expires_exactly_and_cancels_the_request(
    autojump_clock: MockClock, models: Path, limit: str, seconds: float
) -> None:
    async with memory_server(models, seconds={"plain": 1000.0}) as server:
        client = server.grpc()
        client.infer("plain", [[1]], request_id="busy")
        await wait_all_tasks_blocked()
        call = client.infer("plain", [[2]], request_id="late", timeout=limit)
        assert await call.done() == DEADLINE_EXCEEDED
        assert call.text == "the call's deadline has passed"
        assert call.ended_s - server.start_s == seconds
        await wait_all_tasks_blocked()
        assert server.statistics("plain").failures[FailureReason.CANCELED] == 1
        assert server.counts("plain") == (0, 1, 0)
        await trio.sleep(2000.0)
        assert [execution.ids for execution in server.executions] == [("busy",)]


async def test_deadline_expires_while_the_request_executes(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 4.0}) as server:
        call = server.grpc().infer("plain", [[1]], timeout="1S")
        assert await call.done() == DEADLINE_EXCEEDED
        assert call.ended_s - server.start_s == 1.0
        assert call.messages == []
        await trio.sleep(5.0)
        assert server.counts("plain") == (0, 1, 0)
        assert server.statistics("plain").failures[FailureReason.CANCELED] == 1


async def test_deadline_expires_before_the_request_is_complete(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        call = client.infer("plain", [[1]], timeout="3S", end=False)
        assert await call.done() == DEADLINE_EXCEEDED
        assert call.ended_s - server.start_s == 3.0
        assert server.counts("plain") == (0, 0, 0)


async def test_deadlines_of_many_calls_expire_each_in_its_time(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1000.0}) as server:
        client = server.grpc()
        delays_s = [5, 1, 4, 2, 3, 1]
        calls = [client.infer("plain", [[1]], timeout=f"{delay_s}S") for delay_s in delays_s]
        calls[4].cancel()
        for call in calls:
            await call.done()
        expired = [call for call in calls if call is not calls[4]]
        assert [call.ended_s - server.start_s for call in expired] == [5, 1, 4, 2, 1]


async def test_deadline_of_a_stream_expires_exactly_and_cancels_all_of_it(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 2.0}) as server:
        stream = server.grpc().stream(timeout="3S")
        for number in range(3):
            stream.send(infer_message("plain", [[number]]))
        assert await stream.done() == DEADLINE_EXCEEDED
        assert stream.ended_s - server.start_s == 3.0
        assert [rows_of(m.infer_response) for m in stream.messages] == [[[0]]]
        await trio.sleep(5.0)
        assert server.counts("plain") == (1, 2, 0)
        assert len(server.executions) == 2


async def test_call_that_is_answered_in_time_ignores_its_deadline(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.grpc()
        call = client.infer("plain", [[1]], timeout="2S")
        assert await call.done() == OK
        await trio.sleep(5.0)
        assert await client.infer("plain", [[2]], timeout="2S").done() == OK
        assert server.counts("plain") == (2, 0, 0)


async def test_calls_are_answered_as_they_finish(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.grpc()
        slow = client.infer("plain", [[1]])
        live = client.call(LIVE, pb.ServerLiveRequest(), response_type=pb.ServerLiveResponse)
        assert await live.done() == OK
        assert live.messages[0].live
        assert live.ended_s == server.start_s
        assert await slow.done() == OK
        assert slow.ended_s - server.start_s == 1.0


@pytest.mark.parametrize(
    ("path", "message", "status"),
    [
        ("ModelInfer", b"\xff\xff\xff", INTERNAL),
        ("ModelInfer", infer_message("missing", [[1]]), NOT_FOUND),
        ("ModelInfer", infer_message("plain", [[1]] * 5), INVALID_ARGUMENT),
        ("ModelInfer", infer_message("repeat", [[1]]), UNIMPLEMENTED),
        ("ModelMetadata", b"\x0a\x02\xff\xff", INTERNAL),
        ("ModelMetadata", pb.ModelMetadataRequest(name="missing"), NOT_FOUND),
        ("ModelMetadata", pb.ModelMetadataRequest(name="plain", version="7"), NOT_FOUND),
        ("NoSuchMethod", b"", UNIMPLEMENTED),
        ("/no.Such/Service", b"", UNIMPLEMENTED),
    ],
)
async def test_refused_call_gets_its_status_and_leaves_its_neighbours_alone(
    autojump_clock: MockClock,
    models: Path,
    *,
    path: str,
    message: object,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.grpc()
        neighbour = client.infer("plain", [[1]])
        call = client.call(path, message)
        assert await call.done() == status, call.text
        assert call.text
        assert call.ended_s == server.start_s
        assert await neighbour.done() == OK
        assert neighbour.ended_s - server.start_s == 1.0
        assert [record for record in caplog.records if record.name == "tritrio.grpc"] == []


@pytest.mark.parametrize("path", ["ModelInfer", "ModelMetadata"])
@pytest.mark.parametrize("count", [0, 2])
async def test_unary_call_has_exactly_one_request(
    autojump_clock: MockClock, models: Path, path: str, count: int
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        request = (
            infer_message("plain", [[1]])
            if path == "ModelInfer"
            else pb.ModelMetadataRequest(name="plain")
        )
        call = client.call(path, end=False, response_type=pb.ModelMetadataResponse)
        client.send_data(call.stream_id, framed(request) * count, end=True)
        if path == "ModelInfer" or not count:
            assert await call.done() == INTERNAL
            assert server.counts("plain") == (0, 0, 0)
        else:
            assert await call.done() == OK  # what it has no use for is not read
        assert await client.infer("plain", [[1]]).done() == OK


@pytest.mark.parametrize(
    ("target", "attribute", "method"),
    [
        ("tritrio.actors.grpc_service.ModelInfer", "start", "ModelInfer"),
        ("tritrio.actors.grpc_service.ModelInfer", "finish", "ModelInfer"),
        ("tritrio.actors.router.Router", "live", LIVE),
    ],
)
async def test_fault_of_the_server_is_internal_and_the_server_goes_on(
    autojump_clock: MockClock,
    models: Path,
    *,
    target: str,
    attribute: str,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    async with memory_server(models, seconds={"batched": 1.0}) as server:
        client = server.grpc()
        neighbour = client.infer("batched", [[1]])
        await wait_all_tasks_blocked()
        with monkeypatch.context() as patch:
            patch.setattr(f"{target}.{attribute}", fail)
            message = infer_message("plain", [[1]]) if method != LIVE else b""
            call = client.call(method, message)
            assert await call.done() == INTERNAL
        assert call.text == "the server failed to answer this call"
        assert await neighbour.done() == OK
        assert await client.infer("plain", [[2]]).done() == OK
        (record,) = [record for record in caplog.records if record.name == "tritrio.grpc"]
        assert record.levelno == logging.ERROR


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_bytes_may_come_in_any_pieces(
    autojump_clock: MockClock, models: Path, size: int
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        written: list[bytes] = []
        write = client.end.write
        client.end.write = written.append  # type: ignore[assignment, method-assign]
        calls = [client.infer("plain", [[number]]) for number in range(3)]
        while data := b"".join(written):
            written.clear()
            for start in range(0, len(data), size):
                write(data[start : start + size])
                await wait_all_tasks_blocked()
        assert [await call.done() for call in calls] == [OK] * 3
        assert [rows_of(call.messages[0]) for call in calls] == [[[0]], [[1]], [[2]]]


async def test_idle_connection_is_closed_in_time(autojump_clock: MockClock, models: Path) -> None:
    with trio.fail_after(3 * IDLE_S):
        async with memory_server(models) as server:
            client = server.grpc()
            await trio.sleep(1000.0)
            assert client.closed_s is None
            (connection,) = server.parts.grpc._connections
            for _ in range(int((IDLE_S - 1000.0) / TICK_S) + 1):  # time flies
                connection.tick()
            await wait_all_tasks_blocked()
            assert client.closed_s is not None


async def test_reader_of_nothing_is_cut_in_time(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        client = server.grpc(capacity_bytes=20, reads=False)
        client.infer("plain", [[1]])
        await trio.sleep(Patience().write_s)
        await wait_all_tasks_blocked()
        assert server.parts.grpc.connection_count == 1
        await trio.sleep(2 * TICK_S)
        assert server.parts.grpc.connection_count == 0
        assert server.used_bytes == 0


async def test_reader_that_is_slow_but_reads_is_not_cut(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc(capacity_bytes=16, reads=False)
        client.infer("plain", [[number] for number in range(4)])
        for _ in range(10):
            await trio.sleep(Patience().write_s / 2)
            assert await client.end.read()
        assert server.parts.grpc.connection_count == 1


async def test_protocol_error_ends_the_connection_and_cancels_its_calls(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.grpc()
        call = client.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        client.end.write(b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00")  # window + 0
        assert await client.closed() == server.start_s
        assert len(client.goaways) == 1
        assert await call.done() == -1
        await trio.sleep(1.0)
        await wait_all_tasks_blocked()
        assert server.counts("plain") == (0, 1, 0)


async def test_http_1_on_the_grpc_port_ends_the_connection(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        end, stream = connection()
        end.write(b"GET / HTTP/1.1\r\n\r\n")
        await server.parts.grpc.serve(stream)
        assert server.elapsed_s() == 0.0


async def test_decoupled_responses_wait_for_a_starved_reader(
    autojump_clock: MockClock, models: Path
) -> None:
    """Flow control holds the handlers back; when it opens all of them go on."""
    rows = [[number, 2000] for number in range(60)]
    async with memory_server(models) as server:
        client = server.grpc(window_bytes=0)
        stream = client.stream()
        requests = 8  # each is answered with 60 responses of 8 kB
        for _ in range(requests):
            stream.send(infer_message("repeat", rows))
            await wait_all_tasks_blocked()
        stream.half_close()
        await wait_all_tasks_blocked()
        (connection,) = server.parts.grpc._connections
        unsent_bytes = connection._session.unsent_bytes(stream.stream_id)  # type: ignore[attr-defined]
        assert UNSENT_BYTES_MAX < unsent_bytes < UNSENT_BYTES_MAX + requests * 10_000
        client.h2.increment_flow_control_window(50_000_000)
        client.h2.increment_flow_control_window(50_000_000, stream.stream_id)
        client.flush()
        assert await stream.done() == OK
        assert len(stream.messages) == requests * len(rows)
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_decoupled_responses_wait_for_a_client_that_does_not_read_its_socket(
    autojump_clock: MockClock, models: Path
) -> None:
    rows = [[number, 2000] for number in range(60)]
    async with memory_server(models) as server:
        client = server.grpc(window_bytes=2**31 - 1, capacity_bytes=1000, reads=False)
        client.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        client.flush()
        stream = client.stream()
        for _ in range(8):
            stream.send(infer_message("repeat", rows))
            await wait_all_tasks_blocked()
        (connection,) = server.parts.grpc._connections
        output_bytes = connection._session.output_bytes  # type: ignore[attr-defined]
        assert output_bytes < UNSENT_BYTES_MAX + 8 * 10_000
        server.nursery.start_soon(client.run)
        stream.half_close()
        assert await stream.done() == OK
        assert len(stream.messages) == 8 * len(rows)


@pytest.mark.parametrize("greeting", [b"", b"PRI * HTTP/2.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_client_that_does_not_begin_is_cut_in_time_however_it_drips(
    autojump_clock: MockClock, models: Path, greeting: bytes
) -> None:
    async with memory_server(models) as server:
        end, stream = connection()
        server.nursery.start_soon(server.parts.grpc.serve, stream)
        for octet in greeting:
            end.write(bytes([octet]))
            await trio.sleep(0.5)
        await trio.sleep_until(server.start_s + HEAD_S - TICK_S)
        assert server.parts.grpc.connection_count == 1
        await trio.sleep(3 * TICK_S)
        assert server.parts.grpc.connection_count == 0
