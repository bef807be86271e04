"""Looks whether the files of a model have changed; blocking, so it runs on a worker thread."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from ..protocol.errors import invalid_argument
from ..protocol.version_policy import parse_version
from ._repository_policy import Fingerprint

ENTRIES_MAX: Final = 1_000_000
"""Files and directories of one model: many times those of a large Python environment, and few
enough to look at within seconds. A link that leads out of the model ends here, not at the disk."""

DEPTH_MAX: Final = 64
"""Directories within one another."""

_CONFIGURATIONS: Final = frozenset({"config.pbtxt", "configs"})

CONTENT_MAX_BYTES: Final = 1024**2
"""Files up to this size are read where contents are compared: configurations, code and labels, but
not weights, which would keep the disk busy at every look."""

CONTENTS_MAX_BYTES: Final = 16 * CONTENT_MAX_BYTES
"""What is read of one version, or of all that versions share, at a look; files beyond it are
compared by their times."""


def take_fingerprint(directory: Path, *, contents: bool = False) -> Fingerprint:
    """Return what the files of a model look like: path, times, size and inode of each.

    Directories count by their paths alone: the times of theirs also change when Python caches
    bytecode in them. Links are followed, except into a directory that they are in. Left out is
    what is no part of a model: cached bytecode, hidden files, and what editors keep beside a file.

    Args:
      directory: The model's directory.
      contents: Whether small files count by what they hold instead of by their times, so that
        nothing has changed when a file was only written anew; and large ones by the time of any
        change too, so that they have changed when their time was set back.

    Raises:
      RequestError: there are too many files.
      OSError: the directory cannot be read.
    """
    shared, config = (_Digest(directory, contents=contents) for _ in range(2))
    versions: dict[int, _Digest] = {}
    for path, status in _walk(directory):
        version = parse_version(path[0])
        digest = config if path[0] in _CONFIGURATIONS else shared
        if version is not None and (len(path) > 1 or _is_directory(status)):
            digest = versions.setdefault(version, _Digest(directory, contents=contents))
        digest.add(path, status)
    return Fingerprint(
        shared.text(),
        {version: digest.text() for version, digest in versions.items()},
        config.text(),
    )


def _is_directory(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)


def _is_unseen(name: str) -> bool:
    """Return whether an entry is no part of a model."""
    return name == "__pycache__" or name.startswith(".") or name.endswith(("~", ".swp"))


@final
class _Digest:
    """Digest over a part of a model's files."""

    def __init__(self, directory: Path, *, contents: bool) -> None:
        self._directory = directory
        self._hash = hashlib.sha256()
        self._contents = contents
        self._left_bytes = CONTENTS_MAX_BYTES if contents else -1

    def add(self, path: tuple[str, ...], status: os.stat_result | None) -> None:
        what: tuple[int | str, ...] = ("gone",)
        if status is not None:
            what = (stat.S_IFMT(status.st_mode),)
            if not stat.S_ISDIR(status.st_mode):
                what += (status.st_size,)
                content = self._content(path, status)
                what += self._times(status) if content is None else (content,)
        self._hash.update(os.fsencode("/".join(path)) + b"\0" + repr(what).encode() + b"\0")

    def text(self) -> str:
        return self._hash.hexdigest()

    def _content(self, path: tuple[str, ...], status: os.stat_result) -> str | None:
        """Return the digest of what a small file holds; None where its times count."""
        size_bytes = status.st_size
        if not stat.S_ISREG(status.st_mode) or size_bytes > min(
            CONTENT_MAX_BYTES, self._left_bytes
        ):
            return None
        self._left_bytes -= size_bytes
        try:
            with self._directory.joinpath(*path).open("rb") as file:
                return hashlib.sha256(file.read(size_bytes)).hexdigest()
        except OSError:
            return None

    def _times(self, status: os.stat_result) -> tuple[int, ...]:
        changed = (status.st_ctime_ns,) if self._contents else ()
        return (status.st_mtime_ns, status.st_ino, status.st_dev, *changed)


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
            if _is_unseen(name):
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
