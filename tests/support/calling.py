"""A core with Python models that call each other, on real threads and the real clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any, final

import numpy as np
import trio

from tritrio.actors.core import Core, CoreOptions, run_core
from tritrio.actors.inference import submit
from tritrio.actors.reply import Reply
from tritrio.actors.routing_table import ModelVersion
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Tensor

NOTES: list[Any] = []
"""What models tell the test; they import this module."""

PATIENCE_S = 30.0
"""Far more than anything here takes, for a machine that is busy with other tests."""

HEADER = """
import json
import threading
import numpy as np
import triton_python_backend_utils as pb_utils
from tests.support.calling import NOTES


def call(model_name, text="", **options):
    tensor = pb_utils.Tensor("IN", np.array([text], object))
    return pb_utils.InferenceRequest(
        inputs=[tensor], requested_output_names=["OUT"], model_name=model_name, **options
    )


def text_of(response):
    if response.has_error():
        return response.error().code().name + ": " + response.error().message()
    tensor = pb_utils.get_output_tensor_by_name(response, "OUT")
    return None if tensor is None else tensor.as_numpy()[0].decode()


def asked(request):
    return pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()


def answer(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))])

"""

CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(asked(request)) for request in requests]
"""

REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(asked(request))):
                sender.send(answer(str(number)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_caller(
    repository: Path,
    name: str,
    code: str,
    *,
    instances: int = 1,
    decoupled: bool = False,
    more: str = "",
) -> None:
    """Write a model with the input and output IN and OUT, one text each; see `HEADER`."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(HEADER + dedent(code))
    policy = "model_transaction_policy { decoupled: true }\n" if decoupled else ""
    group = f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]\n"
    (repository / name / "config.pbtxt").write_text(CONFIG + policy + group + more)


def write_ensemble(repository: Path, *steps: str) -> None:
    """Write an ensemble "e" that takes its text from model to model."""
    (repository / "e" / "1").mkdir(parents=True)
    names = ["IN", *[f"AFTER{number}" for number in range(1, len(steps))], "OUT"]
    written = [
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{before}" }} '
        f'output_map {{ key: "OUT" value: "{after}" }} }}'
        for model, before, after in zip(steps, names, names[1:], strict=False)
    ]
    tensors = CONFIG[CONFIG.index("input") :]
    (repository / "e" / "config.pbtxt").write_text(
        f'platform: "ensemble"\n{tensors}ensemble_scheduling {{ step [ {", ".join(written)} ] }}\n'
    )


def text_request(text: str = "") -> InferRequest:
    """A request with one text."""
    request = InferRequest("")
    array = np.array([text.encode()], object)
    request.inputs = {"IN": Tensor("IN", "BYTES", (1,), array=array)}
    return request


def text_of(response: InferResponse) -> str | None:
    """The text of a response, or "CODE: message"; None for an empty one."""
    if response.error is not None:
        return f"{response.error.code.name}: {response.error.message}"
    if not response.outputs:
        return None
    element: bytes = response.outputs[0].array[0]
    return element.decode()


@final
class CallingCore:
    """A running core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def version(self, name: str) -> ModelVersion:
        return self.core.router.find(name, "")

    def submit(self, name: str, text: str = "") -> Reply:
        """Hand a request in, as a frontend does."""
        return submit(self.version(name), text_request(text), trio.current_time())

    async def ask(self, name: str, text: str = "") -> str | None:
        """The text that a model answers, or "CODE: message"."""
        (answer,) = await self.ask_all(name, text)
        return answer

    async def ask_all(self, name: str, text: str = "") -> list[str | None]:
        """The texts of all responses; None for an empty one."""
        reply = self.submit(name, text)
        texts: list[str | None] = []
        with trio.fail_after(PATIENCE_S):
            while True:
                response = await reply.receive()
                texts.append(text_of(response))
                if response.final:
                    return texts


async def eventually(condition: Any) -> None:
    """Wait until what threads do has come so far."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - threads set no trio.Event
            await trio.sleep(0.001)


@asynccontextmanager
async def calling_core(
    repository: Path, *, in_time: bool = True, **options: Any
) -> AsyncIterator[CallingCore]:
    """Load a repository; at the end everything drains, in time or not."""
    async with trio.open_nursery() as nursery:
        settings = CoreOptions(repositories=(repository,), auto_complete_config=False, **options)
        core: Core = await nursery.start(run_core, settings)
        yield CallingCore(core)
        assert await core.stop() is in_time


def reasons(core: Core) -> Mapping[str, str]:
    """Why models are not ready."""
    return {entry.name: entry.reason for entry in core.router.table.index() if entry.reason}
