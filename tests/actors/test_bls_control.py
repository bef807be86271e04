"""Python models that load and unload other models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.calling import ECHO, NOTES, calling_core, eventually, write_caller

CONTROL = """
class TritonPythonModel:
    def execute(self, requests):
        what, *arguments = json.loads(asked(requests[0]))
        try:
            getattr(pb_utils, what + "_model")(*arguments)
        except pb_utils.TritonModelException as error:
            return [answer(str(error))]
        return [answer("ok")]
"""

EXPLICIT: dict[str, Any] = {"model_control": "explicit", "startup_models": ("a",)}
PROCESSES = {"python": {"execution-mode": "process"}}


@pytest.fixture(autouse=True)
def notes() -> None:
    NOTES.clear()


async def control_models(repository: Path, backend_settings: dict[str, dict[str, str]]) -> None:
    write_caller(repository, "a", CONTROL)
    write_caller(repository, "b", ECHO)
    config = {
        "backend": "identity",
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [1]}],
    }
    async with calling_core(repository, backend_settings=backend_settings, **EXPLICIT) as core:

        async def tell(*words: object) -> str | None:
            return await core.ask("a", json.dumps(words))

        assert await tell("load", "b") == "ok"
        assert await core.ask("b", "hello") == "hello"
        assert await tell("load", "b", json.dumps(config)) == "ok"
        assert core.version("b").config.backend == "identity"
        assert await tell("load", "a") == "ok"  # nothing has changed
        assert await tell("unload", "b", True) == "ok"
        assert "found it in none of" in str(await tell("load", "c"))
        assert "expected a model name without directories" in str(await tell("load", "../b"))
        assert await tell("unload", "c") == "ok"
        assert await tell("unload", "a") == "ok"  # itself; this request finishes


async def test_a_model_loads_and_unloads_others(tmp_path: Path) -> None:
    await control_models(tmp_path, {})


@pytest.mark.e2e
@pytest.mark.slow
async def test_a_model_in_a_process_of_its_own_loads_and_unloads_others(tmp_path: Path) -> None:
    await control_models(tmp_path, PROCESSES)


async def test_a_model_brings_the_files_of_another(tmp_path: Path) -> None:
    model = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(["new"], object))])]
"""
    config = {
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
    }
    code = f"""
class TritonPythonModel:
    def execute(self, requests):
        files = {{"file:1/model.py": {model.encode()!r}}}
        pb_utils.load_model("new", {json.dumps(config)!r}, files)
        return [answer(text_of(call("new").exec()))]
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path, **EXPLICIT) as core:
        assert await core.ask("a") == "new"


async def test_a_model_cannot_load_others_while_it_is_loaded_itself(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def initialize(self, args):
            self.said = []
            for name in ("a", "b"):
                try:
                    pb_utils.load_model(name)
                except pb_utils.TritonModelException as error:
                    self.said.append(str(error))

        def execute(self, requests):
            return [answer("|".join(self.said))]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO)
    refused = "is being loaded, and cannot load or unload others before that has ended"
    async with calling_core(tmp_path, **EXPLICIT) as core:
        assert await core.ask("a") == f"model 'a' {refused}|model 'a' {refused}"


async def test_an_async_execute_loads_models_from_a_thread(tmp_path: Path) -> None:
    code = """
    import trio

    class TritonPythonModel:
        async def execute(self, requests):
            try:
                pb_utils.load_model("b")
            except pb_utils.TritonModelException as error:
                NOTES.append(str(error))
            await trio.to_thread.run_sync(pb_utils.load_model, "b")
            response = await call("b", "hello").async_exec()
            return [answer(text_of(response))]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO)
    async with calling_core(tmp_path, **EXPLICIT) as core:
        assert await core.ask("a") == "hello"
    [refused] = NOTES
    assert "runs on the server's event loop, which must not block" in refused


async def test_a_model_that_waits_for_a_load_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    hanging = """
    import time

    class TritonPythonModel:
        def initialize(self, args):
            NOTES.append("loading")
            while "stop" not in NOTES:
                time.sleep(0.001)

        def execute(self, requests):
            return []
    """
    write_caller(tmp_path, "a", CONTROL)
    write_caller(tmp_path, "b", hanging)
    async with calling_core(tmp_path, **EXPLICIT) as core:
        reply = core.submit("a", json.dumps(["load", "b"]))
        await eventually(lambda: NOTES == ["loading"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.core.stop)
            with trio.fail_after(20):
                response = await reply.receive()
            NOTES.append("stop")
        assert response.outputs[0].array.tolist() == [b"the server is exiting"]
