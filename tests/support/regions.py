"""A server in memory with a registered region, and requests for tensors in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
from tritonclient.grpc import service_pb2 as pb

from tests.support.http_client import HttpClient, Response, request_bytes
from tests.support.memory_server import MemoryServer, memory_server
from tests.support.shared_memory import size_of

SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"
INFER = "/v2/models/plain/infer"
ROW = np.array([[3, 1, 4]], np.int32)
Place: TypeAlias = tuple[str, int, int]
"""Region, offset, byte size."""


@asynccontextmanager
async def server_with(models: Path, item: Path, **options: Any) -> AsyncIterator[MemoryServer]:
    """A server with the object registered as "r"; nothing may be held in the end."""
    async with memory_server(models, allow_client_shared_memory=True, **options) as server:
        client = server.http()
        assert (await register(client, item)).status == 200
        yield server


async def post(client: HttpClient, path: str, content: Any = None) -> Response:
    client.send(request_bytes(path, b"" if content is None else orjson.dumps(content)))
    return await client.response()


async def register(client: HttpClient, item: Path, name: str = "r") -> Response:
    fields = {"key": item.name, "byte_size": size_of(item)}
    return await post(client, f"{SYSTEM}/region/{name}/register", fields)


async def status(client: HttpClient) -> list[str]:
    client.get(f"{SYSTEM}/status")
    return [region["name"] for region in (await client.response()).json]


def parameters(place: Place) -> dict[str, Any]:
    region, offset, byte_size = place
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
    }


def http_body(array: Any, source: Place | None, target: Place | None, **members: Any) -> Any:
    """A request for `array`, which is in a region or sent, with its output in a region or not."""
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": array.shape}
    data = {"data": array.ravel().tolist()} if source is None else {}
    places = {} if source is None else {"parameters": parameters(source)}
    body: dict[str, Any] = {**members, "inputs": [{**tensor, **data, **places}]}
    if target is not None:
        body["outputs"] = [{"name": "OUTPUT0", "parameters": parameters(target)}]
    return body


def grpc_message(
    array: Any, source: Place | None, target: Place | None, *, model: str = "plain", name: str = ""
) -> Any:
    """The same over gRPC."""
    message = pb.ModelInferRequest(model_name=model, id=name)
    tensor = message.inputs.add(name="INPUT0", datatype="INT32", shape=array.shape)
    if source is None:
        message.raw_input_contents.append(array.tobytes())
    else:
        place_in(tensor.parameters, source)
    if target is not None:
        place_in(message.outputs.add(name="OUTPUT0").parameters, target)
    return message


def place_in(given: Any, place: Place) -> None:
    region, offset, byte_size = place
    given["shared_memory_region"].string_param = region
    given["shared_memory_offset"].int64_param = offset
    given["shared_memory_byte_size"].int64_param = byte_size
