"""Models that call models, and text, where a test has no server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritrio
from tests.support.calling import ECHO, write_caller
from tests.testing_plugin.models import Serve
from tritrio.server import StartError

EXEC = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(text_of(call("echo", asked(request)).exec())) for request in requests]
"""

GATHER = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        calls = [call("echo", asked(request)).async_exec() for request in requests]
        return [answer(text_of(response)) for response in await asyncio.gather(*calls)]
"""

IN_A_THREAD = """
from concurrent.futures import ThreadPoolExecutor

class TritonPythonModel:
    def execute(self, requests):
        with ThreadPoolExecutor(1) as pool:
            responses = pool.map(lambda request: call("echo", asked(request)).exec(), requests)
        return [answer(text_of(response)) for response in responses]
"""

ON_TRIO = """
class TritonPythonModel:
    async def execute(self, requests):
        return [
            answer(text_of(await call("echo", asked(request)).async_exec()) + "!")
            for request in requests
        ]
"""

INITIALIZE = """
class TritonPythonModel:
    def initialize(self, args):
        call("echo", "hello").exec()

    def execute(self, requests):
        return []
"""

REFUSED = (
    "instance 'caller_0_0' waits for another model, 'echo', which cannot run meanwhile: without a "
    "server all models run on one thread; use an 'async def execute' that imports no asyncio and "
    "awaits async_exec(), or test it with a server"
)


@pytest.mark.parametrize("code", [EXEC, GATHER, IN_A_THREAD])
async def test_a_call_that_could_never_be_answered_is_refused_at_once(
    serve_models: Serve, tmp_path: Path, code: str
) -> None:
    write_caller(tmp_path, "echo", ECHO)
    write_caller(tmp_path, "caller", code)
    async with serve_models(tmp_path) as served:
        error = await served.at(0.0, {"IN": ["hello"]}, model="caller").error()
        assert REFUSED in error.message
        assert "TritonModelException" in error.message
        assert served.batches_of("echo") == []


async def test_a_call_while_a_model_is_loaded_is_refused_at_once(
    serve_models: Serve, tmp_path: Path
) -> None:
    write_caller(tmp_path, "echo", ECHO)
    write_caller(tmp_path, "caller", INITIALIZE)
    with pytest.raises(StartError, match=re.escape(REFUSED)):
        async with serve_models(tmp_path):
            pass


async def test_an_execute_that_trio_runs_awaits_its_calls_in_virtual_time(
    serve_models: Serve, tmp_path: Path
) -> None:
    write_caller(tmp_path, "echo", ECHO)
    write_caller(tmp_path, "caller", ON_TRIO)
    async with serve_models(tmp_path, execution_s=0.25) as served:
        answer = await served.at(0.0, {"IN": ["hello"]}, model="caller")
        assert answer["OUT"].tolist() == [b"hello!"]
        assert answer.at_s == 0.25
        assert [batch.model for batch in served.batches] == ["echo"]


@tritrio.model(inputs={"x": "BYTES[-1]"}, outputs={"y": "BYTES[-1]"})
def types(x: Any) -> Any:
    return [f"{type(each).__name__} {each.decode()}" for each in x]


@pytest.mark.parametrize(
    "given", [["é", b"b"], np.array(["é", b"b"], object), np.array(["é", "b"])]
)
async def test_text_reaches_a_model_as_bytes(serve_models: Serve, given: Any) -> None:
    async with serve_models(types) as served:
        answer = await served.at(0.0, {"x": given})
        assert answer["y"].tolist() == ["bytes é".encode(), b"bytes b"]
