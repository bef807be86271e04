"""What a hostile HTTP/2 client may cost: something bounded, its own connection, and no one else."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.protocol.http2_support import GRPC_HEADERS, greeting, numbers, raw_frame, request_block
from tests.support.grpc_client import OK, GrpcClient
from tests.support.memory_server import MemoryServer, memory_server
from tests.support.memory_stream import connection
from tritrio.protocol.http2_events import RESETS_MAX

CALM, FLOW_CONTROL, COMPRESSION = 11, 3, 9
FRAMES = 50_000
HEADERS = request_block(GRPC_HEADERS)


def opened_and_reset(count: int) -> bytes:
    """Calls that are given up as soon as they have begun."""
    return b"".join(
        raw_frame(1, 4, stream_id, HEADERS) + raw_frame(3, 0, stream_id, numbers(8))
        for stream_id in range(1, 2 * count, 2)
    )


ATTACKS = {
    "settings": (raw_frame(4, 0, 0, b"\0\4\0\0\0\1") * FRAMES, CALM),
    "pings": (raw_frame(6, 0, 0, bytes(8)) * FRAMES, CALM),
    "priorities": (raw_frame(2, 0, 1, bytes(5)) * 3 * FRAMES, CALM),
    "unknown frames": (raw_frame(200, 0, 1, b"abc") * 3 * FRAMES, CALM),
    "resets": (opened_and_reset(RESETS_MAX + 2), CALM),
    "a header block without an end": (
        raw_frame(1, 0, 1, HEADERS) + raw_frame(9, 0, 1, b"") * FRAMES,
        CALM,
    ),
    "a large header block": (
        raw_frame(1, 0, 1, bytes(16_000)) + raw_frame(9, 0, 1, bytes(16_000)) * 8,
        CALM,
    ),
    "a window beyond the largest": (raw_frame(8, 0, 0, numbers(2**31 - 1)), FLOW_CONTROL),
    "no header compression": (raw_frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION),
}


def attack(server: MemoryServer, octets: bytes) -> GrpcClient:
    end, stream = connection()
    server.nursery.start_soon(server.parts.grpc.serve, stream)
    client = GrpcClient(end)
    server.clients.append(client)
    end.write(octets)
    return client


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_ends_its_own_connection_and_holds_nothing(
    autojump_clock: MockClock, models: Path, name: str
) -> None:
    octets, code = ATTACKS[name]
    async with memory_server(models) as server:
        other = server.grpc()
        attacker = attack(server, octets)
        server.nursery.start_soon(attacker.run)
        assert await attacker.closed() == server.start_s
        assert attacker.reasons[-1][0] == code
        assert await other.infer("plain", [[1]]).done() == OK
        await wait_all_tasks_blocked()
        assert server.parts.grpc.connection_count == 1
        assert server.used_bytes == 0
        assert server.counts("plain") == (1, 0, 0)


async def test_peer_that_asks_and_never_reads_is_held_to_a_bound(
    autojump_clock: MockClock, models: Path
) -> None:
    """Every call would be answered, but nobody takes the answers."""
    async with memory_server(models) as server:
        end, stream = connection(capacity_bytes=100)
        server.nursery.start_soon(server.parts.grpc.serve, stream)
        end.write(greeting() + opened_and_reset(200))
        await wait_all_tasks_blocked()
        assert server.used_bytes < 64 * 1024
        end.reset()
        await wait_all_tasks_blocked()
        assert server.parts.grpc.connection_count == 0


async def test_windows_of_one_byte_let_an_answer_through_byte_by_byte(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc(window_bytes=0)
        call = client.infer("plain", [[1, 2, 3]])
        await wait_all_tasks_blocked()
        for _ in range(1000):
            if call.status is not None:
                break
            client.h2.increment_flow_control_window(1, call.stream_id)
            client.flush()
            await wait_all_tasks_blocked()
        assert call.status == OK
        assert client.goaways == []
        assert len(call.messages) == 1
