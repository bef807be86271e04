"""Calls with any number of responses, on real threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.calling import (
    ECHO,
    NOTES,
    REPEAT,
    calling_core,
    eventually,
    write_caller,
)
from tritrio.actors._response_gate import RESPONSES_WAITING_MAX
from tritrio.backends.server_link import RESPONSES_AHEAD
from tritrio.protocol.errors import FailureReason

LISTING = """
class TritonPythonModel:
    def execute(self, requests):
        responses = call("many", asked(requests[0])).exec(decoupled=True)
        return [answer(json.dumps([text_of(response) for response in responses]))]
"""
FOREVER = """
class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        while not sender.is_cancelled():
            sender.send(answer("again"))
        NOTES.append("cancelled")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(autouse=True)
def notes() -> None:
    NOTES.clear()


async def test_every_response_comes_in_order_and_the_last_may_be_empty(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", LISTING)
    write_caller(tmp_path, "many", REPEAT, decoupled=True)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "0") == "[null]"
        assert await core.ask("a", "3") == '["0", "1", "2", null]'
        assert await core.ask("a", "1000") == (
            "[" + ", ".join(f'"{number}"' for number in range(1000)) + ", null]"
        )


async def test_a_model_that_is_not_decoupled_gives_one_response(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", LISTING)
    write_caller(tmp_path, "many", ECHO)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "x") == '["x"]'


@pytest.mark.parametrize(
    ("execute", "loop"),
    [
        ("def", ""),
        ("async def", ""),
        ("async def", "import asyncio"),
    ],
)
async def test_an_iterator_that_is_left_half_way_cancels_its_call(
    tmp_path: Path, execute: str, loop: str
) -> None:
    start = "exec" if execute == "def" else "async_exec"
    wait = "" if execute == "def" else "await "
    code = f"""
{loop}

class TritonPythonModel:
    {execute} execute(self, requests):
        responses = {wait}call("many").{start}(decoupled=True)
        {wait and "async "}for response in responses:
            break
        return [answer(text_of(response))]
"""
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "many", FOREVER, decoupled=True)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == "again"
        await eventually(lambda: NOTES == ["cancelled"])
        assert core.version("many").statistics.failures[FailureReason.CANCELED] == 1


async def test_a_model_that_raises_while_it_reads_responses_cancels_the_call(
    tmp_path: Path,
) -> None:
    code = """
class TritonPythonModel:
    def execute(self, requests):
        for response in call("many").exec(decoupled=True):
            raise ValueError("enough")
"""
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "many", FOREVER, decoupled=True)
    async with calling_core(tmp_path) as core:
        error = await core.ask("a")
        assert error is not None
        assert "ValueError: enough" in error
        await eventually(lambda: NOTES == ["cancelled"])


async def test_an_iterator_says_that_it_was_cancelled(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    def execute(self, requests):
        responses = call("many").exec(decoupled=True)
        next(responses)
        responses.cancel()
        *_, last = [text_of(response) for response in responses]
        responses.cancel()
        return [answer(f"{last} {list(responses)}")]
"""
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "many", FOREVER, decoupled=True)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == (
            "CANCELLED: the call was cancelled before it was answered []"
        )


async def test_a_callee_is_slowed_down_to_the_pace_of_its_caller(tmp_path: Path) -> None:
    code = """
import time

class TritonPythonModel:
    def execute(self, requests):
        responses = call("many").exec(decoupled=True)
        texts = [text_of(next(responses)) for _ in range(100)]
        seen = -1
        while seen != len(NOTES):
            seen = len(NOTES)
            time.sleep(0.05)
        return [answer(str(len(NOTES)))]
"""
    forever = FOREVER.replace(
        'sender.send(answer("again"))', "NOTES.append(sender.send(answer('')))"
    )
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "many", forever, decoupled=True)
    async with calling_core(tmp_path) as core:
        sent = await core.ask("a")
        assert sent is not None
        assert 100 < int(sent) <= 100 + RESPONSES_AHEAD + RESPONSES_WAITING_MAX


async def test_an_error_in_mid_stream_is_a_response(tmp_path: Path) -> None:
    code = REPEAT.replace(
        "            sender.send(flags",
        '            error = pb_utils.TritonError("ran out")\n'
        "            sender.send(pb_utils.InferenceResponse(error=error))\n"
        "            sender.send(flags",
    )
    write_caller(tmp_path, "a", LISTING)
    write_caller(tmp_path, "many", code, decoupled=True)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "1") == '["0", "INTERNAL: ran out", null]'
