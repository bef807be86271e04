"""Async models on a thread of their own, as they run where no event loop is at hand."""

from __future__ import annotations

from pathlib import Path

from tests.backends.builders import (
    config_of,
    error_of,
    execute,
    floats,
    loaded,
    outputs_of,
    request_of,
    write_model,
)
from tritrio.backends.base import ExecutesAsync
from tritrio.backends.registry import get_backend

PYTHON = get_backend("python")
CONFIG = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], max_batch_size=8)
DOUBLES = """
class TritonPythonModel:
    async def execute(self, requests):
        loops.append({loop})
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", 2 * a)]) for a in arrays]
"""


def test_an_async_model_answers_and_keeps_its_loop_from_batch_to_batch(tmp_path: Path) -> None:
    code = "import asyncio\nloops = []\n" + DOUBLES.format(loop="asyncio.get_running_loop()")
    instance = loaded(PYTHON, write_model(tmp_path, code), CONFIG)
    for value in (1, 2):
        (response,) = execute(instance, request_of(floats(value)))
        assert outputs_of(response)["OUTPUT0"].tolist() == [[2 * value]]
    loops = instance._model.execute.__globals__["loops"]  # type: ignore[attr-defined]
    assert loops[0] is loops[1]
    assert not loops[0].is_closed()
    instance.unload()
    assert loops[0].is_closed()


def test_a_model_made_for_asyncio_stays_on_its_thread(tmp_path: Path) -> None:
    uses = {
        "import asyncio": False,
        "from asyncio import gather": False,
        "from asyncio import Queue as Q": False,
        "import trio": True,
        "": True,
    }
    for number, (line, on_loop) in enumerate(uses.items()):
        code = f"{line}\nloops = []\n" + DOUBLES.format(loop="None")
        instance = loaded(PYTHON, write_model(tmp_path, code, name=f"m{number}"), CONFIG)
        assert isinstance(instance, ExecutesAsync)
        assert instance.executes_async is on_loop, line
        instance.unload()
    plain = "import asyncio\nclass TritonPythonModel:\n    def execute(self, requests): ..."
    instance = loaded(PYTHON, write_model(tmp_path, plain), CONFIG)
    assert isinstance(instance, ExecutesAsync)
    assert not instance.executes_async


def test_an_async_model_that_raises_fails_its_batch(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    async def execute(self, requests):
        raise ValueError("no")
"""
    instance = loaded(PYTHON, write_model(tmp_path, code), CONFIG)
    (response,) = execute(instance, request_of(floats(1)))
    assert error_of(response) == (
        "INTERNAL: model instance 'm_0_0': execute raised ValueError: no (at 1/model.py:6 in "
        "execute)"
    )
    instance.unload()
