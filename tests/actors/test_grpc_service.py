"""ModelStreamInfer: order, errors, cancellation, decoupled models; in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import (
    INTERNAL,
    OK,
    Call,
    infer_message,
    rows_of,
)
from tests.support.memory_server import DELAY_S, memory_server
from tritrio.actors.grpc_infer_stream import STREAM_REQUESTS_MAX
from tritrio.protocol.errors import FailureReason
from tritrio.protocol.header_forwarding import GRPC_ERROR_KEY

GRPC_ERRORS = ((GRPC_ERROR_KEY, "true"),)


def answers(call: Call) -> list[Any]:
    """The rows of each message, or the id of a failed request with its error."""
    return [
        (message.infer_response.id, message.error_message)
        if message.error_message
        else rows_of(message.infer_response)
        for message in call.messages
    ]


def ids(call: Call) -> list[str]:
    return [message.infer_response.id for message in call.messages]


async def test_responses_come_in_the_order_of_the_requests(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"batched": 5.0}) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("batched", [[0]]))
        for number in (1, 2):
            stream.send(infer_message("plain", [[number]]))
        stream.send(infer_message("batched", [[3]]))
        stream.half_close()
        assert await stream.done() == OK
        assert answers(stream) == [[[0]], [[1]], [[2]], [[3]]]
        at_s = DELAY_S + 5.0  # both of the slow model share a batch
        assert [time_s - server.start_s for time_s in stream.times_s] == [at_s] * 4
        assert server.counts("plain") == (2, 0, 0)


async def test_requests_of_a_stream_share_a_batch(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        for number in range(4):
            stream.send(infer_message("batched", [[number]], request_id=str(number)))
        await stream.received(4)
        assert server.elapsed_s() == 0.0
        assert [execution.ids for execution in server.executions] == [("0", "1", "2", "3")]
        assert stream.status is None
        stream.half_close()
        assert await stream.done() == OK


async def test_errors_are_messages_in_their_place_and_do_not_end_the_stream(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("plain", [[0]]))
        stream.send(infer_message("missing", [[1]], request_id="unknown"))
        stream.send(infer_message("plain", [[2]]))
        stream.send(infer_message("plain", [[3]] * 5, request_id="too many"))
        await stream.received(4)
        stream.send(infer_message("plain", [[4]]))
        stream.half_close()
        assert await stream.done() == OK
        first, unknown, second, too_many, third = answers(stream)
        assert (first, second, third) == ([[0]], [[2]], [[4]])
        assert unknown == ("unknown", "expected the name of a known model, got 'missing'")
        assert too_many[0] == "too many"
        assert server.counts("plain") == (3, 1, 0)


async def test_an_answer_without_room_fails_its_request_and_no_other_of_the_stream(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}, byte_budget=200_000) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("plain", [[1]]))
        stream.send(infer_message("repeat", [[7, 100_000]], request_id="large"))
        stream.send(infer_message("plain", [[2]]))
        stream.half_close()
        assert await stream.done() == OK
        large, first, second = answers(stream)
        assert large == ("large", "the server's byte budget is used up; try again")
        assert (first, second) == ([[1]], [[2]])


async def test_stream_without_requests_ends_with_ok(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        stream.half_close()
        assert await stream.done() == OK
        assert stream.messages == []


async def test_half_close_leaves_the_requests_in_flight_to_be_answered(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        stream = server.grpc().stream()
        for number in range(3):
            stream.send(infer_message("plain", [[number]]))
        stream.half_close()
        assert await stream.done() == OK
        assert answers(stream) == [[[0]], [[1]], [[2]]]
        assert stream.ended_s - server.start_s == 3.0


async def test_cancelling_a_stream_cancels_all_its_requests_and_no_other(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        client = server.grpc()
        stream, other = client.stream(), client.stream()
        for number in range(4):
            stream.send(infer_message("plain", [[number]]))
        await wait_all_tasks_blocked()
        other.send(infer_message("plain", [[7]]), end=True)
        await wait_all_tasks_blocked()
        stream.cancel()
        await wait_all_tasks_blocked()
        assert server.counts("plain") == (0, 3, 1)
        assert await other.done() == OK
        assert answers(other) == [[[7]]]
        assert server.elapsed_s() == 2.0
        assert server.counts("plain") == (1, 4, 0)
        assert server.statistics("plain").failures[FailureReason.CANCELED] == 4
        assert server.used_bytes == 0


async def test_first_failure_ends_a_stream_that_asks_for_grpc_errors(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        stream = server.grpc().stream(metadata=GRPC_ERRORS)
        stream.send(infer_message("repeat", [[-1, 1]]))
        stream.send(infer_message("plain", [[1]]))
        assert await stream.done() == INTERNAL
        assert "a negative value" in stream.text
        assert stream.ended_s == server.start_s
        await trio.sleep(1.0)
        await wait_all_tasks_blocked()
        assert server.counts("plain") == (0, 1, 0)
        assert server.statistics("plain").failures[FailureReason.CANCELED] == 1


async def test_refusal_stays_a_message_even_where_grpc_errors_are_asked_for(
    autojump_clock: MockClock, models: Path
) -> None:
    """As Triton does: the metadata is about requests that were accepted."""
    async with memory_server(models) as server:
        stream = server.grpc().stream(metadata=GRPC_ERRORS)
        stream.send(infer_message("missing", [[1]], request_id="a"))
        stream.send(infer_message("plain", [[2]]), end=True)
        assert await stream.done() == OK
        assert answers(stream) == [
            ("a", "expected the name of a known model, got 'missing'"),
            [[2]],
        ]


async def test_message_that_is_no_request_ends_the_stream_and_cancels_the_rest(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("plain", [[1]]))
        stream.send(b"\xff\xff\xff")
        assert await stream.done() == INTERNAL
        assert stream.ended_s == server.start_s
        await trio.sleep(1.0)
        await wait_all_tasks_blocked()
        assert server.counts("plain") == (0, 1, 0)


async def test_decoupled_model_answers_as_often_as_it_likes(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("repeat", [[1, 1], [2, 2], [3, 3]], request_id="a"))
        stream.send(infer_message("repeat", [[4, 1]], request_id="b"), end=True)
        assert await stream.done() == OK
        by_id: dict[str, list[Any]] = {"a": [], "b": []}
        for request_id, rows in zip(ids(stream), answers(stream), strict=True):
            by_id[request_id].append(rows)
        assert by_id == {"a": [[[1]], [[2, 2]], [[3, 3, 3]]], "b": [[[4]]]}
        assert server.counts("repeat") == (2, 0, 0)


@pytest.mark.parametrize("wanted", [True, False])
async def test_empty_final_response_comes_to_those_who_ask_for_it(
    autojump_clock: MockClock, models: Path, wanted: bool
) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        stream.send(
            infer_message("repeat", [[1, 1]], triton_enable_empty_final_response=wanted), end=True
        )
        assert await stream.done() == OK
        finals = [
            message.infer_response.parameters["triton_final_response"].bool_param
            for message in stream.messages
        ]
        assert finals == ([False, True] if wanted else [False])


async def test_error_of_a_decoupled_model_comes_among_its_responses(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("repeat", [[1, 1], [-1, 0], [2, 1]], request_id="a"), end=True)
        assert await stream.done() == OK
        first, error, *_ = answers(stream)
        assert first == [[1]]
        assert error[0] == "a"
        assert "a negative value" in error[1]


async def test_requests_beyond_those_in_flight_wait_for_their_turn(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 1.0}) as server:
        stream = server.grpc().stream()
        for number in range(STREAM_REQUESTS_MAX + 100):
            stream.send(infer_message("plain", [[number]]))
            if number % 100 == 0:
                await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert server.statistics("plain").pending_count == STREAM_REQUESTS_MAX - 1
        stream.half_close()
        assert await stream.done() == OK
        assert answers(stream) == [[[n]] for n in range(STREAM_REQUESTS_MAX + 100)]


async def test_statistics_are_visible_before_the_response(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, seconds={"plain": 0.5}) as server:
        client = server.grpc()
        for count in range(1, 4):
            assert await client.infer("plain", [[1]]).done() == OK
            call = client.call(
                "ModelStatistics",
                pb.ModelStatisticsRequest(name="plain"),
                response_type=pb.ModelStatisticsResponse,
            )
            assert await call.done() == OK
            (statistics,) = call.messages[0].model_stats
            assert statistics.inference_stats.success.count == count
            assert statistics.inference_stats.success.ns == count * 500_000_000
