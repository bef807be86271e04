"""Long-lived gRPC connections of the whole server in virtual time: pings, quiet streams, ages."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.grpc_client import OK, UNAVAILABLE, GrpcClient, infer_message, rows_of
from tests.support.memory_server import memory_server
from tritrio.actors._connection_watch import TICK_S
from tritrio.actors.grpc_connection import GOAWAY_GRACE_S, RETIREMENT_S
from tritrio.options import GrpcKeepAlive

CALM = 11
HOURS_S = 3600.0
STREAM_ID_MAX = 2**31 - 1
PING_FRAME = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)


def keep_alive(**settings: float) -> dict[str, Any]:
    return {"grpc_keep_alive": GrpcKeepAlive(**settings)}  # type: ignore[arg-type]


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections whose age is exactly that of the option."""
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)


def run_for_hours(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run what takes longer than a test may, in virtual time."""

    async def limited() -> None:
        with trio.fail_after(10 * HOURS_S):
            await scenario()

    trio.run(limited, clock=MockClock(autojump_threshold=0))


async def ping_every(client: GrpcClient, interval_s: float, times: int) -> None:
    for _ in range(times):
        await trio.sleep(interval_s)
        if client.closed_s is None:
            client.ping()
        await wait_all_tasks_blocked()


async def test_idle_client_that_pings_every_ten_seconds_is_told_at_its_fourth_ping(
    autojump_clock: MockClock, models: Path
) -> None:
    """Every ping is answered, the last one, too, as gRPC's own server does by default."""
    async with memory_server(models) as server:
        client = server.grpc()
        await ping_every(client, 10.0, 6)
        assert [at_s - server.start_s for at_s in client.pongs] == [10.0, 20.0, 30.0, 40.0]
        assert client.reasons == [(CALM, "too_many_pings")]
        assert await client.closed() - server.start_s == 40.0


async def test_client_that_may_ping_without_calls_may_for_ever(
    autojump_clock: MockClock, models: Path
) -> None:
    options = keep_alive(permit_without_calls=True, ping_interval_min_s=10.0)
    async with memory_server(models, **options) as server:
        client = server.grpc()
        await ping_every(client, 10.0, 300)
        assert len(client.pongs) == 300
        assert client.reasons == []
        call = client.infer("plain", [[1]])
        assert await call.done() == OK


async def test_client_that_calls_between_its_pings_may_ping_as_often_as_it_calls(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        for _ in range(20):
            assert await client.infer("plain", [[1]]).done() == OK
            client.ping()
            await trio.sleep(1.0)
        assert len(client.pongs) == 20
        assert client.reasons == []


async def test_client_that_floods_with_pings_is_cut_and_the_server_goes_on(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 5.0}) as server:
        client, other = server.grpc(), server.grpc()
        waiting = client.infer("plain", [[1]])
        served = other.infer("plain", [[2]])
        await wait_all_tasks_blocked()
        await ping_every(client, 0.001, 100)
        assert client.reasons == [(CALM, "too_many_pings")]
        assert len(client.pongs) == 4
        assert waiting.status == -1
        assert await served.done() == OK


async def test_client_that_sends_many_pings_at_once_is_told_once(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        await wait_all_tasks_blocked()
        client.end.write(PING_FRAME * 1000)
        await client.closed()
        assert client.reasons == [(CALM, "too_many_pings")]


def test_stream_that_is_quiet_for_two_hours_and_more_goes_on(models: Path) -> None:
    async def scenario() -> None:
        async with memory_server(models) as server:
            client = server.grpc()
            stream = client.stream()
            stream.send(infer_message("plain", [[1]]))
            await stream.received(1)
            await trio.sleep(2.5 * HOURS_S)
            (pinged_s,) = client.pings
            assert 0 <= pinged_s - server.start_s - 2 * HOURS_S <= 2 * TICK_S
            stream.send(infer_message("plain", [[2]]))
            await stream.received(2)
            assert rows_of(stream.messages[1].infer_response) == [[2]]
            stream.half_close()
            assert await stream.done() == OK

    run_for_hours(scenario)


async def test_client_that_does_not_answer_a_ping_loses_its_connection_and_its_calls(
    autojump_clock: MockClock, models: Path
) -> None:
    options = keep_alive(time_s=10.0, timeout_s=5.0)
    async with memory_server(models, seconds={"plain": 100.0}, **options) as server:
        client = server.grpc(reads=False)
        client.infer("plain", [[1]])
        await trio.sleep(14.0)
        assert server.parts.grpc.connection_count == 1
        await trio.sleep(4.0)
        assert server.parts.grpc.connection_count == 0
        assert server.used_bytes == 0


async def test_client_is_not_lost_while_its_message_is_decompressed(
    autojump_clock: MockClock, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def in_thread(step: Callable[..., object], *args: object, limiter: object) -> object:
        await trio.sleep(0.7)  # as long as a step takes on a slow machine
        return step(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", in_thread)
    async with memory_server(models, **keep_alive(time_s=1.0, timeout_s=1.0)) as server:
        client = server.grpc()
        message = gzip.compress(infer_message("plain", [[7] * 3_000_000]).SerializeToString())
        call = client.call("ModelInfer", metadata=[("grpc-encoding", "gzip")])
        client.send_data(call.stream_id, struct.pack(">BI", 1, len(message)) + message, end=True)
        assert await call.done() == OK
        assert server.elapsed_s() > 8.0  # many ticks


async def test_client_that_answers_pings_keeps_its_call_however_long_it_takes(
    autojump_clock: MockClock, models: Path
) -> None:
    options = keep_alive(time_s=10.0, timeout_s=5.0, pings_without_data_max=0)
    async with memory_server(models, seconds={"plain": 100.0}, **options) as server:
        client = server.grpc()
        assert await client.infer("plain", [[1]]).done() == OK
        assert server.elapsed_s() == 100.0
        assert len(client.pings) == 9


async def test_idle_connection_is_pinged_where_that_is_permitted_and_then_never_ends(
    autojump_clock: MockClock, models: Path
) -> None:
    options = keep_alive(time_s=60.0, permit_without_calls=True, pings_without_data_max=0)
    async with memory_server(models, **options) as server:
        client = server.grpc()
        await trio.sleep(0.9 * HOURS_S)
        assert len(client.pings) == 53  # a tick goes by before an answer counts
        assert client.closed_s is None


@pytest.mark.parametrize("jitter", [0.0, 1.0])
async def test_old_connection_takes_no_more_calls_and_finishes_those_it_has(
    autojump_clock: MockClock, models: Path, monkeypatch: pytest.MonkeyPatch, jitter: float
) -> None:
    monkeypatch.setattr("random.uniform", lambda *_: jitter)
    options = keep_alive(connection_age_max_s=100.0, connection_age_grace_s=60.0)
    async with memory_server(models, seconds={"plain": 50.0}, **options) as server:
        age_s = 100.0 + 10.0 * jitter
        client = server.grpc()
        await trio.sleep(age_s - 10.0)
        call = client.infer("plain", [[1]])
        assert await call.done() == OK
        closed_s = await client.closed()
        assert closed_s - server.start_s == age_s - 10.0 + 50.0
        told_s = server.start_s + age_s
        (first_s, first_id), (second_s, second_id) = client.goaways
        assert (first_id, second_id) == (STREAM_ID_MAX, 1)
        assert 0 <= first_s - told_s <= TICK_S
        assert second_s - first_s == pytest.approx(RETIREMENT_S)


async def test_call_that_begins_between_the_two_goaways_is_served(
    autojump_clock: MockClock, models: Path, no_jitter: None
) -> None:
    async with memory_server(models, **keep_alive(connection_age_max_s=5.0)) as server:
        client = server.grpc()
        stream = client.stream()
        await trio.sleep(5.0 + RETIREMENT_S / 2)
        assert len(client.goaways) == 1
        late = client.infer("plain", [[1]])
        assert await late.done() == OK
        assert len(client.goaways) == 1
        await trio.sleep(1000.0)  # without a grace a stream has all the time
        stream.send(infer_message("plain", [[2]]))
        await stream.received(1)
        assert client.closed_s is None
        stream.half_close()
        assert await stream.done() == OK
        await client.closed()


@pytest.mark.parametrize("reads", [True, False])
async def test_calls_that_outlive_the_grace_are_ended_and_the_connection_closed(
    autojump_clock: MockClock, models: Path, no_jitter: None, reads: bool
) -> None:
    options = keep_alive(connection_age_max_s=5.0, connection_age_grace_s=3.0)
    async with memory_server(models, seconds={"plain": 100.0}, **options) as server:
        client = server.grpc(reads=reads, capacity_bytes=1e9 if reads else 20)
        call, stream = client.infer("plain", [[1]]), client.stream()
        await trio.sleep(7.5)
        assert server.parts.grpc.connection_count == 1
        await trio.sleep(3.0)
        assert server.parts.grpc.connection_count == 0
        if reads:
            assert [call.status, stream.status] == [UNAVAILABLE] * 2
            assert "grace" in call.text
        assert server.used_bytes == 0


async def test_old_connection_drains_with_the_server(
    autojump_clock: MockClock, models: Path, no_jitter: None
) -> None:
    async with memory_server(models, **keep_alive(connection_age_max_s=5.0)) as server:
        client = server.grpc()
        stream = client.stream()
        await trio.sleep(7.0)
        server.begin_shutdown()
        assert await stream.done() == UNAVAILABLE
        await server.drained()
        assert server.elapsed_s() == 7.0 + GOAWAY_GRACE_S
        assert len(client.goaways) == 2
