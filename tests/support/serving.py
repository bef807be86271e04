"""A whole server in this process, told by options, for clients on other threads and programs."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.support.server_process import HOST
from tritrio.options import ServerOptions
from tritrio.server import BoundAddresses, Server


@asynccontextmanager
async def serving(repository: Path, **options: Any) -> AsyncIterator[BoundAddresses]:
    """Run a server on free loopback ports; in the end it must stop in time.

    Args:
      repository: The models.
      options: Fields of `ServerOptions` beside the ports.
    """
    ports = {f"{name}_port": 0 for name in ("http", "grpc", "metrics")}
    addresses = {f"{name}_address": HOST for name in ("http", "grpc", "metrics")}
    server = Server(
        ServerOptions(model_repositories=(repository,), **{**ports, **addresses, **options})
    )
    ended: list[bool] = []

    async def run(*, task_status: trio.TaskStatus[BoundAddresses]) -> None:
        ended.append(await server.run(task_status=task_status))

    threshold = gc.get_threshold()
    try:
        async with trio.open_nursery() as nursery:
            yield await nursery.start(run)
            server.begin_shutdown()
    finally:
        gc.unfreeze()  # what the server sets for a process of its own
        gc.set_threshold(*threshold)
    assert ended == [True]
