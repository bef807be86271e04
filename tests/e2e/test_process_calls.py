"""Models in processes of their own that call other models, and measure."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.backends.processes import children_of
from tests.support.calling import ECHO, REPEAT, CallingCore, calling_core, eventually, write_caller

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RELAY = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(text_of(call({callee!r}, asked(request)).exec())) for request in requests]
"""


def in_processes(repository: Path) -> AbstractAsyncContextManager[CallingCore]:
    settings = {"python": {"execution-mode": "process"}}
    return calling_core(repository, backend_settings=settings)


async def test_a_model_calls_another_across_two_processes(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="b"))
    write_caller(tmp_path, "b", ECHO)
    async with in_processes(tmp_path) as core:
        assert len(children_of(os.getpid())) == 2
        assert [await core.ask("a", text) for text in ("hello", "x" * 200_000)] == [
            "hello",
            "x" * 200_000,
        ]
        assert core.version("b").statistics.success.count == 2
        assert await core.ask("a", "no" * 3) == "nonono"
    assert children_of(os.getpid()) == []


async def test_an_error_of_the_callee_is_the_answer_to_its_caller(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="nobody"))
    async with in_processes(tmp_path) as core:
        text = await core.ask("a")
        assert text is not None
        assert text.startswith("NOT_FOUND: ")


async def test_a_call_that_would_wait_for_itself_is_told_so(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="a"))
    async with in_processes(tmp_path) as core:
        text = await core.ask("a")
        assert text is not None
        assert "would wait for itself" in text


async def test_a_call_with_many_responses_is_read_to_its_end_or_cancelled(tmp_path: Path) -> None:
    code = """
    import itertools

    class TritonPythonModel:
        def execute(self, requests):
            most, stop = asked(requests[0]).split()
            responses = itertools.islice(call("b", most).exec(decoupled=True), int(stop))
            texts = [text_of(response) for response in responses if response.output_tensors()]
            return [answer(" ".join(texts[-1:]) + f" of {len(texts)}")]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", REPEAT, decoupled=True)
    async with in_processes(tmp_path) as core:
        assert await core.ask("a", "500 501") == "499 of 500"
        assert await core.ask("a", "1000000 3") == "2 of 3"
        await eventually(lambda: core.version("b").statistics.pending_count == 0)
        assert await core.ask("a", "5 6") == "4 of 5"


async def test_an_async_execute_calls_several_at_once(tmp_path: Path) -> None:
    code = """
    import asyncio

    class TritonPythonModel:
        async def execute(self, requests):
            calls = [call("b", str(number)).async_exec() for number in range(5)]
            return [answer(" ".join(text_of(r) for r in await asyncio.gather(*calls)))]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO)
    async with in_processes(tmp_path) as core:
        assert await core.ask("a") == "0 1 2 3 4"


async def test_a_caller_that_dies_takes_its_call_with_it_and_nothing_else(tmp_path: Path) -> None:
    code = """
    import os, threading

    class TritonPythonModel:
        def execute(self, requests):
            if asked(requests[0]) == "die":
                threading.Timer(0.1, os._exit, (3,)).start()
                call("b", "wait").exec()
            return [answer("alive")]
    """
    waits = """
    import time

    class TritonPythonModel:
        def execute(self, requests):
            while not requests[0].is_cancelled():
                time.sleep(0.001)
            return [answer("late")]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", waits)
    async with in_processes(tmp_path) as core:
        assert await core.ask("a", "die") == (
            "INTERNAL: model instance 'a_0_0' did not survive the request: "
            "its process ended with exit code 3"
        )
        statistics = core.version("b").statistics
        await eventually(lambda: sum(statistics.failures.values()) == 1)
        assert await core.ask("a", "live") == "alive"


async def test_metrics_and_questions_reach_the_server(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            family = pb_utils.MetricFamily("seen", "Requests.", pb_utils.MetricFamily.COUNTER)
            self.metric = family.Metric(labels={"who": "me"})
            try:
                pb_utils.MetricFamily("nv_inference_x", "", pb_utils.MetricFamily.GAUGE)
            except Exception as error:
                self.refused = type(error).__name__
        def execute(self, requests):
            self.metric.increment(2)
            ready = [pb_utils.is_model_ready(name) for name in ("a", "nobody")]
            return [answer(f"{self.metric.value()} {self.refused} {ready}")]
    """
    write_caller(tmp_path, "a", code)
    async with in_processes(tmp_path) as core:
        assert [await core.ask("a") for _ in range(2)] == [
            f"{value} TritonModelException [True, False]" for value in (2.0, 4.0)
        ]
