"""HTTP connections of the whole server: order, timeouts, refusals, all in virtual time."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.http_client import HttpClient, infer_body, infer_bytes, request_bytes
from tests.support.memory_server import DELAY_S, memory_server
from tritrio.actors._connection_watch import TICK_S, Patience
from tritrio.actors.http_connection import LINGER_S, PIPELINED_MAX

PATIENCE = Patience()
READY = request_bytes("/v2/health/ready")


async def test_pipelined_requests_are_answered_in_order(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.http()
        client.send(
            infer_bytes("plain", [[1]])
            + READY
            + infer_bytes("batched", [[2]])
            + request_bytes("/nothing/here")
            + infer_bytes("plain", [[3]])
        )
        answers = [await client.response() for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 200, 200, 404, 200]
        assert [answers[n].rows for n in (0, 2, 4)] == [[[1]], [[2]], [[3]]]
        assert [answer.at_s - server.start_s for answer in answers] == [1.0, 1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("count", [PIPELINED_MAX, PIPELINED_MAX + 1, 5 * PIPELINED_MAX])
@pytest.mark.parametrize("segments", ["one", "each"])
async def test_any_number_of_pipelined_requests_is_answered(
    autojump_clock: MockClock, models: Path, count: int, segments: str
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.http()
        requests = [infer_bytes("plain", [[number]]) for number in range(count)]
        if segments == "one":
            client.send(b"".join(requests))
        else:
            for request in requests:
                client.send(request)
                await wait_all_tasks_blocked()
        answers = [await client.response() for _ in range(count)]
        assert [answer.rows for answer in answers] == [[[number]] for number in range(count)]
        assert [answer.at_s - server.start_s for answer in answers] == [
            float(number + 1) for number in range(count)
        ]
        assert server.counts("plain") == (count, 0, 0)
        client.send(READY)
        assert (await client.response()).status == 200


async def test_reading_pauses_when_too_many_pipelined_requests_wait(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.http()
        for number in range(3 * PIPELINED_MAX):
            client.infer("plain", [[number]])
            await wait_all_tasks_blocked()
        assert server.statistics("plain").pending_count == PIPELINED_MAX  # and one executes
        answers = [await client.response() for _ in range(3 * PIPELINED_MAX)]
        assert [answer.rows for answer in answers] == [[[n]] for n in range(3 * PIPELINED_MAX)]


@pytest.mark.parametrize("size", [1, 2, 7, 64])
async def test_requests_may_come_in_any_pieces(
    autojump_clock: MockClock, models: Path, size: int
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        data = infer_bytes("plain", [[1]]) + READY + infer_bytes("plain", [[2]])
        for start in range(0, len(data), size):
            client.send(data[start : start + size])
            await wait_all_tasks_blocked()
        answers = [await client.response() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert [answers[n].rows for n in (0, 2)] == [[[1]], [[2]]]
        assert server.used_bytes == 0


async def test_idle_connection_is_closed_exactly_in_time(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        assert await client.closed() - server.start_s == PATIENCE.idle_s


async def test_idle_time_counts_from_the_last_answer(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        await trio.sleep(PATIENCE.idle_s - 0.5)
        client.send(READY)
        assert (await client.response()).status == 200
        idle_s = await client.closed() - server.start_s - (PATIENCE.idle_s - 0.5)
        assert idle_s == PATIENCE.idle_s + 0.5  # exact to a tick


async def test_dripped_head_is_refused_in_time_however_it_is_dripped(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.send(b"GET /v2 HTTP/1.1\r\n")

        async def drip() -> None:
            for _ in range(100):
                client.send(b"a: b\r\n")
                await trio.sleep(0.75)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            response = await client.response()
            nursery.cancel_scope.cancel()
        assert response.status == 408
        assert response.json == {"error": "the rest of the request head did not arrive in time"}
        assert response.headers["connection"] == "close"
        assert response.at_s - server.start_s == PATIENCE.head_s + TICK_S
        assert await client.closed() == response.at_s
        await wait_all_tasks_blocked()
        assert server.parts.http.connection_count == 1  # it lingers
        client.send(b"a: b\r\n" * 20)
        await trio.sleep(LINGER_S)
        await wait_all_tasks_blocked()
        assert server.parts.http.connection_count == 0


async def test_busy_connection_may_have_half_a_head_at_every_tick(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.send(READY[:10])
        for _ in range(3 * int(PATIENCE.head_s)):
            await trio.sleep(TICK_S)
            client.send(READY[10:] + READY[:10])
            assert (await client.response()).status == 200


async def test_stalled_body_is_refused_and_given_back_in_time(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        data = infer_bytes("plain", [[1]])
        client.send(data[:-10])
        await trio.sleep(30.5)
        client.send(data[-10:-5])
        await wait_all_tasks_blocked()
        assert server.used_bytes > 0
        response = await client.response()
        assert response.status == 408
        assert response.json == {"error": "the rest of the request body did not arrive in time"}
        assert response.at_s - server.start_s == 31.0 + PATIENCE.body_s
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0
        assert server.counts("plain") == (0, 0, 0)


async def test_connection_is_not_cut_while_the_server_owes_the_answer(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1000.0}) as server:
        response = await server.http().ask("plain", [[1]])
        assert response.rows == [[1]]
        assert response.at_s - server.start_s == 1000.0


async def test_reader_that_stalls_is_cut_in_time(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        client = server.http(capacity_bytes=50)
        client.infer("plain", [[1]])
        await trio.sleep(PATIENCE.write_s)
        assert server.parts.http.connection_count == 1
        assert server.used_bytes > 0
        await trio.sleep(TICK_S)
        await wait_all_tasks_blocked()
        assert server.parts.http.connection_count == 0
        assert server.used_bytes == 0


async def test_reader_that_is_slow_but_reads_is_not_cut(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http(capacity_bytes=16)
        client.infer("plain", [list(range(100))])
        received = b""
        while not received.endswith(b"]}]}"):
            await trio.sleep(PATIENCE.write_s / 2)
            received += await client.end.read()
        assert server.elapsed_s() > 10 * PATIENCE.write_s
        assert b"98,99" in received


async def test_reader_that_reads_again_gets_the_rest_and_further_answers(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http(capacity_bytes=50)
        client.infer("plain", [[1]])
        await trio.sleep(PATIENCE.write_s / 2)
        client.infer("plain", [[2]])
        assert [(await client.response()).rows for _ in range(2)] == [[[1]], [[2]]]


async def test_expect_100_continue_comes_after_earlier_answers(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.http()
        body = infer_body([[2]])
        second = infer_bytes("plain", [[2]], headers=["Expect: 100-continue"])
        client.send(infer_bytes("plain", [[1]]) + second[: -len(body)])
        first = await client.response()
        go_on = await client.response()
        assert (first.status, first.rows) == (200, [[1]])
        assert go_on.status == 100
        assert go_on.at_s - server.start_s == 1.0
        client.send(body)
        assert (await client.response()).rows == [[2]]


async def test_client_that_was_told_to_continue_and_never_does_is_refused_in_time(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        body = infer_body([[2]])
        request = infer_bytes("plain", [[2]], headers=["Expect: 100-continue"])
        client.send(request[: -len(body)])
        assert (await client.response()).status == 100
        response = await client.response()
        assert response.status == 408
        assert response.at_s - server.start_s == PATIENCE.body_s + TICK_S
        assert server.used_bytes == 0
        await client.closed()
        await trio.sleep(LINGER_S + TICK_S)
        assert server.parts.http.connection_count == 0


async def test_refused_body_gets_its_answer_instead_of_100_continue(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, http_input_bytes_max=10) as server:
        client = server.http()
        body = infer_body([[2]])
        request = infer_bytes("plain", [[2]], headers=["Expect: 100-continue"])
        client.send(request[: -len(body)])
        response = await client.response()
        assert response.status == 400
        assert response.headers["connection"] == "close"


async def test_malformed_request_is_answered_after_earlier_ones_and_ends_the_connection(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.send(infer_bytes("batched", [[1]]) + b"BAD\r\n\r\n" + infer_bytes("plain", [[2]]))
        first, second = [await client.response() for _ in range(2)]
        assert (first.status, first.rows) == (200, [[1]])
        assert second.status == 400
        assert second.headers["connection"] == "close"
        assert await client.closed() - server.start_s == DELAY_S
        client.send(b"x" * 100_000)  # what it still sends does not reset the answer away
        client.end.half_close()
        await wait_all_tasks_blocked()
        assert server.parts.http.connection_count == 0
        assert server.executions[0].model == "batched"
        assert len(server.executions) == 1


async def test_end_of_the_stream_within_a_request_is_answered(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.send(infer_bytes("plain", [[1]])[:-1])
        client.end.half_close()
        response = await client.response()
        assert response.status == 400
        assert await client.closed() == server.start_s
        await wait_all_tasks_blocked()
        assert server.parts.http.connection_count == 0


async def test_refusal_reaches_a_client_that_has_shut_its_side_down(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.http(capacity_bytes=10)
        client.send(b"BAD\r\n\r\n")
        await wait_all_tasks_blocked()  # the answer is being written
        client.end.half_close()
        await wait_all_tasks_blocked()
        assert (await client.response()).status == 400


async def test_connection_close_is_honoured(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.infer("batched", [[1]], headers=["Connection: close"])
        client.infer("plain", [[2]])
        response = await client.response()
        assert response.rows == [[1]]
        assert response.headers["connection"] == "close"
        assert await client.closed() - server.start_s == DELAY_S
        assert server.counts("plain") == (0, 0, 0)


async def test_head_request_gets_no_body(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        client = server.http()
        client.send(request_bytes("/v2", method="HEAD") + READY)
        head = await client.response(head_only=True)
        assert "content-length" in head.headers
        assert (await client.response()).status == 200


@pytest.mark.parametrize("method", ["start", "finish"])
async def test_fault_of_the_server_is_a_500_and_the_server_goes_on(
    autojump_clock: MockClock,
    models: Path,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    async with memory_server(models) as server:
        client = server.http()
        with monkeypatch.context() as patch:
            patch.setattr(type(server.parts.http_api), method, fail)
            response = await client.ask("plain", [[1]])
        assert response.status == 500
        assert response.json == {"error": "the server failed to answer this request"}
        assert (await client.ask("plain", [[2]])).rows == [[2]]
        (record,) = [record for record in caplog.records if record.name == "tritrio.http"]
        assert record.levelno == logging.ERROR
        assert server.used_bytes == 0


async def test_compressed_request_is_answered_in_its_turn(models: Path) -> None:
    """Real time: it is expanded on a thread."""
    async with memory_server(models) as server:
        client = server.http()
        body = gzip.compress(infer_body([[2]]))
        gzipped = request_bytes("/v2/models/plain/infer", body, headers=["Content-Encoding: gzip"])
        client.send(infer_bytes("plain", [[1]]) + gzipped + infer_bytes("plain", [[3]]))
        answers: list[list[list[int]]] = [(await client.response()).rows for _ in range(3)]
        assert answers == [[[1]], [[2]], [[3]]]


async def test_budget_that_runs_out_leaves_a_request_on_a_thread_alone(models: Path) -> None:
    """Real time: the first request is expanded on a thread."""
    async with memory_server(models, byte_budget=2000) as server:
        client: HttpClient = server.http()
        body = gzip.compress(infer_body([[1]]))
        gzipped = request_bytes("/v2/models/plain/infer", body, headers=["Content-Encoding: gzip"])
        client.send(gzipped + infer_bytes("plain", [list(range(1000))]))
        first, second = [await client.response() for _ in range(2)]
        assert (first.status, first.rows) == (200, [[1]])
        assert second.status == 503
