"""Serves functions that are models, and writes them into a model repository."""

from __future__ import annotations

import inspect
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import trio

from .actors._repository_scan import CONFIG_NAME
from .backends.function_model import DEFAULT_FILENAME, EXPORTED_NAME
from .backends.model_function import ModelFunction, holding
from .logs import Logs
from .model_functions import model_function
from .options import ServerOptions
from .protocol.config_text_writer import model_config_to_text
from .protocol.version_policy import parse_version
from .server import serve_until_signal

_LOGGER: Final = logging.getLogger(__name__)

SOURCE_FILENAME: Final = "function_source.py"
"""The copy of the file that defines an exported function."""


def serve(*models: Callable[..., Any], **options: Any) -> bool:
    """Serve models until SIGINT or SIGTERM, as the command line does; on the main thread.

    Unless the program has told `logging` where to, the log is written as the command line does.

    Args:
      models: Functions and classes with the decorator `tritrio.model`.
      options: Fields of `ServerOptions`, such as `http_port`; the models of
        `model_repositories` are served as well.

    Returns:
      Whether everything ended within the exit timeout.

    Raises:
      StartError: a model cannot be loaded, or a port cannot be bound.
      TypeError: a model has no decorator, or there is no such option.
    """
    repositories = options.pop("model_repositories", ())
    if "http_address" in options:  # as on the command line
        options.setdefault("metrics_address", options["http_address"])
    with function_repository(*models) as directory:
        served = ServerOptions(model_repositories=(directory, *map(Path, repositories)), **options)
        logs = Logs(served.log)
        with nullcontext() if logging.getLogger().handlers else logs.written():
            return trio.run(
                serve_until_signal, served, logs, restrict_keyboard_interrupt_to_checkpoints=True
            )


@contextmanager
def function_repository(*models: Callable[..., Any]) -> Iterator[Path]:
    """Make a temporary model repository whose models are functions of this process.

    Args:
      models: Functions and classes with the decorator `tritrio.model`.

    Yields:
      Its directory, which is gone after the block.

    Raises:
      TypeError: a model has no decorator.
      ValueError: two models have one name.
    """
    functions = [model_function(model) for model in models]
    with ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="tritrio-"))
        repository = Path(made).resolve()
        for function in functions:
            directory = repository / function.config.name
            if directory.exists():
                raise ValueError(f"expected models of different names, got two {directory.name!r}")
            (directory / "1").mkdir(parents=True)
            _write_config(directory, function)
            stack.enter_context(holding(directory, function))
        yield repository


def open_repositories(
    models: Sequence[Callable[..., Any] | Path | str], stack: ExitStack
) -> tuple[Path, ...]:
    """Return repositories with all the models; single model directories are linked into one.

    Args:
      models: Functions and classes with the decorator `tritrio.model`, model repositories, and
        directories of one model.
      stack: Where what was made for them is taken away again.
    """
    paths = [Path(each).absolute() for each in models if isinstance(each, Path | str)]
    functions = [each for each in models if not isinstance(each, Path | str)]
    single = [path for path in paths if _is_model(path)]
    repositories = [path for path in paths if path not in single]
    if functions:
        repositories.append(stack.enter_context(function_repository(*functions)))
    if single:
        links = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tritrio-")))
        for path in single:
            (links / path.name).symlink_to(path, target_is_directory=True)
        repositories.append(links)
    return tuple(repositories)


def _is_model(path: Path) -> bool:
    if (path / "config.pbtxt").is_file():
        return True
    return path.is_dir() and any(parse_version(entry.name) is not None for entry in path.iterdir())


def export(model: Callable[..., Any], repository: Path | str) -> Path:
    """Write a function that is a model into a model repository, where any tritrio can serve it.

    A function in a package is imported from there, so the package must be installed where it is
    served. Any other is in a file of its own: the file is copied, and whatever it imports besides
    what is installed has to be put beside the copy.

    Args:
      model: A function or class with the decorator `tritrio.model`, at the top of its file.
      repository: The directory for the model's directory. Code that an earlier export wrote there
        is replaced; a configuration that differs is kept, and a warning says so.

    Returns:
      The model's directory.

    Raises:
      TypeError: there is no decorator.
      ValueError: no other process could import the function.
    """
    function = model_function(model)
    name = function.target.__name__
    module = sys.modules.get(function.target.__module__)
    if module is None or getattr(module, name, None) is not function.target:
        raise ValueError(
            "expected a function or class that its module has under its own name, "
            f"got {function.target.__qualname__!r} of module {function.target.__module__!r}"
        )
    package = _name_in_package(module)
    source = None if package else inspect.getsourcefile(module)
    if package is None and (source is None or not Path(source).is_file()):
        raise ValueError(f"expected a function whose module has a file, got {name!r} without one")
    directory = Path(repository) / function.config.name
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    config = directory / CONFIG_NAME
    if not config.exists():
        _write_config(directory, function)
    elif config.read_text(encoding="utf-8") != model_config_to_text(function.config):
        _LOGGER.warning(
            "%s is kept, which is not what the decorator says; delete it to have it written again",
            config,
        )
    if source is not None:
        (version / SOURCE_FILENAME).write_bytes(Path(source).read_bytes())
    origin = package or SOURCE_FILENAME.removesuffix(".py")
    line = f"from {origin} import {name} as {EXPORTED_NAME}  # noqa: F401\n"
    (version / DEFAULT_FILENAME).write_text(line, encoding="utf-8")
    return directory


def _name_in_package(module: ModuleType) -> str | None:
    """Return how a module of a package is imported, or None if it is in none."""
    spec = module.__spec__
    name = module.__name__ if spec is None else spec.name
    is_package = hasattr(module, "__path__")
    return name if "." in name or is_package else None


def _write_config(directory: Path, function: ModelFunction) -> None:
    text = model_config_to_text(function.config)
    (directory / CONFIG_NAME).write_text(text, encoding="utf-8")
