"""What a process has: children, descriptors, and memory that it shares."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_others: set[int] = set()


def forget_others() -> None:
    """Leave out what was started before, such as the servers of a whole test session."""
    _others.clear()
    _others.update(children_of(os.getpid()))


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and not waited for, zombies included."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            children.update(map(int, task.read_text().split()))
    return sorted(children - _others)


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def memory_files() -> int:
    """How many memory files this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:tritrio")
