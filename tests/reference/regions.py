"""Objects in shared memory that both servers see, and requests on regions of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from . import grpc_exchange, http_exchange
from .cases import Case, Json, Seen, Status
from .grpc_exchange import Call
from .http_exchange import Http
from .http_requests import fp32, strings
from .servers import Server

DIRECTORY = Path("/dev/shm")
PAGE = os.sysconf("SC_PAGE_SIZE")
KEY = f"tritrio_reference_{os.getpid()}"
"""The object that is registered as the region "a"."""
FIFO, FOLDER, LINK = f"{KEY}_fifo", f"{KEY}_folder", f"{KEY}_link"
SIZE = 2 * PAGE
FLOATS, INTS, TEXT, TARGET = 0, 64, 128, PAGE
"""Where in the object which data is, and where outputs go."""
TARGET_BYTES = 64

SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"
Step: TypeAlias = Http | Call
Steps: TypeAlias = tuple[Step, ...]


def post(path: str, body: bytes = b"") -> Http:
    return Http("POST", path, body)


@contextmanager
def objects() -> Iterator[Path]:
    """The object, and what else its directory may hold."""
    path = DIRECTORY / KEY
    try:
        path.write_bytes(bytes(SIZE))
        os.mkfifo(DIRECTORY / FIFO)
        (DIRECTORY / FOLDER).mkdir()
        (DIRECTORY / LINK).symlink_to(path)
        yield path
    finally:
        for name in (KEY, FIFO, LINK):
            (DIRECTORY / name).unlink(missing_ok=True)
        if (DIRECTORY / FOLDER).is_dir():
            (DIRECTORY / FOLDER).rmdir()


def _fill() -> None:
    content = bytearray(SIZE)
    for offset, data in (
        (FLOATS, fp32(1.5, -2)),
        (INTS, struct.pack("<4i", 5, 6, 7, 8)),
        (TEXT, strings(b"abc")),
        (TARGET, b"\xee" * TARGET_BYTES),
    ):
        content[offset : offset + len(data)] = data
    with (DIRECTORY / KEY).open("r+b") as file:
        file.write(content)


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """What a client sees of the last step, and of the object and the steps before."""

    last: Seen
    before: tuple[dict[str, Any], ...]
    written: bytes
    errors: tuple[str, ...]

    @property
    def status(self) -> Status:
        """The status of the last step."""
        return self.last.status

    @property
    def json(self) -> Json:
        """The content of the last step."""
        return self.last.json

    def comparable(self) -> dict[str, Any]:
        """Everything but error texts."""
        return {**self.last.comparable(), "before": self.before, "written": self.written}


def prepare(server: Server) -> None:
    """Fill the object and make it the region "a", the only one."""
    _fill()
    body = f'{{"key":"/{KEY}","offset":0,"byte_size":{SIZE}}}'.encode()
    steps = [post(f"{SYSTEM}/unregister"), post(f"{SYSTEM}/region/a/register", body)]
    assert [seen.status for seen in http_exchange.converse(server, steps)] == [200, 200]


def exchange(server: Server, case: Case[Steps]) -> StepsSeen:
    """Take the steps while the object is the region "a", and see what was written."""
    prepare(server)
    seen = [_take(server, step) for step in case.request]
    written = (DIRECTORY / KEY).read_bytes()[TARGET : TARGET + TARGET_BYTES]
    errors = tuple(text for one in seen for text in one.errors)
    return StepsSeen(seen[-1], tuple(one.comparable() for one in seen[:-1]), written, errors)


def _take(server: Server, step: Step) -> Seen:
    if isinstance(step, Http):
        return http_exchange.exchange(server, Case("", step, 0))
    return grpc_exchange.exchange(server, Case("", step, ""))
