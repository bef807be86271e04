"""The reference server (Triton 2.51) and perf_analyzer, unpacked from pinned wheels.

The server's wheel holds a CPU build with the Python backend and the local response cache only.
Both programs are x86-64 Linux binaries.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from _wheels import FetchError, Wheel, cache_dir, fetch, find_program, locked, replaced

SERVER = Wheel(
    name="nvidia_pytriton",
    version="0.7.0",
    sha256="21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
    platform="manylinux_2_35_x86_64",
)
CLIENT = Wheel(
    name="tritonclient",
    version="2.44.0",
    sha256="ed8a64ecbb7594ea196dfdc9678d6356b24fdf484995f53400004a195ef33749",
    platform="manylinux1_x86_64",
)
NUMPY = "numpy==1.26.4"
"""The server's Python backend was built against NumPy 1; this is its last release."""
PYTHONS = ("3.11", "3.12", "3.10", "3.9")
"""The Python versions that both the server's backend and that NumPy support, best first."""
LAYOUT = "1"
"""Raise it to have what older checkouts installed thrown away."""

SERVER_TREES = ("pytriton/tritonserver/", "nvidia_pytriton.libs/")
PERF_LIBRARIES = {"libb64": "libb64.so.0d", "libcudart": "libcudart.so.12"}
"""Libraries perf_analyzer misses: how the server's wheel begins their names, and its own name."""

PROBE = """
import ctypes, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
directory = sysconfig.get_config_var("LIBDIR") or ""
name = f"libpython{version}.so.1.0"
for path in (f"{directory}/{name}", name):
    try:
        ctypes.CDLL(path)
    except OSError:
        continue
    print(version, directory)
    break
"""
"""Prints an interpreter's version and library directory if its shared library can be loaded."""


def install_server() -> Path:
    """Install the reference server unless it is there.

    Returns:
      Its directory: `server/` is the unpacked wheel, `venv/` runs the models, `backends/` is the
      backend directory, and the file `library_path` says where libpython is.

    Raises:
      FetchError: this machine cannot run it, or something could not be downloaded.
    """
    home = cache_dir() / "reference"
    ready = home / "ready"
    with locked("reference"):
        wanted = f"{LAYOUT} {SERVER.version} {NUMPY}"
        if ready.exists() and ready.read_text() == wanted and _runs(home / "venv"):
            return home
        _check_machine()
        python, version, library_dir = _find_python()
        wheel = fetch(SERVER)
        print(f"installing the reference server into {home}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        _unpack(wheel, home / "server", SERVER_TREES)
        triton = home / "server" / "pytriton" / "tritonserver"
        stub = "triton_python_backend_stub"
        shutil.copytree(triton / "backends", home / "backends")
        shutil.copy(triton / "python_backend_stubs" / version / stub, home / "backends" / "python")
        for program in (triton / "bin" / "tritonserver", home / "backends" / "python" / stub):
            program.chmod(0o755)
        _make_venv(python, home / "venv")
        (home / "library_path").write_text(library_dir)
        ready.write_text(wanted)
    return home


def server_command(repository: str, flags: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command and the environment that start the server.

    Raises:
      FetchError: it cannot be installed.
    """
    home = install_server()
    triton = home / "server" / "pytriton" / "tritonserver"
    libraries = [str(home / "server" / "nvidia_pytriton.libs"), (home / "library_path").read_text()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    environment["VIRTUAL_ENV"] = str(home / "venv")
    environment["PATH"] = f"{home / 'venv' / 'bin'}:{environment.get('PATH', os.defpath)}"
    command = [
        str(triton / "bin" / "tritonserver"),
        f"--model-repository={Path(repository).resolve()}",
        f"--backend-directory={home / 'backends'}",
        f"--cache-directory={triton / 'caches'}",
        *flags,
    ]
    return command, environment


def perf_analyzer_command(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command and the environment that run perf_analyzer, which is unpacked if need be.

    Raises:
      FetchError: this machine cannot run it, or something could not be downloaded.
    """
    home = cache_dir() / f"perf_analyzer-{CLIENT.version}-{LAYOUT}"
    program = home / "perf_analyzer"
    with locked("perf_analyzer"):
        if not program.exists():
            _check_machine()
            client, server = fetch(CLIENT), fetch(SERVER)
            for start, name in PERF_LIBRARIES.items():
                _unpack_file(server, f"nvidia_pytriton.libs/{start}-", home / name)
            prefix = f"tritonclient-{CLIENT.version}.data/data/bin/perf_analyzer"
            _unpack_file(client, prefix, program)
    return [str(program), *arguments], {**os.environ, "LD_LIBRARY_PATH": str(home)}


def _check_machine() -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise FetchError(
            f"the reference programs run on x86-64 Linux, not {sys.platform} {platform.machine()}"
        )


def _find_python() -> tuple[str, str, str]:
    """An interpreter the Python backend can use, its version and its library directory."""
    names = [sys.executable, "python3", *(f"python{version}" for version in PYTHONS)]
    for name in names:
        if not (program := find_program(name)):
            continue
        probed = subprocess.run([program, "-c", PROBE], check=False, capture_output=True, text=True)
        version, _, library_dir = probed.stdout.strip().partition(" ")
        if version in PYTHONS:
            return program, version, library_dir
    raise FetchError(
        f"the reference server needs Python {', '.join(PYTHONS)} with its shared library "
        "(libpython), and none was found"
    )


def _make_venv(python: str, venv: Path) -> None:
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq"]
    pip += ["--disable-pip-version-check", "--only-binary=:all:", NUMPY]
    for command in ([python, "-m", "venv", str(venv)], pip):
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode != 0:
            reason = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            raise FetchError(f"{' '.join(command[1:4])} failed: {reason[-1]}")


def _runs(venv: Path) -> bool:
    """Whether the venv's interpreter is still there: its system one may have been removed."""
    return (venv / "bin" / "python").exists()


def _unpack(wheel: Path, directory: Path, prefixes: tuple[str, ...]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(prefixes)]
        archive.extractall(directory, members)


def _unpack_file(wheel: Path, prefix: str, target: Path) -> None:
    """Write the one member whose name begins so, as an executable file."""
    with zipfile.ZipFile(wheel) as archive, replaced(target) as temporary:
        (member,) = (name for name in archive.namelist() if name.startswith(prefix))
        temporary.write_bytes(archive.read(member))
        temporary.chmod(0o755)
