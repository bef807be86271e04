"""Calls of models by models: the model `caller` does what it is asked to, and says what came."""

from __future__ import annotations

import json
from typing import Any

from .cases import Case, Differs
from .http_exchange import Http
from .http_requests import infer, tensor

CALLER = '''
import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def call(model, tensor, output, **more):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=[tensor], requested_output_names=[output], **more
    )


def floats(value):
    return call("fixed", pb_utils.Tensor("INPUT0", np.full((2, 3), value, np.float32)), "OUTPUT0")


def repeat(*values):
    return call("repeat", pb_utils.Tensor("IN", np.array(values, np.int32)), "OUT")


def fault(mode):
    return call("faults", pb_utils.Tensor("MODE", np.array([mode], object)), "OUTPUT0")


def said(response, output):
    if response.has_error():
        return str(response.error().code()).rpartition(".")[2]
    tensor = pb_utils.get_output_tensor_by_name(response, output)
    if tensor is None:
        return None
    values = tensor.as_numpy().ravel().tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]


class TritonPythonModel:
    """Calls other models as MODE says; answers with what they say."""

    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        mode = pb_utils.get_input_tensor_by_name(request, "MODE").as_numpy()[0].decode()
        text = json.dumps(await getattr(self, mode)())
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([text], object))])

    async def one(self):
        return said(floats(1).exec(), "OUTPUT0")

    async def gathered(self):
        calls = [floats(value).async_exec() for value in range(10)]
        return [said(response, "OUTPUT0")[0] for response in await asyncio.gather(*calls)]

    async def facts(self):
        request = call(
            "request_facts", pb_utils.Tensor("INPUT0", np.zeros(1, np.int32)), "FACTS",
            request_id="r", correlation_id=7, flags=1, timeout=1000, parameters={"k": "v"},
        )
        return said(request.exec(), "FACTS")

    async def stream(self):
        return [said(response, "OUT") for response in repeat(1, 2).exec(decoupled=True)]

    async def awaited_stream(self):
        responses = await repeat(1, 2).async_exec(decoupled=True)
        return [said(response, "OUT") for response in responses]

    async def empty_stream(self):
        return [said(response, "OUT") for response in repeat().exec(decoupled=True)]

    async def stream_of_one(self):
        return [said(response, "OUTPUT0") for response in floats(1).exec(decoupled=True)]

    async def ready(self):
        return [pb_utils.is_model_ready(name) for name in ("fixed", "broken", "nobody")]

    async def ready_version(self):
        return [pb_utils.is_model_ready("versions", number) for number in ("1", "2", "3")]

    async def version(self):
        tensor = pb_utils.Tensor("INPUT0", np.zeros(1, np.int64))
        return said(call("versions", tensor, "VERSION", model_version=1).exec(), "VERSION")

    async def raised(self):
        return said(fault("raise").exec(), "OUTPUT0")

    async def not_found(self):
        return said(fault("NOT_FOUND").exec(), "OUTPUT0")

    async def unknown(self):
        return said(call("nobody", pb_utils.Tensor("X", np.zeros(1)), "Y").exec(), "Y")

    async def not_decoupled(self):
        return said(repeat(1).exec(), "OUT")

    async def twice(self):
        responses = repeat(1).exec(decoupled=True)
        return [[said(response, "OUT") for response in responses] for _ in range(2)]

    async def itself(self):
        tensor = pb_utils.Tensor("MODE", np.array(["one"], object))
        return said(call("caller", tensor, "SAID").exec(), "SAID")
'''


def asked(mode: str) -> Http:
    return infer({"inputs": [tensor("MODE", "BYTES", [mode])]}, "caller")


def says(answer: Any) -> tuple[int, Any]:
    output = {"name": "SAID", "datatype": "BYTES", "shape": [1], "data": [json.dumps(answer)]}
    return 200, {"outputs": [output]}


def differ(mode: str, reference: Any, ours: Any) -> Case[Http]:
    expected = None if reference is None else says(reference)
    return Case(f"a call: {mode}", asked(mode), Differs(expected, says(ours), "calls"))


CASES = [
    *(
        Case(f"a call: {mode}", asked(mode), 200)
        for mode in (
            "one",
            "gathered",
            "facts",
            "stream",
            "awaited_stream",
            "empty_stream",
            "stream_of_one",
            "ready",
            "ready_version",
            "version",
            "raised",
        )
    ),
    differ("not_found", "INTERNAL", "NOT_FOUND"),
    differ("unknown", "INTERNAL", "NOT_FOUND"),
    differ("not_decoupled", "INTERNAL", "UNSUPPORTED"),
    differ("twice", [[[1], None], [[1], None]], [[[1], None], []]),
    differ("itself", None, "UNAVAILABLE"),  # waits for ever
]
