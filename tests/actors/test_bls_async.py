"""Async models, and calls under asyncio and trio, on real threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.calling import (
    ECHO,
    NOTES,
    calling_core,
    eventually,
    write_caller,
)
from tritrio.protocol.errors import FailureReason

GATHER = """
import asyncio

class TritonPythonModel:
    {kind} execute(self, requests):
        async def ask():
            calls = [call("b", str(number)).async_exec() for number in range(100)]
            return [text_of(response) for response in await asyncio.gather(*calls)]
        texts = {run}
        return [answer(" ".join(texts))]
"""
NURSERY = """
import trio

class TritonPythonModel:
    async def execute(self, requests):
        texts = {}
        async def ask(number):
            texts[number] = text_of(await call("b", str(number)).async_exec())
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, number)
        return [answer(" ".join(texts[number] for number in range(100)))]
"""
OWN_LOOP = NURSERY.replace("async def execute(self, requests):", "def execute(self, requests):", 1)
OWN_LOOP = OWN_LOOP.replace(
    """        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, number)
""",
    """        async def main():
            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(ask, number)
        trio.run(main)
""",
)


@pytest.fixture(autouse=True)
def notes() -> None:
    NOTES.clear()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(GATHER.format(kind="async def", run="await ask()"), id="asyncio-execute"),
        pytest.param(GATHER.format(kind="def", run="asyncio.run(ask())"), id="asyncio-run"),
        pytest.param(NURSERY, id="trio-execute"),
        pytest.param(OWN_LOOP, id="trio-run"),
    ],
)
async def test_a_hundred_calls_at_once_are_all_answered(tmp_path: Path, code: str) -> None:
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO, instances=2)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == " ".join(map(str, range(100)))
        assert core.version("b").statistics.success.count == 100


async def test_calls_that_are_made_before_any_is_awaited_run_side_by_side(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    async def execute(self, requests):
        calls = [call("b", str(number)).async_exec() for number in range(2)]
        return [answer("".join([text_of(await each) for each in calls]))]
"""
    both = """
import time

class TritonPythonModel:
    def execute(self, requests):
        NOTES.append(asked(requests[0]))
        while len(NOTES) < 2:
            time.sleep(0.001)
        return [answer("x")]
"""
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", both, instances=2)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == "xx"


async def test_an_async_model_runs_while_the_loop_does_other_things(tmp_path: Path) -> None:
    code = """
import trio

class TritonPythonModel:
    async def execute(self, requests):
        NOTES.append(threading.current_thread() is threading.main_thread())
        await trio.sleep(0)
        return [answer(asked(request)) for request in requests]
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "hello") == "hello"
        assert NOTES == [True]
        statistics = core.version("a").statistics
        assert (statistics.success.count, statistics.execution_count) == (1, 1)
        assert statistics.compute_infer.ns > 0


async def test_an_async_execution_is_cancelled_when_nobody_waits_for_it(tmp_path: Path) -> None:
    code = """
import trio

class TritonPythonModel:
    async def execute(self, requests):
        NOTES.append("started")
        try:
            await trio.sleep_forever()
        finally:
            NOTES.append("ended")
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path) as core:
        for number in range(2):  # the instance goes on
            reply = core.submit("a")
            await eventually(lambda: NOTES[-1:] == ["started"])
            reply.close()
            await eventually(lambda: NOTES[-1] == "ended")
            await eventually(
                lambda expected=number + 1: (
                    core.version("a").statistics.failures[FailureReason.CANCELED] == expected
                )
            )
        assert NOTES == ["started", "ended"] * 2


async def test_a_cancelled_async_execution_cancels_its_calls(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    async def execute(self, requests):
        return [answer(text_of(await call("b").async_exec()))]
"""
    endless = code.replace('text_of(await call("b").async_exec())', "await trio.sleep_forever()")
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", f"import trio\n{endless}")
    async with calling_core(tmp_path) as core:
        reply = core.submit("a")
        statistics = core.version("b").statistics
        await eventually(lambda: statistics.execution_count == 0 and not statistics.pending_count)
        await wait_all_tasks_blocked(0.01)
        reply.close()
        await wait_all_tasks_blocked(0.01)
        for name in "ab":
            failures = core.version(name).statistics.failures
            assert failures[FailureReason.CANCELED] == 1


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ('raise ValueError("no")', "raised ValueError: no (at 1/model.py:"),
        ("raise SystemExit(3)", "raised SystemExit: 3 (at 1/model.py:"),
        ("return 5", "must return a list of responses, got int"),
        ("raise BaseException('odd')", "failed with BaseException: odd"),
        ("raise KeyboardInterrupt", "failed with KeyboardInterrupt"),
        (
            "async with trio.open_nursery() as nursery: nursery.start_soon(trio.sleep, 'long')",
            "raised TypeError: ",
        ),
        (
            'return [call("a").exec()]',
            (
                "raised triton_python_backend_utils.TritonModelException: an async execute runs on "
                "the server's event loop, which exec() would block: await async_exec() instead"
            ),
        ),
    ],
)
async def test_a_fault_of_an_async_model_fails_its_batch_only(
    tmp_path: Path, statement: str, message: str
) -> None:
    code = f"""
import trio

class TritonPythonModel:
    async def execute(self, requests):
        if asked(requests[0]) == "good":
            return [answer("fine")]
        {statement}
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path) as core:
        error = await core.ask("a", "bad")
        assert error is not None
        assert error.startswith("INTERNAL: model instance 'a_0_0'")
        assert message in error
        assert await core.ask("a", "good") == "fine"


async def test_an_async_execution_that_hangs_is_cut_off(tmp_path: Path) -> None:
    code = """
import trio

class TritonPythonModel:
    async def execute(self, requests):
        await trio.sleep(float(asked(requests[0])))
        return [answer("fine")]
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path, hang_s=0.1) as core:
        error = await core.ask("a", "inf")
        assert error is not None
        assert error.startswith("INTERNAL: model instance 'a_0_0' did not survive the request")
        assert await core.ask("a", "0") == "fine"


async def test_a_stop_that_is_out_of_time_cuts_an_async_execution_off(tmp_path: Path) -> None:
    code = """
import trio

class TritonPythonModel:
    async def execute(self, requests):
        NOTES.append("started")
        await trio.sleep_forever()
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path, exit_timeout_s=0.05, in_time=False) as core:
        reply = core.submit("a")
        await eventually(lambda: NOTES == ["started"])
    response = await reply.receive()
    assert response.error is not None
    assert response.error.message == "the model was stopped before it answered the request"


async def test_a_decoupled_async_model_sends_as_it_goes(tmp_path: Path) -> None:
    code = """
import trio

class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                await trio.sleep(0)
                sender.send(answer(str(number)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    write_caller(tmp_path, "a", code, decoupled=True)
    async with calling_core(tmp_path) as core:
        assert await core.ask_all("a") == ["0", "1", "2", None]
