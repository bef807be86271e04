"""Clients of the whole server that ask the model "letters" for text; see `llm`."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from tritonclient.grpc import service_pb2

from tests.support.http_client import HttpClient, request_bytes
from tests.support.memory_server import MemoryServer

SAMPLING = {"temperature": 0.0, "ignore_eos": True}


def generate(client: HttpClient, prompt: str, *, stream: bool = True, **sampling: Any) -> None:
    """Send a generate request."""
    document = {"text_input": prompt, "stream": stream, "exclude_input_in_output": True}
    body = orjson.dumps(document | SAMPLING | sampling)
    target = "/v2/models/letters/generate" + ("_stream" if stream else "")
    client.send(request_bytes(target, body))


async def event(client: HttpClient) -> str:
    """Read one server-sent event: the text in it."""
    data = await client.chunk()
    assert data.startswith(b"data: ")
    text: str = orjson.loads(data[6:])["text_output"]
    return text


async def all_events(client: HttpClient) -> str:
    """Read a stream of them to its end."""
    assert (await client.head()).status == 200
    text = ""
    while data := await client.chunk():
        text += orjson.loads(data[6:])["text_output"]
    return text


def stream_message(prompt: str, **sampling: Any) -> Any:
    """A ModelInferRequest for a stream of text."""
    message = service_pb2.ModelInferRequest(model_name="letters", id=prompt)
    for name, datatype, value in (
        ("text_input", "BYTES", prompt.encode()),
        ("stream", "BOOL", True),
        ("sampling_parameters", "BYTES", orjson.dumps(SAMPLING | sampling)),
    ):
        tensor = message.inputs.add(name=name, datatype=datatype)
        tensor.shape.append(1)
        if isinstance(value, bytes):
            tensor.contents.bytes_contents.append(value)
        else:
            tensor.contents.bool_contents.append(value)
    return message


def text_of(message: Any) -> str:
    """The text in a response of a stream."""
    assert not message.error_message
    response = message.infer_response
    assert [output.name for output in response.outputs] == ["text_output"]
    data = response.raw_output_contents[0]
    assert np.frombuffer(data[:4], "<u4")[0] == len(data) - 4
    return bytes(data[4:]).decode()


def held(server: MemoryServer) -> tuple[int, int, int]:
    """Texts with a row, texts that wait, and bytes of state."""
    llm = server.statistics("letters").llm
    assert llm is not None
    totals = llm.totals()
    return totals.running, totals.waiting, totals.kv_used_bytes
