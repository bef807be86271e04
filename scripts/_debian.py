"""Unpack Debian packages into the cache, for programs that tests run; nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _wheels import FetchError, cache_dir, find_program, locked


def unpacked(name: str, packages: tuple[str, ...]) -> Path:
    """The directory that holds the packages' files, unpacked on first use.

    Raises:
      FetchError: they cannot be fetched.
    """
    home = cache_dir() / name
    with locked(name):
        if not home.exists():
            _unpack(name, home, packages)
    return home


def environment(home: Path) -> dict[str, str]:
    """The environment in which unpacked programs find the libraries unpacked with them."""
    libraries = ":".join(str(path) for path in sorted(home.glob("usr/lib/*-linux-gnu*")))
    return {**os.environ, "LD_LIBRARY_PATH": libraries}


def _unpack(name: str, home: Path, packages: tuple[str, ...]) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if find_program(tool) is None:
            raise FetchError(f"there is no {name} here, and no {tool} to fetch it with")
    print(f"unpacking {name} into {home}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as temporary:
        debs, tree = Path(temporary) / "debs", Path(temporary) / "tree"
        debs.mkdir()
        download = ["apt-get", "download", *packages]
        if _run(download, debs):  # perhaps the lists of packages are missing or old
            _run(["apt-get", "update"], debs)
            if reason := _run(download, debs):
                raise FetchError(f"there is no {name} here, and apt-get download failed: {reason}")
        for deb in sorted(debs.glob("*.deb")):
            if reason := _run(["dpkg-deb", "-x", str(deb), str(tree)], debs):
                raise FetchError(f"there is no {name} here, and dpkg-deb failed: {reason}")
        tree.replace(home)


def _run(command: list[str], directory: Path) -> str:
    """Run a command; why it failed, or "" if it did not."""
    done = subprocess.run(
        command,
        check=False,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
