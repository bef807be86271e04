"""Models in processes of their own that die in the middle of their work, under load."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.backends.processes import children_of, descriptors, memory_files
from tests.support.server_process import ROOT, ServerProcess, running_server
from tritrio.actors._doorbell import current_doorbell
from tritrio.actors._restart_policy import RestartBudget
from tritrio.actors.core import Core, CoreOptions, run_core
from tritrio.actors.inference import submit
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.tensors import Tensor

from .raw_http import Answer as HttpAnswer, ask as ask_http

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KILLS = 50
RESPONSES = 5
SURVIVED = re.compile(
    r"model instance 'stream_0_[01]' did not survive the request: "
    r"its process was killed by SIG(KILL|SEGV)"
)

CALM = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())])
            for tensor in inputs
        ]
"""

STREAM = """
import os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,), daemon=True).start()

    def answer(self, request):
        sender = request.get_response_sender()
        count = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
        pid = pb_utils.Tensor("OUTPUT0", np.array([os.getpid()], np.int64))
        for _ in range(2 if count < 0 else count):
            sender.send(pb_utils.InferenceResponse([pid]))
            time.sleep(0.002)
        if count < 0:
            os.kill(os.getpid(), -count)
            time.sleep(60)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

HANGS = """
import time

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(1000)
"""

CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT64 dims: [ -1 ] } ]
parameters { key: "EXECUTION_MODE" value { string_value: "process" } }
"""


def write_model(repository: Path, name: str, code: str, more: str = "") -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (version.parent / "config.pbtxt").write_text(CONFIG + more)


@asynccontextmanager
async def running(repository: Path, hang_s: float = inf) -> AsyncIterator[Core]:
    """The server without its ports, on real threads; its budget never gives an instance up."""
    options = CoreOptions(
        repositories=(repository,),
        auto_complete_config=False,
        hang_s=hang_s,
        budget=RestartBudget(intensity=10 * KILLS, backoff_s=0.001, backoff_max_s=0.001),
    )
    async with trio.open_nursery() as nursery:
        core = await nursery.start(run_core, options)
        yield core
        assert await core.stop()


@dataclass
class Answer:
    """All responses to one request."""

    values: list[int] = field(default_factory=list)
    error: str = ""


async def ask(core: Core, name: str, value: int, size: int = 1) -> Answer:
    """Ask with a tensor of this value only; the answer has the sums of the outputs."""
    request = InferRequest(name)
    array = np.full(size, value, np.int64)
    request.inputs["INPUT0"] = Tensor("INPUT0", "INT64", array.shape, array=array)
    reply = submit(core.router.table.find(name), request, trio.current_time())
    answer = Answer()
    while True:
        response = await reply.receive()
        if response.error is not None:
            answer.error = response.error.message
        elif not response.empty:
            answer.values.append(int(response.outputs[0].array.sum()))
        if response.final:
            return answer


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of."""
    while not condition():  # noqa: ASYNC110 - see above
        await trio.sleep(0.001)


async def test_a_model_that_is_killed_again_and_again_fails_what_it_was_asked_and_nothing_else(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "calm", CALM)
    write_model(
        tmp_path,
        "stream",
        STREAM,
        "model_transaction_policy { decoupled: true } instance_group { count: 2 kind: KIND_CPU }",
    )
    large = 20_000
    answers: list[Answer] = []
    calm: list[Answer] = []
    killers: list[Answer] = []

    async def load(name: str, value: int, into: list[Answer], size: int = 1) -> None:
        while True:
            into.append(await ask(core, name, value, size))

    current_doorbell()  # which the event loop keeps
    gc.collect()
    before = descriptors(), threading.active_count()
    with trio.fail_after(240):
        async with running(tmp_path) as core:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(load, "stream", RESPONSES, answers)
                nursery.start_soon(load, "calm", 7, calm, large)
                while len(killers) < KILLS:
                    answers.append(await ask(core, "stream", RESPONSES))
                    number = (signal.SIGKILL, signal.SIGSEGV)[len(killers) % 2]
                    answer = await ask(core, "stream", -number)
                    if answer.values:
                        killers.append(answer)
                        assert answer.error.endswith(number.name)
                    else:  # it came to a process that was about to end
                        answers.append(answer)
                nursery.cancel_scope.cancel()
            assert len(children_of(os.getpid())) <= 3
        await until(lambda: threading.active_count() <= before[1])  # all have been told to end
    gc.collect()
    assert (descriptors(), children_of(os.getpid())) == (before[0], [])

    killed = {answer.values[0] for answer in killers}
    assert len(killed) == KILLS
    assert all(SURVIVED.fullmatch(answer.error) for answer in killers)
    assert len(calm) > KILLS
    assert all(answer == Answer([7 * large]) for answer in calm)
    assert memory_files() == 0
    whole = [answer for answer in answers if not answer.error]
    cut = [answer for answer in answers if answer.error]
    assert all(len(answer.values) == RESPONSES for answer in whole)
    assert all(SURVIVED.fullmatch(answer.error) for answer in cut)
    assert all(set(answer.values) <= killed for answer in cut)
    assert len(whole) > KILLS
    assert cut


async def test_the_process_of_an_instance_that_hangs_is_killed(tmp_path: Path) -> None:
    write_model(tmp_path, "calm", CALM)
    write_model(tmp_path, "hangs", HANGS)
    with trio.fail_after(60):
        async with running(tmp_path, hang_s=0.2) as core:
            before = set(children_of(os.getpid()))
            answer = await ask(core, "hangs", 1)
            assert answer.error == (
                "model instance 'hangs_0' did not survive the request: did not finish within 0.2 s"
            )
            assert await ask(core, "calm", 3) == Answer([3])
            await until(lambda: len(before - set(children_of(os.getpid()))) == 1)
        assert children_of(os.getpid()) == []


async def test_a_request_to_an_instance_whose_process_ended_in_between_waits_for_the_next_one(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "calm", CALM)
    with trio.fail_after(60):
        async with running(tmp_path) as core:
            for number in (signal.SIGKILL, signal.SIGSEGV):
                (pid,) = children_of(os.getpid())
                os.kill(pid, number)
                await until(lambda: not children_of(os.getpid()))
                assert await ask(core, "calm", number) == Answer([number])


def fences(language: str) -> list[str]:
    """The examples of the page about this mode."""
    page = (ROOT / "docs" / "process-mode.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_example_of_the_documentation_does_what_it_says(tmp_path: Path) -> None:
    (code,) = fences("python")
    config, error = fences("text")
    version = tmp_path / "models" / "worker" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (version.parent / "config.pbtxt").write_text(config)
    with running_server(tmp_path / "models", tmp_path / "log") as server:
        (pid,) = children_of(server.process.pid)
        assert answer_of(server, 0.0).json()["outputs"][0]["data"] == [pid]
        failed = answer_of(server, -1.0)
        assert (failed.status, failed.json()["error"]) == (500, error.strip())
        again = answer_of(server, 0.0).json()["outputs"][0]["data"]
        assert again == children_of(server.process.pid) != [pid]
        server.process.kill()  # without a chance to end what it has started
        server.wait()
        for _ in range(500):
            if not Path(f"/proc/{again[0]}").exists():
                break
            os.sched_yield()
    assert not is_running(again[0])


def answer_of(server: ServerProcess, seconds: float) -> HttpAnswer:
    body = {"inputs": [{"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": [seconds]}]}
    return ask_http(server.http_port, "POST", "/v2/models/worker/infer", json.dumps(body).encode())


def is_running(pid: int) -> bool:
    """Whether it runs, and is not only waiting to be noticed."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
