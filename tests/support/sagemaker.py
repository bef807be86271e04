"""Talking to the SageMaker endpoint of a server in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.support.http_client import HttpClient, Response, request_bytes
from tests.support.memory_server import MemoryServer, write_models
from tritrio.options import SagemakerOptions
from tritrio.protocol.sagemaker import SagemakerSettings


class Platform:
    """What stands between the endpoint and its clients."""

    def __init__(self, server: MemoryServer) -> None:
        self.client: HttpClient = server.http(frontend=server.parts.sagemaker)

    async def ask(
        self, path: str, body: bytes | None = None, *headers: str, method: str = ""
    ) -> Response:
        self.client.send(request_bytes(path, body, headers=headers, method=method))
        return await self.client.response()

    async def load(self, name: str, url: Path | str) -> Response:
        return await self.ask("/models", orjson.dumps({"model_name": name, "url": str(url)}))

    async def listed(self) -> dict[str, str]:
        models = (await self.ask("/models")).json["models"]
        return {model["modelName"]: model["modelUrl"] for model in models}


def options(**settings: Any) -> SagemakerOptions:
    return SagemakerOptions(settings=SagemakerSettings(**settings))


def write_archive(directory: Path) -> Path:
    """A directory as the platform unpacks it, whose model has a name of its own."""
    archive = write_models(directory / "archive", only=("plain",))
    config = archive / "plain" / "config.pbtxt"
    config.write_text('name: "plain"\n' + config.read_text())
    return archive
