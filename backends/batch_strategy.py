"""Custom batching: a model's own functions decide which requests join a batch.

They are Python functions in `batchstrategy.py` of the version or the model directory, or in the
file that the model parameter `TRITON_BATCH_STRATEGY_PATH` names:

    def batcher_initialize(model_config: dict) -> object         # once, before all others
    def batch_initialize(batcher) -> object                      # for each new batch
    def batch_include_request(request, batch) -> bool            # may this request join it?
    def batch_finalize(batch) -> None
    def batcher_finalize(batcher) -> None                        # once, after all others

`batcher` is what `batcher_initialize` returned, `batch` what `batch_initialize` returned, and
`request` a `pb_utils.InferenceRequest` to be read only. The file has all five functions, or
`batch_include_request` alone; then `batch` is None.

The functions of batches run on the event loop, where the whole server waits for them, and may be
called several times for the same request: they must take microseconds and never wait.
Source: Triton's custom batching, whose functions are those of a C library; here they are Python.
"""

# ruff: noqa: SLF001 - the strategy sees requests as models do, through pb_objects

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, final

from ..protocol.config_json import model_config_to_dict
from ..protocol.config_validation import BATCH_STRATEGY_PARAMETER
from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest
from ..protocol.wording import names_text, quoted
from .base import ModelSource
from .fault_text import cut_to, text_of
from .parameters import parameter_text
from .pb_objects import InferenceResponse
from .pb_request import InferenceRequest
from .pb_tensor import TritonModelException
from .private_imports import PrivateImports

STRATEGY_FILENAME: Final = "batchstrategy.py"
LIBRARY_FILENAME: Final = "batchstrategy.so"

INCLUDE_FUNCTION: Final = "batch_include_request"
_FUNCTIONS: Final = (
    INCLUDE_FUNCTION,
    "batch_initialize",
    "batch_finalize",
    "batcher_initialize",
    "batcher_finalize",
)

_LOGGER: Final = logging.getLogger("tritrio.model")


def load_batch_strategy(source: ModelSource, config: ModelConfig) -> BatchStrategy | None:
    """Return the strategy of a model version with dynamic batching, or None if it has no own.

    It imports and runs the model's code, so it blocks.

    Raises:
      RequestError: INVALID_ARG if the file is missing, outside of the model repository, no Python,
        or does not define the functions; INTERNAL if its code raised. Names the model.
    """
    if config.dynamic_batching is None:
        return None
    path = _configured_path(source, config) or _default_path(source)
    if path is None:
        return None
    imports = PrivateImports(
        [path.parent, source.version_directory.absolute(), source.model_directory.absolute()]
    )
    try:
        module = _run(source, imports, f"importing {path.name}", imports.run_file, path)
        functions = {
            name: function
            for name in _FUNCTIONS
            if callable(function := getattr(module, name, None))
        }
        missing = [name for name in _FUNCTIONS if name not in functions]
        if missing and functions.keys() != {INCLUDE_FUNCTION}:
            raise _fault(
                source,
                f"not all custom batching functions are defined in {quoted(path.name)}, missing "
                f"{names_text(missing)}; expected all of them, or {INCLUDE_FUNCTION} alone",
            )
        return BatchStrategy(source, config, functions, imports)
    except BaseException:
        imports.close()
        raise


def _configured_path(source: ModelSource, config: ModelConfig) -> Path | None:
    """Return the file that the parameter names; a relative one is in the model directory."""
    text = parameter_text(config, BATCH_STRATEGY_PARAMETER)
    if text is None:
        return None
    if "\0" in text or not text:
        raise _fault(source, f"{BATCH_STRATEGY_PARAMETER} must name a file, got {quoted(text)}")
    return _checked(source, source.model_directory.absolute() / text)


def _default_path(source: ModelSource) -> Path | None:
    for directory in (source.version_directory, source.model_directory):
        for name in (STRATEGY_FILENAME, LIBRARY_FILENAME):
            path = directory.absolute() / name
            if path.is_file():
                return _checked(source, path)
    return None


def _checked(source: ModelSource, path: Path) -> Path:
    """Return the path without symbolic links, if it is a file of the repository."""
    if path.suffix == ".so":
        raise _fault(
            source,
            f"expected a Python file with the function {INCLUDE_FUNCTION} as batch strategy, got "
            f"the C library {quoted(str(path))}, which cannot be used",
        )
    model_directory = source.model_directory.absolute()
    # A model's directory may be a link, which is where its operator put it.
    roots = [model_directory.parent.resolve(), model_directory.resolve()]
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError):  # a loop of links is a RuntimeError
        raise _fault(source, f"there is no batch strategy {quoted(str(path))}") from None
    if not any(resolved.is_relative_to(root) for root in roots):
        raise _fault(
            source,
            f"expected a batch strategy inside the model repository '{roots[0]}', "
            f"got {quoted(str(path))}, which is {quoted(str(resolved))}",
        )
    if not resolved.is_file():
        raise _fault(source, f"expected a file for batch strategy {quoted(str(path))}, got none")
    return resolved


@final
class BatchStrategy:
    """The functions of one model version; used on the event loop, one call at a time.

    Whoever uses it logs what they raise and goes on without them.
    """

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        functions: dict[str, Callable[..., Any]],
        imports: PrivateImports,
    ) -> None:
        self._source = source
        self._imports: PrivateImports | None = imports
        self._include = functions[INCLUDE_FUNCTION]
        self._initialize = functions.get("batch_initialize")
        self._finalize = functions.get("batch_finalize")
        self._finalize_batcher = functions.get("batcher_finalize")
        self._output_names = tuple([tensor.name for tensor in config.output])
        self._batcher: Any = None
        if (initialize := functions.get("batcher_initialize")) is not None:
            description = model_config_to_dict(config)
            self._batcher = _run(source, imports, "batcher_initialize", initialize, description)

    def begin(self) -> object:
        """Return what the functions know a new batch by.

        Raises:
          Exception: whatever the function raised; SystemExit comes as a RuntimeError.
        """
        return None if self._initialize is None else _call(self._initialize, self._batcher)

    def include(self, batch: object, request: InferRequest) -> bool:
        """Return whether a request may join a batch; called for its first one as well.

        Raises:
          Exception: as `begin`.
          TypeError: the function returned something else than True or False.
        """
        view = request.without_inputs(request.model_name, request.model_version)
        view.inputs = request.inputs
        wrapped = InferenceRequest._received(view, 0, _UNANSWERED, self._output_names)
        included = _call(self._include, wrapped, batch)
        if not isinstance(included, bool):
            raise TypeError(
                f"{INCLUDE_FUNCTION} must return True or False, got {type(included).__name__}"
            )
        return included

    def end(self, batch: object) -> None:
        """Let the functions know that a batch is complete or was given up.

        Raises:
          Exception: as `begin`.
        """
        if self._finalize is not None:
            _call(self._finalize, batch)

    def close(self) -> None:
        """End the strategy and let go of its code; idempotent, and a fault of it is logged."""
        imports, self._imports = self._imports, None
        if imports is None:
            return
        if self._finalize_batcher is not None:
            try:
                _run(
                    self._source,
                    imports,
                    "batcher_finalize",
                    self._finalize_batcher,
                    self._batcher,
                )
            except RequestError as error:
                _LOGGER.error("%s", error.message)  # noqa: TRY400 - it holds the code's frames
        imports.close()


@final
class _Unanswered:
    """Stands for the batch of requests that are only looked at."""

    decoupled = False

    def send(self, index: int, response: InferenceResponse | None, *, final: bool) -> NoReturn:
        """Refuse a response."""
        del index, response, final
        raise TritonModelException("a batch strategy cannot answer requests")

    def abandon(self, index: int) -> None:
        """Nobody waits."""


_UNANSWERED: Final = _Unanswered()


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the model on the event loop, which it must not end."""
    try:
        return function(*args)
    except SystemExit as error:
        raise RuntimeError(f"{function.__name__} raised SystemExit: {error}") from None


def _run(
    source: ModelSource,
    imports: PrivateImports,
    doing: str,
    function: Callable[..., Any],
    *args: Any,
) -> Any:
    """Call a function whose fault fails the load."""
    try:
        return function(*args)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model may raise
        text = cut_to(text_of(error).replace(f"{imports.package}.", ""))
        raise RequestError(
            ErrorCode.INTERNAL,
            f"model '{source.name}' version {source.version}: batch strategy: {doing} raised "
            f"{type(error).__name__}: {text}",
            reason=FailureReason.BACKEND,
        ) from None


def _fault(source: ModelSource, text: str) -> RequestError:
    return invalid_argument(f"model '{source.name}': {text}")
