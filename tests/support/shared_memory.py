"""POSIX shared memory objects as clients make them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

DIRECTORY = Path("/dev/shm")
PAGE = os.sysconf("SC_PAGE_SIZE")
_numbers = count()


@contextmanager
def shared_object(size: int, *, name: str = "") -> Iterator[Path]:
    """The file of a new object of some size; it is unlinked in the end, unless it was before."""
    path = DIRECTORY / (name or f"tritrio_test_{os.getpid()}_{next(_numbers)}")
    path.write_bytes(b"")
    os.truncate(path, size)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write_at(path: Path, data: bytes, offset: int = 0) -> None:
    """Change some bytes of an object."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def read_at(path: Path, size: int, offset: int = 0) -> bytes:
    """Some bytes of an object."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def size_of(path: Path) -> int:
    """The bytes of an object."""
    return path.stat().st_size
