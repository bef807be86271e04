"""The byte budget: refused at once beyond it, and everything given back afterwards."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import (
    OK,
    UNAVAILABLE,
    UNIMPLEMENTED,
    framed,
    infer_message,
    rows_of,
)
from tests.support.http_client import infer_body, infer_bytes, request_bytes
from tests.support.memory_server import DELAY_S, memory_server
from tritrio.actors._connection_watch import Patience

USED_UP = "the server's byte budget is used up; try again"
BIG = [list(range(1000))]


@pytest.mark.parametrize("segments", ["one", "many"])
async def test_http_body_beyond_the_budget_is_503_and_its_neighbours_go_on(
    autojump_clock: MockClock, models: Path, segments: str
) -> None:
    async with memory_server(models, byte_budget=1000) as server:
        neighbour, client, grpc = server.http(), server.http(), server.grpc()
        neighbour.infer("batched", [[1]])
        call = grpc.infer("batched", [[2]])
        await wait_all_tasks_blocked()
        used_bytes = server.used_bytes
        data = infer_bytes("plain", BIG)
        step = len(data) if segments == "one" else 500
        for start in range(0, len(data), step):
            client.send(data[start : start + step])
            await wait_all_tasks_blocked()
        response = await client.response()
        assert (response.status, response.json) == (503, {"error": USED_UP})
        assert response.headers["connection"] == "close"
        assert response.at_s == server.start_s
        assert server.used_bytes == used_bytes
        assert (await neighbour.response()).rows == [[1]]
        assert await call.done() == OK
        assert server.elapsed_s() == DELAY_S
        assert server.counts("plain") == (0, 0, 0)
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0
        assert (await server.http().ask("plain", [[3]])).rows == [[3]]


async def test_http_refusal_comes_after_earlier_pipelined_answers(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, byte_budget=1000) as server:
        client = server.http()
        small = infer_bytes("batched", [[1]])
        client.send(small + infer_bytes("plain", BIG) + small)
        first, second = [await client.response() for _ in range(2)]
        assert (first.status, first.rows) == (200, [[1]])
        assert second.status == 503
        await client.closed()
        assert server.counts("batched") == (1, 0, 0)
        assert server.executions[0].at_s == DELAY_S


async def test_chunked_http_body_beyond_the_budget_is_503(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, byte_budget=1000) as server:
        client = server.http()
        head = request_bytes(
            "/v2/models/plain/infer", method="POST", headers=["Transfer-Encoding: chunked"]
        )
        client.send(head)
        for _ in range(30):
            client.send(b"64\r\n" + b" " * 100 + b"\r\n")
            await wait_all_tasks_blocked()
        assert (await client.response()).status == 503
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_http_response_beyond_the_budget_is_503_and_the_connection_stays(
    autojump_clock: MockClock, models: Path
) -> None:
    """A response that a slow reader would keep in memory counts like a request."""
    rows = [list(range(1_000_000, 1_010_000))] * 2  # less than what a thread would decode
    async with memory_server(
        models, byte_budget=len(infer_bytes("plain", rows)) + 10_000
    ) as server:
        client = server.http()
        response = await client.ask("plain", rows)
        assert (response.status, response.json) == (503, {"error": USED_UP})
        assert (await client.ask("plain", [[1]])).rows == [[1]]
        assert server.used_bytes == 0
    async with memory_server(models) as server:
        response = await server.http().ask("plain", rows)
        assert response.rows == rows
        assert server.parts.budget.peak_bytes > len(infer_body(rows)) + len(response.body)


@pytest.mark.parametrize("columns", [1000, 20_000])
async def test_grpc_message_beyond_the_budget_is_unavailable_and_its_neighbours_go_on(
    autojump_clock: MockClock, models: Path, columns: int
) -> None:
    async with memory_server(models, byte_budget=2000) as server:
        client, http = server.grpc(), server.http()
        neighbour = client.infer("batched", [[1]])
        http.infer("batched", [[2]])
        await wait_all_tasks_blocked()
        used_bytes = server.used_bytes
        refused = client.infer("plain", [list(range(columns // 2))] * 2)
        assert await refused.done() == UNAVAILABLE
        assert refused.text == USED_UP
        assert server.elapsed_s() == 0.0
        await wait_all_tasks_blocked()
        assert server.used_bytes == used_bytes
        assert await neighbour.done() == OK
        assert rows_of(neighbour.messages[0]) == [[1]]
        assert (await http.response()).rows == [[2]]
        assert server.elapsed_s() == DELAY_S
        assert server.counts("plain") == (0, 0, 0)
        again = client.infer("plain", [[3]])
        assert await again.done() == OK


async def test_grpc_message_is_refused_before_all_of_it_has_come(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, byte_budget=10_000) as server:
        client = server.grpc()
        call = client.call("ModelInfer", end=False)
        data = framed(infer_message("plain", [list(range(10_000))]))
        for start in range(0, 20_000, 4_000):
            if call.status is None:
                client.send_data(call.stream_id, data[start : start + 4_000], end=False)
                await wait_all_tasks_blocked()
                assert server.parts.budget.peak_bytes > start // 2
        assert call.status == UNAVAILABLE
        assert call.text == USED_UP
        assert server.used_bytes == 0


async def test_many_small_grpc_calls_cannot_exceed_the_budget(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}, byte_budget=1000) as server:
        client = server.grpc()
        calls = []
        for number in range(100):
            calls.append(client.infer("plain", [[number]]))
            await wait_all_tasks_blocked()
        assert server.parts.budget.peak_bytes <= 1000
        refused = [call for call in calls if call.status is not None]
        assert {call.status for call in refused} == {UNAVAILABLE}
        answered = [call for call in calls if call.status is None]
        assert 5 < len(answered) < 30
        assert [await call.done() for call in answered] == [OK] * len(answered)
        assert server.counts("plain") == (len(answered), 0, 0)
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_stream_that_piles_requests_up_is_ended_at_the_budget(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}, byte_budget=1000) as server:
        client = server.grpc()
        neighbour = client.infer("plain", [[0]])
        await wait_all_tasks_blocked()
        stream = client.stream()
        for number in range(100):
            if stream.status is None:
                stream.send(infer_message("plain", [[number]]))
                await wait_all_tasks_blocked()
        assert stream.status == UNAVAILABLE
        assert stream.text == USED_UP
        assert server.parts.budget.peak_bytes <= 1000
        assert await neighbour.done() == OK
        assert server.elapsed_s() == 1.0
        success, _, pending = server.counts("plain")
        assert (success, pending) == (1, 0)


async def test_bytes_of_a_call_are_free_once_it_is_answered(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        call = client.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        assert call.status == OK
        assert server.used_bytes == 0


async def test_bytes_of_a_call_are_free_when_its_deadline_passes(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 8.0}) as server:
        client = server.grpc()
        client.infer("plain", [[1]])
        await wait_all_tasks_blocked()
        one_bytes = server.used_bytes
        client.infer("plain", [[1]], timeout="2S")
        await wait_all_tasks_blocked()
        assert server.used_bytes == 2 * one_bytes
        await trio.sleep(2.0)
        await wait_all_tasks_blocked()
        assert server.used_bytes == one_bytes


async def test_grpc_reader_that_stalls_keeps_its_answers_in_the_budget(
    autojump_clock: MockClock, models: Path
) -> None:
    """With its flow-control window closed, answers wait in the server, but never without bound."""
    limit_bytes = 100_000
    async with memory_server(models, byte_budget=limit_bytes) as server:
        client = server.grpc(window_bytes=0)
        calls = []
        for _ in range(100):
            calls.append(client.infer("plain", BIG))
            await wait_all_tasks_blocked()
        refused = [call for call in calls if call.status == UNAVAILABLE]
        assert len(refused) > 70
        assert server.parts.budget.peak_bytes <= limit_bytes
        assert server.used_bytes > limit_bytes // 2
        assert (await server.http().ask("plain", [[1]])).rows == [[1]]


async def test_grpc_socket_that_is_not_read_stops_being_served(
    autojump_clock: MockClock, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that opens its windows, asks and never reads costs a bounded amount."""
    monkeypatch.setattr("tritrio.actors.grpc_connection.OUTPUT_BYTES_MAX", 4000)
    async with memory_server(models) as server:
        client = server.grpc(capacity_bytes=1000, reads=False)
        for _ in range(400):
            client.call("/not/served", b"")
            await wait_all_tasks_blocked()
            assert server.used_bytes < 7000
        await trio.sleep(Patience().write_s - 1)
        assert server.parts.grpc.connection_count == 1
        await trio.sleep(3)
        assert server.parts.grpc.connection_count == 0


async def test_grpc_socket_that_is_read_again_is_served_again(
    autojump_clock: MockClock, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritrio.actors.grpc_connection.OUTPUT_BYTES_MAX", 4000)
    async with memory_server(models) as server:
        client = server.grpc(capacity_bytes=1000, reads=False)
        calls = []
        for _ in range(400):
            calls.append(client.call("/not/served", b""))
            await wait_all_tasks_blocked()
        server.nursery.start_soon(client.run)
        assert {await call.done() for call in calls} == {UNIMPLEMENTED}


WIDE = [list(range(9000))] * 2
"""More than what is answered without a look at the budget."""


@pytest.mark.parametrize("window_bytes", [0, 65_535])
async def test_grpc_response_beyond_the_budget_is_unavailable_and_the_connection_stays(
    autojump_clock: MockClock, models: Path, window_bytes: int
) -> None:
    size = len(framed(infer_message("plain", WIDE)))
    async with memory_server(models, byte_budget=size + 10_000) as server:
        client = server.grpc(window_bytes=window_bytes)
        await wait_all_tasks_blocked()  # it learns how much the server takes
        call = client.infer("plain", WIDE)
        assert await call.done() == UNAVAILABLE
        assert call.text == USED_UP
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0
        assert await server.grpc().infer("plain", [[1]]).done() == OK
    async with memory_server(models) as server:
        client = server.grpc()
        await wait_all_tasks_blocked()
        call = client.infer("plain", WIDE)
        assert await call.done() == OK
        assert rows_of(call.messages[0]) == WIDE
        assert server.parts.budget.peak_bytes > 2 * size - 1000
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_response_beyond_the_budget_ends_its_request_and_not_the_stream(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, byte_budget=50_000) as server:
        client = server.grpc()
        stream = client.stream()
        stream.send(infer_message("repeat", [[1, 1], [1, 20_000], [2, 1]]))
        await stream.received(2)
        assert stream.messages[1].error_message == USED_UP
        stream.half_close()
        assert await stream.done() == OK
        assert len(stream.messages) == 2
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0
        assert await client.infer("plain", [[1]]).done() == OK


@pytest.mark.parametrize(("budget", "status"), [(20_000_000, OK), (4_500_000, UNAVAILABLE)])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_grpc_message_is_inflated_on_a_thread_within_the_budget(
    models: Path, budget: int, status: int, method: str
) -> None:
    """Real time, for the thread: a message of 4.8 MB, inflated in steps."""
    rows = [[7] * 1_200_000]
    packed = gzip.compress(infer_message("plain", rows).SerializeToString(), 1)
    async with memory_server(models, byte_budget=budget) as server:
        client = server.grpc()
        response_type = pb.ModelInferResponse
        if method == "ModelStreamInfer":
            response_type = pb.ModelStreamInferResponse
        call = client.call(
            method, metadata=[("grpc-encoding", "gzip")], response_type=response_type
        )
        data = struct.pack(">BI", 1, len(packed)) + packed
        client.send_data(call.stream_id, data, end=True)
        with trio.fail_after(20):
            assert await call.done() == status
        assert call.text == ("" if status == OK else USED_UP)
        assert server.parts.budget.peak_bytes > 4_000_000
        assert server.counts("plain") == (int(status == OK), 0, 0)
        await wait_all_tasks_blocked(0.01)
        assert server.used_bytes == 0
        assert await client.infer("plain", [[1]]).done() == OK
