"""Loads the code of a Python model, apart from that of every other model.

Each instance runs its own copy of `model.py` under a module name of its own. While that file is
imported, its version and model directories are at the front of `sys.path`, and afterwards the
modules found there leave `sys.modules`: two models may each have a `utils.py`. Later imports,
in a function body, find the directories at the end of `sys.path`.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any, Final, TypeVar, final

from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from .base import ModelSource

IMPORT_WAIT_S: Final = 120.0
"""How long a load waits for other imports: they take seconds, but one that hangs never ends."""
FRAMES_SHOWN_MAX: Final = 3
"""Last frames of a traceback in an error; enough to see who called what, still one line."""
FAULT_TEXT_MAX_CHARS: Final = 1000
"""Most characters of an exception's own text in an error."""

MODEL_CLASS: Final = "TritonPythonModel"

T = TypeVar("T")

_import_lock = threading.Lock()
_module_numbers = itertools.count()


@final
class ModelCode:
    """The imported code of one instance, to be closed when the instance unloads.

    Args:
      source: Where the model lies.
      filename: The file with the model class, in the version directory.
    """

    def __init__(self, source: ModelSource, filename: str) -> None:
        self._source = source
        self._path = source.version_directory.absolute() / filename
        self._root = source.model_directory.absolute()
        self._directories = [str(source.version_directory.absolute()), str(self._root)]
        self._module = ModuleType(f"tritrio_model_{next(_module_numbers)}")
        self._module.__file__ = str(self._path)
        self._open = False

    def load_class(self) -> Any:
        """Import the file and return its `TritonPythonModel`.

        Raises:
          RequestError: there is no such file or class, or importing it failed.
        """
        try:
            text = self._path.read_bytes()
        except OSError as error:
            raise invalid_argument(
                f"{self._name}: expected the model's code in {self._path.name}, "
                f"which cannot be read: {error.strerror}"
            ) from None
        self._open = True
        sys.path.extend(self._directories)
        sys.modules[self._module.__name__] = self._module
        if not _import_lock.acquire(timeout=IMPORT_WAIT_S):
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                f"{self._name}: the import of another model has not ended in {IMPORT_WAIT_S:g} s",
            )
        try:
            with self.own_imports():
                importlib.invalidate_caches()  # files may be younger than the last look
                self.run(f"importing {self._path.name}", self._execute_module, text)
        finally:
            _import_lock.release()
        model_class = getattr(self._module, MODEL_CLASS, None)
        if not isinstance(model_class, type):
            raise invalid_argument(
                f"{self._name}: expected a class {MODEL_CLASS} in {self._path.name}, got none"
            )
        return model_class

    def close(self) -> None:
        """Take the code out of `sys.path` and `sys.modules` again."""
        if self._open:
            self._open = False
            for directory in self._directories:
                sys.path.remove(directory)
            sys.modules.pop(self._module.__name__, None)

    @contextmanager
    def own_imports(self) -> Iterator[None]:
        """Let imports find the model's files first, and nobody else find what they imported."""
        sys.path[:0] = self._directories
        try:
            yield
        finally:
            for name, module in list(sys.modules.items()):
                if module is not self._module and self._is_own(module):
                    sys.modules.pop(name, None)
            for directory in self._directories:
                sys.path.remove(directory)

    def run(self, doing: str, function: Callable[..., T], *args: Any) -> T:
        """Call a function of the model, such as its `initialize`.

        Raises:
          RequestError: INTERNAL; says what the model was doing, what it raised, and where.
        """
        try:
            return function(*args)
        except BaseException as error:  # noqa: BLE001 - a model may raise anything, also SystemExit
            raise RequestError(
                ErrorCode.INTERNAL,
                f"{self._name}: {doing} raised {self.describe(error)}",
                reason=FailureReason.BACKEND,
            ) from None

    def describe(self, error: BaseException) -> str:
        """Return type and text of an exception and the frames it came through last."""
        text = traceback.format_exception_only(error)[-1].strip()
        if len(text) > FAULT_TEXT_MAX_CHARS:
            text = text[:FAULT_TEXT_MAX_CHARS] + "…"
        places = self._places(error.__traceback__)
        if isinstance(error, SyntaxError) and error.filename is not None:
            places.append(f"{self._shorten(error.filename)}:{error.lineno}")
        return f"{text} (at {', '.join(places[-FRAMES_SHOWN_MAX:])})" if places else text

    def _execute_module(self, text: bytes) -> None:
        # Compiled here, since a cached .pyc is stale if the file changes twice within a second,
        # and since a server should not write into a model repository.
        code = compile(text, str(self._path), "exec", dont_inherit=True)
        writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            exec(code, self._module.__dict__)  # noqa: S102 - running the model's code is the point
        finally:
            sys.dont_write_bytecode = writes_none

    @property
    def _name(self) -> str:
        return f"model '{self._source.name}' version {self._source.version}"

    def _is_own(self, module: object) -> bool:
        # Namespace packages have no file, but a path.
        file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
        return isinstance(file, str) and file.startswith(f"{self._root}{os.sep}")

    def _places(self, trace: TracebackType | None) -> list[str]:
        places = [
            f"{self._shorten(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(trace)
            if not frame.f_globals.get("__name__", "").startswith("tritrio.")
        ]
        return places[-FRAMES_SHOWN_MAX:]

    def _shorten(self, filename: str) -> str:
        return filename.removeprefix(f"{self._root}{os.sep}")
