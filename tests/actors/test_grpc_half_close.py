"""Streams whose client has said all, in every state that they may be in then."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.grpc_client import INTERNAL, OK, Call, infer_message, rows_of
from tests.support.memory_server import memory_server

GRPC_ERRORS = [("triton_grpc_error", "true")]


def rows(stream: Call) -> list[list[list[int]]]:
    return [rows_of(message.infer_response) for message in stream.messages]


async def test_five_requests_in_flight_to_several_models_are_all_answered(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 2.0, "batched": 1.0}) as server:
        stream = server.grpc().stream()
        for model, row in (
            ("plain", [1]),
            ("batched", [2]),
            ("plain", [3]),
            ("repeat", [4, 1]),
            ("batched", [5]),
        ):
            stream.send(infer_message(model, [row]))
        await wait_all_tasks_blocked()
        stream.half_close()
        assert await stream.done() == OK
        answered = rows(stream)
        assert sorted(answered) == [[[1]], [[2]], [[3]], [[4]], [[5]]]
        in_order = [each for each in answered if each != [[4]]]  # which is decoupled
        assert in_order == [[[1]], [[2]], [[3]], [[5]]]
        assert server.elapsed_s() == 4.0


async def test_half_close_after_an_error_ends_the_stream_with_ok(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("missing", [[1]]))
        await stream.received(1)
        await wait_all_tasks_blocked()
        stream.half_close()
        assert await stream.done() == OK
        assert "missing" in stream.messages[0].error_message


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\0\5ab"], ids=["the end", "half a message"])
async def test_half_close_of_a_stream_that_an_error_has_ended_harms_nobody(
    autojump_clock: MockClock, models: Path, sent: bytes
) -> None:
    """The client had not heard of the end when it sent its own."""
    async with memory_server(models) as server:
        client = server.grpc()
        stream = client.stream(metadata=GRPC_ERRORS)
        stream.send(infer_message("repeat", [[-1, 1]]))
        await wait_all_tasks_blocked()
        late = bytes([0, 0, len(sent), 0, 1, 0, 0, 0, stream.stream_id]) + sent
        client.end.write(late)
        assert await stream.done() == INTERNAL
        assert await client.infer("plain", [[1]]).done() == OK
        assert client.goaways == []


async def test_half_close_while_the_client_takes_no_answers_waits_for_it(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        client = server.grpc(window_bytes=0)
        stream = client.stream()
        stream.send(infer_message("plain", [[1]]), end=True)
        await wait_all_tasks_blocked()
        assert stream.messages == []
        assert stream.status is None
        client.h2.increment_flow_control_window(10_000, stream.stream_id)
        client.flush()
        assert await stream.done() == OK
        assert rows(stream) == [[[1]]]
