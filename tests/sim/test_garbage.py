"""Inferences leave no cycles: one would hold request bodies until a collection comes."""

from __future__ import annotations

import gc
from pathlib import Path

from trio.testing import MockClock

from tests.support.memory_server import memory_server
from tritrio.protocol.requests import InferRequest, InferResponse


def requests_in_cycles() -> int:
    """How many requests and responses only a collection could free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return sum(isinstance(item, (InferRequest, InferResponse)) for item in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def test_answered_and_refused_requests_are_freed_at_once(
    models: Path, autojump_clock: MockClock
) -> None:
    async with memory_server(models) as server:
        http, grpc = server.http(), server.grpc()
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert (await http.ask("plain", [[1]])).status == 200
                assert (await http.ask("plain", [[1]] * 9)).status == 400
                assert await grpc.infer("plain", [[1]]).done() == 0
                assert await grpc.infer("plain", [[1]] * 9).done() == 3
                call = grpc.infer("batched", [[1]])
                call.cancel()
            left = requests_in_cycles()
        finally:
            gc.enable()
        assert left == 0
