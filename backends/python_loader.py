"""Loads the code of a Python model, and turns whatever it raises into one sentence."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Final, TypeVar, final

from ..protocol.config_json import model_config_to_dict
from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.wording import SHOWN_TEXT_MAX
from .base import InstancePlace, ModelSource
from .fault_text import cut_to
from .model_file import path_inside
from .private_imports import PrivateImports

FRAMES_SHOWN_MAX: Final = 3
"""Last frames of a traceback in an error; enough to see who called what, still one line."""
EXCEPTION_TEXT_MAX_CHARS: Final = 1000
"""Most characters of an exception's own text in an error, before the frames."""

_CALLERS: Final = ("tritrio.", "importlib.", "asyncio.runners", "asyncio.base_events")
"""How the names of modules start whose frames say nothing about a model."""

MODEL_CLASS: Final = "TritonPythonModel"

T = TypeVar("T")


@final
class ModelCode:
    """The code of one instance, to be closed when the instance unloads.

    Args:
      source: Where the model lies.
      filename: The file with the model class, in the version directory.
    """

    def __init__(self, source: ModelSource, filename: str) -> None:
        self._source = source
        self._root = source.model_directory.absolute()
        self._directory = source.version_directory.absolute()
        self._filename = filename
        self._imports: PrivateImports | None = None

    def load_module(self) -> ModuleType:
        """Import the file; once.

        Raises:
          RequestError: there is no such file, or importing it failed.
        """
        path = path_inside(self._source, self._filename).absolute()
        if not os.path.isfile(path):  # Path.is_file raises on names too long
            raise invalid_argument(
                f"{self._name}: expected the model's code in its version directory, "
                f"which has no file {cut_to(self._filename, SHOWN_TEXT_MAX)}"
            )
        self._imports = PrivateImports([self._directory, self._root])
        return self.run(f"importing {self._filename}", self._imports.run_file, path)

    def load_class(self) -> Any:
        """Import the file and return its `TritonPythonModel`; once.

        Raises:
          RequestError: there is no such file or class, or importing it failed.
        """
        model_class = getattr(self.load_module(), MODEL_CLASS, None)
        if not isinstance(model_class, type):
            raise invalid_argument(
                f"{self._name}: expected a class {MODEL_CLASS} in {self._filename}, got none"
            )
        return model_class

    @property
    def package(self) -> str:
        """The package of the imported code; "" before the import."""
        return "" if self._imports is None else self._imports.package

    def uses(self, library: str) -> bool:
        """Return whether a file of the code has imported something of an installed library."""
        prefix = f"{self.package}."
        return any(
            _library_of(value) == library
            for name, module in list(sys.modules.items())
            if self.package and name.startswith(prefix)
            for value in list(vars(module).values())
        )

    def close(self) -> None:
        """Let go of the code; idempotent."""
        imports, self._imports = self._imports, None
        if imports is not None:
            imports.close()

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
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]  # a nursery wraps whatever is raised in it
        text = traceback.format_exception_only(error)[-1].strip()
        if self._imports is not None:
            text = text.replace(f"{self._imports.package}.", "")
        text = cut_to(" ".join(text.splitlines()), EXCEPTION_TEXT_MAX_CHARS)
        places = self._places(error.__traceback__)
        if isinstance(error, SyntaxError) and error.filename is not None:
            places.append(f"{self._shorten(error.filename)}:{error.lineno}")
        return f"{text} (at {', '.join(places[-FRAMES_SHOWN_MAX:])})" if places else text

    @property
    def _name(self) -> str:
        return f"model '{self._source.name}' version {self._source.version}"

    def _places(self, trace: TracebackType | None) -> list[str]:
        """Return the frames of a traceback, without ours and those of what calls the model."""
        return [
            f"{self._shorten(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(trace)
            if not frame.f_globals.get("__name__", "").startswith(_CALLERS)
        ]

    def _shorten(self, filename: str) -> str:
        return filename.removeprefix(f"{self._root}{os.sep}")


def initialize_arguments(
    source: ModelSource, config: ModelConfig, place: InstancePlace
) -> dict[str, str]:
    """Return what the `initialize` of a model gets."""
    return {
        "model_config": json.dumps(model_config_to_dict(config)),
        "model_instance_kind": place.kind,
        "model_instance_device_id": str(place.device_id),
        "model_instance_name": place.name,
        "model_name": source.name,
        "model_repository": str(source.model_directory),
        "model_version": str(source.version),
    }


def _library_of(value: object) -> str:
    """Return where a module, class or function comes from, as its first name; "" if it is none."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0]
    if isinstance(value, type | FunctionType):
        return value.__module__.partition(".")[0]
    return ""
