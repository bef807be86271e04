"""Compressed answers over gRPC: who gets them, how large ones are made, what they cost."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import (
    INTERNAL,
    INVALID_ARGUMENT,
    OK,
    GrpcClient,
    infer_message,
    rows_of,
)
from tests.support.memory_server import memory_server

LEVELS = ["low", "medium", "high"]
SMALL = [[1] * 1000]
COUNT = 1_000_000
UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


class Raw:
    """A reply as it came, without its prefix."""

    @staticmethod
    def FromString(data: bytes) -> bytes:  # noqa: N802 - as protobuf calls it
        return data


def ask(client: GrpcClient, rows: list[list[int]], accepted: str, **more: Any) -> Any:
    metadata = [("grpc-accept-encoding", accepted)] if accepted else []
    message = infer_message(more.pop("model", "plain"), rows)
    return client.call("ModelInfer", message, metadata=metadata, response_type=Raw, **more)


def plain_rows(data: bytes) -> list[list[int]]:
    return rows_of(pb.ModelInferResponse.FromString(data))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_clients_get_their_coding_and_all_others_get_plain_answers(
    autojump_clock: MockClock, models: Path, level: str, coding: str
) -> None:
    async with memory_server(models, grpc_compression_level=level) as server:
        client = server.grpc()
        call = ask(client, SMALL, coding)
        assert await call.done() == OK
        assert len(call.messages[0]) < 1000
        assert plain_rows(UNPACK[coding](call.messages[0])) == SMALL
        for accepted in ("", "identity", "br, snappy"):
            call = ask(client, SMALL, accepted)
            assert await call.done() == OK
            assert plain_rows(call.messages[0]) == SMALL


async def test_without_a_level_nothing_is_compressed(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        call = ask(server.grpc(), SMALL, "gzip")
        assert await call.done() == OK
        assert plain_rows(call.messages[0]) == SMALL


async def test_what_would_not_shrink_is_sent_as_it_is(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, grpc_compression_level="high") as server:
        rows = [Random(1).choices(range(2**31), k=500)]
        call = ask(server.grpc(), rows, "gzip")
        assert await call.done() == OK
        assert plain_rows(call.messages[0]) == rows


async def test_large_answers_are_compressed_off_the_loop(models: Path) -> None:
    """Real time: they are compressed on a thread."""
    async with memory_server(models, grpc_compression_level="low") as server:
        stream = server.grpc().call(
            "ModelStreamInfer", metadata=[("grpc-accept-encoding", "gzip")], response_type=Raw
        )
        stream.send(infer_message("repeat", [[7, COUNT]]))
        stream.half_close()
        assert await stream.done() == OK
        (data,) = stream.messages
        message = pb.ModelStreamInferResponse.FromString(gzip.decompress(data))
        assert rows_of(message.infer_response) == [[7] * COUNT]
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_a_client_that_leaves_while_its_answer_is_compressed_costs_nothing(
    models: Path,
) -> None:
    async with memory_server(models, grpc_compression_level="high") as server:
        client = server.grpc()
        for _ in range(4):
            stream = client.call(
                "ModelStreamInfer", metadata=[("grpc-accept-encoding", "gzip")], response_type=Raw
            )
            stream.send(infer_message("repeat", [[7, 5 * COUNT]]))
        with trio.fail_after(10):
            while server.used_bytes < 4 * COUNT:
                await wait_all_tasks_blocked()
        client.end.close()
        with trio.fail_after(10):
            while server.parts.grpc.connection_count:
                await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_an_answer_counts_in_the_budget_while_it_waits_to_be_compressed(
    autojump_clock: MockClock, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = trio.Event()

    async def busy(work: Callable[..., Any], *arguments: Any, limiter: Any) -> Any:
        """A thread that comes free when the test says so."""
        await free.wait()
        return work(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", busy)
    async with memory_server(models, grpc_compression_level="low") as server:
        client = server.grpc()
        stream = client.call(
            "ModelStreamInfer", metadata=[("grpc-accept-encoding", "gzip")], response_type=Raw
        )
        stream.send(infer_message("repeat", [[7, COUNT]]), end=True)
        await wait_all_tasks_blocked()
        assert await ask(client, [[1]], "gzip").done() == OK  # which settles what is taken
        await wait_all_tasks_blocked()
        assert 4 * COUNT < server.used_bytes < 4 * COUNT + 2000
        free.set()
        assert await stream.done() == OK
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0


async def test_errors_keep_their_status(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models, grpc_compression_level="low") as server:
        client = server.grpc()
        too_many = ask(client, [[1]] * 5, "gzip")
        assert await too_many.done() == INVALID_ARGUMENT
        empty = client.call("ModelInfer", metadata=[("grpc-accept-encoding", "gzip")])
        empty.half_close()
        assert await empty.done() == INTERNAL
        assert server.counts("plain") == (0, 1, 0)


async def test_a_cancelled_call_cancels_its_request(
    autojump_clock: MockClock, models: Path
) -> None:
    seconds = {"plain": 1.0}
    async with memory_server(models, seconds=seconds, grpc_compression_level="low") as server:
        client = server.grpc()
        running = ask(client, SMALL, "gzip")
        await wait_all_tasks_blocked()
        queued = ask(client, SMALL, "gzip")
        await wait_all_tasks_blocked()
        queued.cancel()
        assert await running.done() == OK
        await trio.sleep(5)
        assert len(server.executions) == 1
        assert server.used_bytes == 0


async def test_messages_of_a_stream_are_compressed_each(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, grpc_compression_level="medium") as server:
        stream = server.grpc().call(
            "ModelStreamInfer", metadata=[("grpc-accept-encoding", "deflate")], response_type=Raw
        )
        stream.send(infer_message("plain", SMALL))
        stream.send(infer_message("plain", noise := [Random(1).choices(range(2**31), k=500)]))
        stream.send(infer_message("repeat", [[3, 1000]]))
        stream.half_close()
        assert await stream.done() == OK
        answers = []
        for data in stream.messages:
            message = data if len(data) > 1000 else zlib.decompress(data)
            answers.append(pb.ModelStreamInferResponse.FromString(message).infer_response)
        rows = [rows_of(answer) for answer in answers]
        assert sorted(rows) == sorted([SMALL, noise, [[3] * 1000]])
