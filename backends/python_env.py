"""Which Python a model runs in: the server's process, a process of its own, or another environment.

- Model parameter `EXECUTION_MODE`, or `--backend-config=python,execution-mode=` for all models:
  "process" or "thread", which is the default.
- `EXECUTION_ENV_PATH`: a virtual or conda environment, as a directory or packed as tar.gz.
- A `requirements.txt` beside the model's code is installed into an environment that is kept.

Each of the last two means a process. What is made here is kept under the user's cache directory,
so that it is made once, whoever needs it.
Source of `EXECUTION_ENV_PATH`: the documented parameters of Triton's Python backend.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.wording import quoted
from .base import ModelSource
from .fault_text import cut_to
from .parameters import bad_parameter, parameter_text

REQUIREMENTS: Final = "requirements.txt"

REQUIREMENTS_MAX_BYTES: Final = 1024**2
"""Largest file of requirements: some ten thousand lines."""

BUILD_MAX_S: Final = 1800.0
"""How long one step of making an environment may take, in seconds: large packages over a slow
network take minutes."""

LINES_SHOWN_MAX: Final = 5
"""Last lines of a failed step in its error: what pip says last is what went wrong."""

_MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_READY: Final = ".tritrio-ready"


def wants_process(source: ModelSource, config: ModelConfig) -> bool:
    """Return whether a model is to run in a process of its own; cheap.

    Raises:
      RequestError: a setting is not allowed, or the model's contradict each other.
    """
    own = parameter_text(config, "EXECUTION_MODE")
    mode = source.backend_settings.get("execution-mode", "thread") if own is None else own
    if mode not in {"process", "thread"}:
        if own is not None:
            raise bad_parameter(config, "EXECUTION_MODE", "'process' or 'thread'", mode)
        raise invalid_argument(
            f"backend setting 'execution-mode' must be 'process' or 'thread', got {quoted(mode)}"
        )
    needs = _why_process(source, config)
    if needs is not None and own == "thread":
        raise invalid_argument(
            f"model '{source.name}': parameter 'EXECUTION_MODE' is 'thread', but {needs} needs a "
            "process"
        )
    return mode == "process" or needs is not None


def _why_process(source: ModelSource, config: ModelConfig) -> str | None:
    if parameter_text(config, "EXECUTION_ENV_PATH"):
        return "its parameter 'EXECUTION_ENV_PATH'"
    if (source.version_directory / REQUIREMENTS).exists():
        return f"its {REQUIREMENTS}"
    return None


def interpreter_for(source: ModelSource, config: ModelConfig) -> Path:
    """Return the Python that runs a model; blocks to make its environment if there is none yet.

    Raises:
      RequestError: there is no such environment, or it cannot be made; says why.
    """
    given = parameter_text(config, "EXECUTION_ENV_PATH")
    requirements = source.version_directory / REQUIREMENTS
    if given:
        path = given.replace(_MODEL_DIRECTORY, str(source.model_directory.absolute()))
        interpreter = _interpreter_at(source, source.model_directory.absolute() / path)
    else:
        interpreter = Path(sys.executable)
    if requirements.exists():
        return _with_requirements(source, interpreter, requirements)
    return interpreter


def _interpreter_at(source: ModelSource, path: Path) -> Path:
    """Return the interpreter of an environment that somebody else has made."""
    try:
        about = path.stat()
    except FileNotFoundError:
        about = None
    except (OSError, ValueError) as error:  # the latter of a NUL in the name
        raise _unusable(source, path, str(error)) from None
    if about is not None and stat.S_ISREG(about.st_mode):
        key = f"{os.path.realpath(path)} {about.st_size} {about.st_mtime_ns}"
        path = _kept(source, "archive", key.encode(), lambda place: _unpack(source, path, place))
    for name in ("python", "python3"):
        if os.access(path / "bin" / name, os.X_OK):
            return path / "bin" / name
    raise _unusable(source, path, "expected a directory with bin/python, or a tar.gz of one")


def _unusable(source: ModelSource, path: Path, why: str) -> RequestError:
    return invalid_argument(
        f"model '{source.name}': parameter 'EXECUTION_ENV_PATH' names {quoted(str(path))}, which "
        f"is no environment: {why}"
    )


def _unpack(source: ModelSource, archive: Path, place: Path) -> None:
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(place, filter="data")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise _unusable(source, archive, str(error)) from None
    if (place / "bin" / "conda-unpack").exists():  # it writes the new place into the files
        command = [str(place / "bin" / "python"), str(place / "bin" / "conda-unpack")]
        _run(source, "conda-unpack", command, place)


def _with_requirements(source: ModelSource, interpreter: Path, requirements: Path) -> Path:
    try:
        if requirements.stat().st_size > REQUIREMENTS_MAX_BYTES:
            raise invalid_argument(
                f"model '{source.name}': its {REQUIREMENTS} is larger than "
                f"{REQUIREMENTS_MAX_BYTES} bytes"
            )
        text = requirements.read_bytes()
    except OSError as error:
        raise invalid_argument(
            f"model '{source.name}': its {REQUIREMENTS} cannot be read: {error}"
        ) from None

    def make(place: Path) -> None:
        venv = [str(interpreter), "-m", "venv", "--system-site-packages", str(place)]
        _run(source, "python -m venv", venv, requirements.parent)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install"]
        pip += ["--disable-pip-version-check", "--no-input", "-r", str(requirements.absolute())]
        _run(source, "pip install", pip, requirements.parent)

    version = f"{sys.version} {sysconfig.get_platform()} {interpreter}\n"
    place = _kept(source, "requirements", version.encode() + text, make)
    return place / "bin" / "python"


def _kept(source: ModelSource, kind: str, key: bytes, make: Callable[[Path], None]) -> Path:
    """Return the place of what `make` makes there, once for each key, in whatever process."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = base / "tritrio" / "environments" / f"{kind}-{hashlib.sha256(key).hexdigest()[:32]}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_suffix(".lock")):
            if not (place / _READY).exists():
                shutil.rmtree(place, ignore_errors=True)  # of one that was not finished
                make(place)
                (place / _READY).touch()
    except (OSError, RuntimeError) as error:  # the latter where there is no home directory
        raise RequestError(
            ErrorCode.INTERNAL, f"model '{source.name}': cannot make its environment: {error}"
        ) from None
    return place


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(source: ModelSource, what: str, command: Sequence[str], directory: Path) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the operator chose it
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed(source, what, f"it took more than {BUILD_MAX_S:g} s") from None
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        text = " / ".join(line.strip() for line in lines[-LINES_SHOWN_MAX:])
        raise _failed(source, what, text or f"exit code {done.returncode}")


def _failed(source: ModelSource, what: str, text: str) -> RequestError:
    return RequestError(
        ErrorCode.INTERNAL,
        f"model '{source.name}': cannot make its environment, {what} failed: {cut_to(text)}",
    )
