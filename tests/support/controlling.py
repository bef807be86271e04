"""A core whose models are loaded and unloaded on request, in a repository that changes."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.actors.test_core import IDENTITY, add_model, running
from tests.support.builders import infer_request
from tritrio.actors.core import Core
from tritrio.actors.inference import submit
from tritrio.actors.reply import Reply
from tritrio.protocol.requests import InferResponse

_times_ns = itertools.count(2_000_000_000 * 10**9, 10**9)


def touch(path: Path) -> None:
    """Give a file a time of change that no file has had."""
    now_ns = next(_times_ns)
    os.utime(path, ns=(now_ns, now_ns))


def configure(repository: Path, name: str, config: str = IDENTITY) -> None:
    """Write the configuration of a model, so that it looks changed."""
    path = repository / name / "config.pbtxt"
    path.write_text(config)
    touch(path)


def add_version(repository: Path, name: str, version: str) -> None:
    """Add a version, or change the files of one."""
    directory = repository / name / version
    directory.mkdir(exist_ok=True)
    (directory / "weights").write_text("some")
    touch(directory / "weights")


@asynccontextmanager
async def controlled(*repositories: Path, **options: Any) -> AsyncIterator[Core]:
    """A core with explicit control, without models at the start unless `startup_models` says so."""
    async with running(*repositories, model_control="explicit", **options) as core:
        yield core


def ask(core: Core, name: str, version: str = "") -> Reply:
    """Send a request as a frontend does."""
    return submit(core.router.table.find(name, version), infer_request(7), trio.current_time())


async def answer(core: Core, name: str, version: str = "") -> InferResponse:
    """Send a request, and return its response."""
    return await ask(core, name, version).receive()


def index(core: Core) -> list[str]:
    """Return the repository index, one short line an entry."""
    return [
        f"{entry.name}/{entry.version or '-'} {entry.state.value} {entry.reason}".rstrip()
        for entry in core.router.table.index()
    ]


__all__ = [
    "IDENTITY",
    "add_model",
    "add_version",
    "answer",
    "ask",
    "configure",
    "controlled",
    "index",
    "touch",
]
