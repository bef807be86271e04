"""Ensembles of the whole server, seen by clients of both protocols."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.support.grpc_client import OK, infer_message, rows_of
from tests.support.memory_server import Execution, memory_server, write_models
from tritrio.protocol.errors import FailureReason

CONFIG = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
STEP = """step {
  model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" }
}"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models "plain" and "repeat"; "twice", plain after plain; "stream", plain after repeat."""
    root = write_models(tmp_path_factory.mktemp("ensembles"), only=("plain", "repeat"))
    for name, first in (("twice", "plain"), ("stream", "repeat")):
        (root / name / "1").mkdir(parents=True)
        steps = STEP % (first, "INPUT0", "t") + STEP % ("plain", "t", "OUTPUT0")
        policy = "model_transaction_policy { decoupled: true }" if name == "stream" else ""
        text = f"{CONFIG} {policy} ensemble_scheduling {{ {steps} }}"
        (root / name / "config.pbtxt").write_text(text)
    return root


async def test_both_protocols_are_answered_after_the_last_step(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository, seconds={"plain": 1.0}) as server:
        response = await server.http().ask("twice", [[1, 2]])
        assert (response.status, response.rows) == (200, [[1, 2]])
        assert server.elapsed_s() == 2.0
        call = server.grpc().infer("twice", [[3, 4], [5, 6]])
        assert await call.done() == OK
        assert rows_of(call.messages[0]) == [[3, 4], [5, 6]]
        assert server.elapsed_s() == 4.0
        assert server.counts("twice") == (2, 0, 0)
        assert server.statistics("twice").inference_count == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_client_that_leaves_in_the_middle_starts_no_later_step(
    autojump_clock: MockClock, repository: Path, protocol: str
) -> None:
    async with memory_server(repository, seconds={"plain": 1.0}) as server:
        if protocol == "http":
            client = server.http()
            client.infer("twice", [[1]], request_id="r")
            leave: Callable[[], None] = client.end.close
        else:
            leave = server.grpc().infer("twice", [[1]], request_id="r").cancel
        await trio.sleep(0.5)
        leave()
        await trio.sleep(5.0)
        assert server.executions == [Execution(0.0, "plain", ("r",))]
        assert server.statistics("twice").failures[FailureReason.CANCELED] == 1
        assert server.counts("plain") == (0, 1, 0)


async def test_the_last_response_of_a_stream_says_so(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository, seconds={"plain": 1.0}) as server:
        stream = server.grpc().stream()
        stream.send(infer_message("stream", [[7, 3], [8, 2]], request_id="r"), end=True)
        assert await stream.done() == OK
        answers = [message.infer_response for message in stream.messages]
        assert [rows_of(answer) for answer in answers] == [[[7, 7, 7]], [[8, 8]]]
        finals = [answer.parameters["triton_final_response"].bool_param for answer in answers]
        assert finals == [False, True]
        assert {answer.model_name for answer in answers} == {"stream"}
