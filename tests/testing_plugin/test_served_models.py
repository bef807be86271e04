"""What a test of a model can see and do, to the exact virtual second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.tiny_causal import write_tiny
from tests.support.memory_server import write_models
from tests.testing_plugin.models import (
    DELAY_S,
    Serve,
    double,
    kept,
    repeat,
    sleepy,
    sleepy_repeat,
    steps,
    wide,
)
from tritrio import ErrorCode, RequestError
from tritrio.memory.cache_config import parse_cache_config
from tritrio.protocol.requests import Parameters
from tritrio.server import StartError
from tritrio.testing import ExecutedBatch


async def test_a_batch_leaves_when_its_oldest_request_has_waited_long_enough(
    serve_models: Serve,
) -> None:
    async with serve_models(double, execution_s=0.25) as served:
        first = served.at(0.5, {"x": [[1]]})
        second = served.at(0.5 + 1 / 128, {"x": [[2], [3]]}, id="late")
        assert (await first)["y"].tolist() == [[2]]
        answer = await second
        assert answer["y"].tolist() == [[4], [6]]
        assert answer.at_s == served.now_s == 0.5 + DELAY_S + 0.25
        assert served.batches == [ExecutedBatch(0.5 + DELAY_S, ("1", "late"), 3, "delay over")]
        assert (served.batches[0].model, served.batches[0].instance) == ("double", "double_0_0")


async def test_a_full_batch_leaves_at_once_and_the_next_waits_for_the_instance(
    serve_models: Serve,
) -> None:
    async with serve_models(double, execution_s=0.25) as served:
        calls = [served.at(0.0, {"x": [[number]]}) for number in range(6)]
        for call in calls:
            await call
        assert served.batches == [
            ExecutedBatch(0.0, ("1", "2", "3", "4"), 4, "full"),
            ExecutedBatch(0.25, ("5", "6"), 2, "delay over"),
        ]


async def test_steps_of_a_model_that_generates_text_take_as_long_as_executions(
    serve_models: Serve, tmp_path: Path
) -> None:
    directory = write_tiny(tmp_path).model_directory
    (directory / "config.pbtxt").write_text('backend: "llm"')
    async with serve_models(directory, execution_s=0.25) as served:
        parameters: Parameters = {"max_tokens": 3, "temperature": 0.0}
        inputs = {"text_input": ["w1 w2"], "stream": [True]}
        call = served.at(0.5, inputs, parameters=parameters)
        later = served.at(2.0, inputs, parameters=parameters)
        assert [answer.at_s for answer in await call.answers()] == [0.75, 1.0, 1.25]
        assert [answer.at_s for answer in await later.answers()] == [2.25, 2.5, 2.75]
        assert served.batches == []


async def test_what_an_execution_takes_may_depend_on_the_batch(serve_models: Serve) -> None:
    async with serve_models(double, execution_s=lambda batch: batch.rows / 8) as served:
        one = served.at(0.0, {"x": [[1]]})
        many = served.at(1.0, {"x": [[1], [2], [3], [4]]})
        assert (await one).at_s == DELAY_S + 0.125
        assert (await many).at_s == 1.5


async def test_each_instance_takes_a_batch(serve_models: Serve) -> None:
    async with serve_models(wide, execution_s=0.25) as served:
        for _ in range(8):
            served.at(0.0, {"x": [[1]]})
        await served.advance(1.0)
        assert [(batch.at_s, batch.reason) for batch in served.batches] == [(0.0, "full")] * 2
        assert {batch.instance for batch in served.batches} == {"wide_0_0", "wide_0_1"}


async def test_a_request_that_is_cancelled_in_the_queue_is_in_no_batch(
    serve_models: Serve,
) -> None:
    async with serve_models(double) as served:
        gone = served.at(0.0, {"x": [[1]]})
        stays = served.at(1 / 256, {"x": [[2]]})
        gone.cancel_at(1 / 128)
        with pytest.raises(
            RequestError, match=r"request 1 was cancelled at 0\.0078125 s"
        ) as caught:
            await gone
        assert caught.value.code is ErrorCode.CANCELLED
        assert served.now_s == 1 / 128
        await stays
        assert served.batches == [ExecutedBatch(1 / 256 + DELAY_S, ("2",), 1, "delay over")]


async def test_a_request_may_be_cancelled_before_it_is_sent_and_while_it_executes(
    serve_models: Serve,
) -> None:
    async with serve_models(double, execution_s=1.0) as served:
        executing = served.at(0.0, {"x": [[1]]})
        unsent = served.at(0.5, {"x": [[2]]})
        unsent.cancel()
        await served.advance(0.5)
        executing.cancel()
        assert (await executing.error()).code is ErrorCode.CANCELLED
        assert (await unsent.error()).message == "request 2 was cancelled at 0 s"
        assert served.now_s == 0.5
        await served.advance(2.0)
        assert [batch.ids for batch in served.batches] == [("1",)]


async def test_an_answered_request_cannot_be_cancelled_any_more(serve_models: Serve) -> None:
    async with serve_models(double) as served:
        call = served.at(0.0, {"x": [[1]]})
        await call
        call.cancel()
        assert (await call)["y"].tolist() == [[2]]


async def test_a_request_that_does_not_fit_the_model_is_refused_as_by_the_server(
    serve_models: Serve,
) -> None:
    async with serve_models(double) as served:
        wrong = served.at(0.0, {"x": np.zeros((1, 1))})
        with pytest.raises(RequestError, match="has datatype 'FP64', but model 'double' expects"):
            await wrong
        assert (await served.at(0.0, {}).error()).code is ErrorCode.INVALID_ARG
        assert served.batches == []


async def test_a_failure_that_nobody_asked_for_fails_the_test(serve_models: Serve) -> None:
    with pytest.raises(RequestError, match="has datatype 'FP64'"):
        async with serve_models(double) as served:
            served.at(0.0, {"x": np.zeros((1, 1))})


async def test_what_fails_in_the_block_is_raised_as_it_is(serve_models: Serve) -> None:
    async def fail() -> None:
        async with serve_models(double) as served:
            served.at(5.0, {"x": [[1]]})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_at_the_end_every_request_is_waited_for(serve_models: Serve) -> None:
    async with serve_models(double, execution_s=0.25) as served:
        call = served.at(2.0, {"x": [[1]]})
    assert (await call).at_s == 2.25 + DELAY_S


async def test_a_time_that_is_past_is_refused(serve_models: Serve) -> None:
    async with serve_models(double) as served:
        await served.advance(1.0)
        with pytest.raises(ValueError, match=r"expected a time from now on, 1 s, got 0\.5 s"):
            served.at(0.5, {"x": [[1]]})


async def test_of_several_models_one_has_to_be_named(serve_models: Serve) -> None:
    async with serve_models(double, wide) as served:
        with pytest.raises(ValueError, match=r"expected model= as one of \['double', 'wide'\]"):
            served.at(0.0, {"x": [[1]]})
        served.at(0.0, {"x": [[1]]}, model="double")
        await served.at(1.0, {"x": [[1]]}, model="wide")
        assert [batch.ids for batch in served.batches_of("wide")] == [("2",)]
        assert [batch.ids for batch in served.batches_of("double")] == [("1",)]


async def test_each_response_of_a_generator_is_an_answer(serve_models: Serve) -> None:
    async with serve_models(repeat, execution_s=0.5) as served:
        answers = await served.at(0.0, {"x": [[3]]}).answers()
        assert [(answer["y"].tolist(), answer.at_s) for answer in answers] == [([[3]], 0.5)] * 3
        with pytest.raises(ValueError, match="expected one response to request 2, got 2"):
            await served.at(1.0, {"x": [[2]]})


async def test_an_async_function_sleeps_in_no_time(serve_models: Serve) -> None:
    async with serve_models(sleepy, execution_s=0.25) as served:
        answer = await served.at(0.0, {"x": [[1]]})
        assert (answer["y"].tolist(), answer.at_s) == ([[2]], 0.25)


async def test_an_async_generator_is_not_held_back_by_the_client_it_runs_beside(
    serve_models: Serve,
) -> None:
    async with serve_models(sleepy_repeat) as served:
        assert len(await served.at(0.0, {"x": [[2000]]}).answers()) == 2000


async def test_options_of_the_server_hold(serve_models: Serve) -> None:
    cache = parse_cache_config(["local,size=99999"], response_cache_byte_size=None, environment={})
    async with serve_models(kept, cache=cache) as served:
        await served.at(0.0, {"x": [[1]]})
        again = await served.at(1.0, {"x": [[1]]})
        assert again.at_s == 1.0
        assert [batch.ids for batch in served.batches] == [("1",)]


async def test_a_scheduler_that_gives_no_reasons_has_none(serve_models: Serve) -> None:
    async with serve_models(steps) as served:
        await served.at(0.0, {"x": [[1]]}, sequence_id=7, sequence_start=True, sequence_end=True)
        assert served.batches == [ExecutedBatch(0.0, ("1",), 1, None)]


async def test_a_repository_and_one_of_its_models_can_be_run(
    serve_models: Serve, tmp_path: Path
) -> None:
    write_models(tmp_path, only=("plain", "repeat"))
    async with serve_models(tmp_path, double) as served:
        answers = await served.at(0.0, {"INPUT0": [[7, 2]]}, model="repeat").answers()
        assert answers[0]["OUTPUT0"].tolist() == [[7, 7]]
        await served.at(0.0, {"x": [[1]]}, model="double")
    async with serve_models(str(tmp_path / "plain")) as served:
        answer = await served.at(0.0, {"INPUT0": [[7, 2]]})
        assert answer["OUTPUT0"].tolist() == [[7, 2]]
        assert answer.parameters["param1"] == 42


async def test_a_model_that_cannot_be_loaded_says_why(serve_models: Serve, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "function"')
    with pytest.raises(StartError, match=r"model m cannot be loaded: .* no file model\.py"):
        async with serve_models(tmp_path / "m"):
            pass


async def test_the_same_test_runs_the_same_whatever_trio_schedules(serve_models: Serve) -> None:
    runs = []
    for _ in range(20):
        async with serve_models(wide, execution_s=1 / 128) as served:
            for number in range(20):
                served.at((number // 3 * 4 + 1) / 1024, {"x": [[number]]})
            await served.advance(1.0)
            runs.append(served.batches)
    assert runs == [runs[0]] * 20
