"""Models in the process of a program that does not run on trio."""

from __future__ import annotations

import asyncio  # noqa: TID251 - a program may run on it
import os
import signal
import threading
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

import tritrio
from tritrio.protocol.errors import ErrorCode
from tritrio.server import StartError

from .models import SlowStart, begun, count, double, let_go, wait

WAIT_S = 20.0


def test_a_script_asks_a_model() -> None:
    with tritrio.BlockingServer(double) as server:
        answer = server.model("double").infer({"x": np.array([[1.5]], np.float32)}, id="r")
        assert (answer["y"].tolist(), answer.id) == ([[3.0]], "r")
        assert server.ready()
        assert server.live()
        assert server.index(ready=True)[0]["name"] == "double"
        assert server.model("double").ready()
        assert server.model("double").config()["name"] == "double"
        assert server.model("double").metadata()["versions"] == ["1"]
        assert server.model("double").statistics() == server.statistics()
        assert "# TYPE nv_inference_count counter\n" in server.metrics()
        assert 'nv_inference_count{model="double",version="1"} 1.0' in server.metrics()
        assert server.metadata()["name"] == "triton"


def test_errors_are_raised_where_the_request_is_made() -> None:
    with tritrio.BlockingServer(double) as server:
        with pytest.raises(tritrio.RequestError, match="missing"):
            server.model("double").infer({})
        with pytest.raises(tritrio.RequestError, match="nobody"):
            next(iter(server.model("nobody").stream({})))


def test_responses_are_iterated_over() -> None:
    with tritrio.BlockingServer(count) as server:
        model = server.model("count")
        assert [answer["i"].tolist() for answer in model.stream({"n": [3]})] == [[0], [1], [2]]
        for answer in model.stream({"n": [500_000]}):
            assert answer["i"].tolist() == [0]
            break
        assert [answer["i"].tolist() for answer in model.stream({"n": [1]})] == [[0]]


def test_many_threads_may_ask_at_once() -> None:
    answers: SimpleQueue[tuple[int, float]] = SimpleQueue()
    with tritrio.BlockingServer(double) as server:

        def ask(number: int) -> None:
            answer = server.model("double").infer({"x": [[number]]})
            answers.put((number, answer["y"].item()))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]  # noqa: TID251
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [answers.get_nowait() for _ in range(8)]
    assert sorted(found) == [(number, 2.0 * number) for number in range(8)]


def test_it_works_below_another_event_loop() -> None:
    async def ask() -> float:
        with tritrio.BlockingServer(double) as server:
            answer = await asyncio.to_thread(server.model("double").infer, {"x": [[2]]})
            return float(answer["y"].item())

    assert asyncio.run(ask()) == 4.0


def test_an_interrupt_cancels_what_is_waited_for() -> None:
    let_go.clear()
    begun.clear()
    with tritrio.BlockingServer(wait) as server:
        model = server.model("wait")

        def interrupt() -> None:
            begun.wait(WAIT_S)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)  # noqa: TID251
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            model.infer({"x": [1]})
        thread.join()
        for _ in range(3):  # the cancellation goes before these, and takes a turn of its loop
            assert server.ready()
        let_go.set()
        assert model.infer({"x": [2]})["y"].tolist() == [2]
        assert 'reason="CANCELED",version="1"} 1.0' in server.metrics()


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    before = set(threading.enumerate())
    with pytest.raises(StartError, match="broken"), tritrio.BlockingServer(tmp_path):
        raise AssertionError("unreachable")
    assert set(threading.enumerate()) <= before


def test_an_interrupted_start_leaves_no_thread() -> None:
    let_go.clear()
    begun.clear()

    def interrupt() -> None:
        begun.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGINT)

    before = set(threading.enumerate())
    thread = threading.Thread(target=interrupt)  # noqa: TID251
    thread.start()
    with pytest.raises(KeyboardInterrupt), tritrio.BlockingServer(SlowStart):
        raise AssertionError("unreachable")
    let_go.set()
    thread.join()
    for each in set(threading.enumerate()) - before:
        if not each.name.startswith("Trio thread"):  # those are kept for the next
            each.join(WAIT_S)
            assert not each.is_alive()


def test_nothing_is_left_after_the_block() -> None:
    with tritrio.BlockingServer(double) as server:
        assert server.ready()
        named = [each for each in threading.enumerate() if each.name == "tritrio"]
    assert len(named) == 1
    named[0].join(5)
    assert not named[0].is_alive()


def test_a_server_that_does_not_run_says_so() -> None:
    server = tritrio.BlockingServer(count)
    with pytest.raises(tritrio.RequestError, match="not running") as caught:
        server.model("count")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    with server:
        model = server.model("count")
        left = iter(model.stream({"n": [2]}))
        assert next(left)["i"].tolist() == [0]
    for ask in (
        server.ready,
        lambda: server.load("count"),
        lambda: model.infer({"n": [1]}),
        lambda: next(iter(model.stream({"n": [1]}))),
        lambda: next(left),
    ):
        with pytest.raises(tritrio.RequestError, match="not running"):
            ask()
