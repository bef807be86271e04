"""Models in the process of a program that runs on trio."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import tritrio
from tritrio.protocol.errors import ErrorCode
from tritrio.server import StartError

from .models import count, double, let_go, shout, wait


async def test_a_model_answers_arrays_and_what_they_are_made_from() -> None:
    async with tritrio.Server(double) as server:
        model = server.model("double")
        answer = await model.infer({"x": np.array([[1.5], [2.5]], np.float32)}, id="an id")
        assert answer["y"].tolist() == [[3.0], [5.0]]
        assert answer["y"].dtype == np.float32
        assert (answer.id, answer.model_name, answer.model_version) == ("an id", "double", "1")
        assert (await model.infer({"x": [[1]]})).outputs["y"].tolist() == [[2.0]]


async def test_text_goes_in_and_bytes_come_out() -> None:
    async with tritrio.Server(shout) as server:
        answer = await server.model("shout").infer({"text": ["h\u00e9", b"you"]})
        assert answer["loud"].tolist() == ["H\u00c9".encode(), b"YOU"]


async def test_requests_of_many_tasks_each_get_their_own_answer() -> None:
    answers: dict[int, Any] = {}
    async with tritrio.Server(double) as server:

        async def ask(number: int) -> None:
            answers[number] = (await server.model("double").infer({"x": [[number]]}))["y"].tolist()

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
        (entry,) = server.statistics()["model_stats"]
        assert entry["inference_count"] == 50
    assert answers == {number: [[2.0 * number]] for number in range(50)}


async def test_the_responses_of_a_decoupled_model_are_iterated_over() -> None:
    async with tritrio.Server(count) as server:
        model = server.model("count")
        seen = [answer["i"].tolist() async for answer in model.stream({"n": [3]}, id="s")]
        assert seen == [[0], [1], [2]]
        assert [answer async for answer in model.stream({"n": [0]})] == []
        with pytest.raises(tritrio.RequestError, match="decoupled") as caught:
            await model.infer({"n": [1]})
        assert caught.value.code is ErrorCode.UNSUPPORTED


async def test_a_stream_has_one_response_where_the_model_gives_one() -> None:
    async with tritrio.Server(double) as server:
        stream = server.model("double").stream({"x": [[1]]})
        assert [answer["y"].tolist() async for answer in stream] == [[[2.0]]]


async def cancelled_count(server: tritrio.Server, model: str) -> float:
    """Wait until a request of a model has been cancelled; how many have."""
    name = f'nv_inference_request_failure{{model="{model}",reason="CANCELED",version="1"}} '
    while True:
        (line,) = (line for line in server.metrics().splitlines() if line.startswith(name))
        cancelled = float(line.removeprefix(name))
        if cancelled:
            return cancelled
        await trio.sleep(0.01)


@pytest.mark.parametrize("how", ["block", "close", "drop"])
async def test_leaving_a_stream_early_cancels_its_request(how: str) -> None:
    async with tritrio.Server(count) as server:
        stream = server.model("count").stream({"n": [500_000]})
        if how == "block":
            async with stream:
                assert (await anext(stream))["i"].tolist() == [0]
        else:
            assert (await anext(stream))["i"].tolist() == [0]
            if how == "close":
                stream.close()
        if how != "drop":
            assert [answer async for answer in stream] == []
        del stream
        assert await cancelled_count(server, "count") == 1
        assert [a["i"].tolist() async for a in server.model("count").stream({"n": [1]})] == [[0]]


async def test_cancelling_the_wait_cancels_the_request() -> None:
    let_go.clear()
    async with tritrio.Server(wait) as server:
        model = server.model("wait")
        first = model.stream({"x": [1]})
        with trio.move_on_after(0.01) as scope:
            await model.infer({"x": [2]})
        assert scope.cancelled_caught
        let_go.set()
        assert [answer["y"].tolist() async for answer in first] == [[1]]
        assert await cancelled_count(server, "wait") == 1
        assert (await model.infer({"x": [3]}))["y"].tolist() == [3]


@pytest.mark.parametrize(
    ("inputs", "options", "told"),
    [
        ({}, {}, "missing ['x']"),
        ({"x": [1.0]}, {}, "input 'x'"),
        ({"x": [["a"]]}, {}, "input 'x' must be an array of FP32"),
        ({"x": np.array([[1]], np.complex64)}, {}, "got complex64"),
        ({"x": [[1]], "z": [1]}, {}, "'z'"),
        ({"x": [[1]]}, {"outputs": ["z"]}, "'z'"),
        ({"x": [[1]]}, {"priority": -1}, "'priority' must be an integer >= 0"),
        ({"x": [[1]]}, {"parameters": {"triton_a": 1}}, "reserved prefix"),
        ({"x": [[1]]}, {"parameters": {"a": [1]}}, "'a' must be a string"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(
    inputs: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    async with tritrio.Server(double) as server:
        with pytest.raises(tritrio.RequestError) as caught:
            await server.model("double").infer(inputs, **options)
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert told in caught.value.message
        assert (await server.model("double").infer({"x": [[1]]}))["y"].tolist() == [[2.0]]


async def test_text_without_a_utf_8_form_is_refused() -> None:
    async with tritrio.Server(shout) as server:
        with pytest.raises(tritrio.RequestError, match="text that has a UTF-8 form") as caught:
            await server.model("shout").infer({"text": ["\ud800"]})
        assert caught.value.code is ErrorCode.INVALID_ARG


async def test_an_option_that_there_is_not_is_refused() -> None:
    async with tritrio.Server(double) as server:
        options: Any = {"timeout_s": 1}
        with pytest.raises(TypeError, match=r"timeout_us.*got 'timeout_s'"):
            await server.model("double").infer({"x": [[1]]}, **options)


async def test_another_loop_is_turned_away_before_it_does_harm() -> None:
    async with tritrio.Server(double, model_control="explicit", startup_models=("*",)) as server:
        model = server.model("double")

        async def ask() -> None:
            for call in (
                partial(model.infer, {"x": [[1]]}),
                partial(server.load, "double"),
                partial(server.unload, "double"),
            ):
                with pytest.raises(RuntimeError, match="BlockingServer can be asked from anywhere"):
                    await call()

        await trio.to_thread.run_sync(trio.run, ask)
        assert (await model.infer({"x": [[1]]}))["y"].tolist() == [[2.0]]


async def test_what_the_server_says_of_itself_and_its_models() -> None:
    async with tritrio.Server(double, server_id="mine") as server:
        assert server.metadata()["name"] == "mine"
        assert server.live()
        assert server.ready()
        assert server.index() == [{"name": "double", "version": "1", "state": "READY"}]
        model = server.model("double", 1)
        assert await model.ready()
        assert model.metadata()["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]
        assert model.config()["max_batch_size"] == 8
        assert model.statistics()["model_stats"][0]["inference_count"] == 0
        assert not await server.model("double", 2).ready()
        assert not await server.model("nobody").ready()
        with pytest.raises(tritrio.RequestError, match="nobody"):
            server.model("nobody").metadata()


async def test_a_model_that_cannot_be_loaded_is_the_only_error(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    with pytest.raises(StartError, match=r"broken.* exit_on_error=False"):
        async with tritrio.Server(tmp_path):
            raise AssertionError("unreachable")


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with tritrio.Server(double):
            raise ZeroDivisionError


async def test_a_model_that_is_cut_short_does_not_work_on() -> None:
    async def serve() -> None:
        async with tritrio.Server(count) as server:
            left = server.model("count").stream({"n": [900_000]})
            async for answer in left:
                assert answer["i"].tolist() == [0]
                raise KeyError("mine")

    before = set(threading.enumerate())
    with pytest.raises(KeyError, match="mine"):
        await serve()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("count"):
            await trio.to_thread.run_sync(thread.join, 5)
            assert not thread.is_alive()


@pytest.mark.parametrize("name", ["http_address", "grpc_address", "metrics_address"])
def test_sockets_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"no sockets, got {name}"):
        tritrio.Server(double, **{name: "127.0.0.1"})


CONFIG = """
backend: "identity" max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
"""


async def test_models_are_loaded_and_unloaded_on_request(tmp_path: Path) -> None:
    (tmp_path / "same" / "1").mkdir(parents=True)
    (tmp_path / "same" / "config.pbtxt").write_text(CONFIG)
    async with tritrio.Server(tmp_path, model_control="explicit") as server:
        assert server.index() == [{"name": "same"}]
        model = server.model("same")
        await server.load("same")
        assert (await model.infer({"INPUT0": [1]}))["OUTPUT0"].tolist() == [1.0]
        config = {**model.config(), "max_batch_size": 4}
        await server.load("same", config=config)
        assert (await model.infer({"INPUT0": [[1], [2]]}))["OUTPUT0"].tolist() == [[1.0], [2.0]]
        await server.unload("same")
        assert not await model.ready()
        with pytest.raises(tritrio.RequestError, match="nobody"):
            await server.load("nobody")
        text: Any = {"1/weights": "text"}
        with pytest.raises(TypeError, match="bytes-like"):
            await server.load("same", config=config, files=text)


async def test_models_stay_where_they_are_without_explicit_control() -> None:
    async with tritrio.Server(double) as server:
        for change in (server.load, server.unload):
            with pytest.raises(tritrio.RequestError) as caught:
                await change("double")
            assert caught.value.code is ErrorCode.UNAVAILABLE
