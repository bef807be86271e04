"""Looks whether the files of a model have changed; blocking, so it runs on a worker thread."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..protocol.errors import invalid_argument
from ..protocol.version_policy import parse_version
from ._repository_policy import Fingerprint

ENTRIES_MAX: Final = 1_000_000
"""Files and directories of one model: many times those of a large Python environment, and few
enough to look at within seconds. A link that leads out of the model ends here, not at the disk."""

DEPTH_MAX: Final = 64
"""Directories within one another."""

_UNSEEN: Final = frozenset({"__pycache__"})
"""Directories that Python writes when a model is loaded, which is no change."""


def take_fingerprint(directory: Path) -> Fingerprint:
    """Return what the files of a model look like: path, time of change, size and inode of each.

    Directories count by their paths alone: the times of theirs also change when Python caches
    bytecode in them. Links are followed, except into a directory that they are in.

    Raises:
      RequestError: there are too many files.
      OSError: the directory cannot be read.
    """
    shared = hashlib.sha256()
    versions: dict[int, hashlib._Hash] = {}
    for path, status in _walk(directory):
        version = parse_version(path[0])
        digest = shared
        if version is not None and (len(path) > 1 or _is_directory(status)):
            digest = versions.setdefault(version, hashlib.sha256())
        digest.update(_line(path, status))
    return Fingerprint(
        shared.hexdigest(), {version: digest.hexdigest() for version, digest in versions.items()}
    )


def _is_directory(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)


def _line(path: tuple[str, ...], status: os.stat_result | None) -> bytes:
    what: tuple[int | str, ...] = ("gone",)
    if status is not None:
        what = (stat.S_IFMT(status.st_mode),)
        if not stat.S_ISDIR(status.st_mode):
            what += (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
    return os.fsencode("/".join(path)) + b"\0" + repr(what).encode() + b"\0"


def _walk(directory: Path) -> Iterator[tuple[tuple[str, ...], os.stat_result | None]]:
    """Yield the path below the directory and the status of each entry; None for a dangling link."""
    top = directory.stat()
    left: list[tuple[tuple[str, ...], frozenset[tuple[int, int]]]] = [
        ((), frozenset({(top.st_dev, top.st_ino)}))
    ]
    count = 0
    while left:
        inside, above = left.pop()
        for name in sorted(os.listdir(directory.joinpath(*inside))):
            if name in _UNSEEN:
                continue
            count += 1
            if count > ENTRIES_MAX:
                raise invalid_argument(
                    f"expected at most {ENTRIES_MAX} files in the model's directory, got more"
                )
            path = (*inside, name)
            try:
                status = directory.joinpath(*path).stat()
            except OSError:
                yield path, None
                continue
            yield path, status
            place = (status.st_dev, status.st_ino)
            if stat.S_ISDIR(status.st_mode) and place not in above and len(path) < DEPTH_MAX:
                left.append((path, above | {place}))
