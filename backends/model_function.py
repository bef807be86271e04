"""A function or class that somebody made a model of, and where the ones in this process are.

A function takes the model's inputs by the names of its parameters. A class is loaded by `__init__`,
executes by `__call__` and is unloaded by `close`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from ..protocol.errors import invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.wording import names_text

ATTRIBUTE: Final = "__tritrio_model__"
"""Where a function or class keeps what makes it a model."""

Emit: TypeAlias = Callable[[Any], bool]
"""Takes what a generator yields; False means that nobody wants more."""


class AsyncRunner(Protocol):
    """Runs what is `async def`, which this floor knows nothing of.

    Either ends early, with an error for `call`, once `wanted` says False.
    """

    def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        wanted: Callable[[], bool],
    ) -> Any:
        """Return or raise what an async function does with these arguments."""

    def stream(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        emit: Emit,
        wanted: Callable[[], bool],
    ) -> None:
        """Hand what an async generator yields to `emit`, which says False to end it."""


@dataclass(frozen=True, slots=True)
class ModelFunction:
    """A function or class that is a model.

    Attributes:
      target: The function or class.
      config: Its configuration, as it would be written in a `config.pbtxt`.
      runner: Runs it if it is async.
    """

    target: Callable[..., Any]
    config: ModelConfig
    runner: AsyncRunner

    @property
    def is_class(self) -> bool:
        """Whether each instance of the model is an object of its own."""
        return isinstance(self.target, type)

    @property
    def streams(self) -> bool:
        """Whether it is a generator, whose requests have any number of responses."""
        return is_generator(code_of(self.target))

    @property
    def is_async(self) -> bool:
        """Whether it needs an event loop."""
        code = code_of(self.target)
        return inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)

    def accepted_names(self, config: ModelConfig) -> frozenset[str] | None:
        """Return which tensors it takes; None means all that there are.

        Args:
          config: What it is to be served with.

        Raises:
          RequestError: INVALID_ARG; it has no parameter for an input, or another one that nothing
            is passed to, or only one of configuration and function says decoupled.
        """
        policy = config.model_transaction_policy
        if self.streams != (policy is not None and policy.decoupled):
            got = "a generator" if self.streams else "a function that returns"
            raise invalid_argument(
                f"model '{config.name}': expected a generator where model_transaction_policy has "
                f"decoupled, and only there, got {got}"
            )
        parameters = list(inspect.signature(code_of(self.target)).parameters.values())
        if self.is_class:
            del parameters[0]  # self
        named = {each.name: each for each in parameters if each.kind in _BY_NAME}
        takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
        required, offered = _tensor_names(config)
        missing = [tensor.name for tensor in config.input if tensor.name not in named]
        if missing and not takes_all:
            raise invalid_argument(
                f"model '{config.name}': expected a parameter for each input, got none for "
                f"{names_text(missing)} among {names_text(named)}"
            )
        for each in parameters:
            is_needed = each.kind is Parameter.POSITIONAL_ONLY or (
                each.name in named and each.name not in required
            )
            if is_needed and each.default is Parameter.empty:
                what = "an optional input" if each.name in offered else "no input"
                raise invalid_argument(
                    f"model '{config.name}': expected a default for parameter '{each.name}', "
                    f"which is {what}, got none"
                )
        return None if takes_all else frozenset(named)


_BY_NAME: Final = frozenset({Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY})


def _tensor_names(config: ModelConfig) -> tuple[set[str], set[str]]:
    """Return the tensors that each batch has, and those that some may have."""
    offered = {tensor.name for tensor in config.input}
    required = {tensor.name for tensor in config.input if not tensor.optional}
    required.update(name for batch_input in config.batch_input for name in batch_input.target_name)
    sequence = config.sequence_batching
    if sequence is not None:
        required.update(control.name for control in sequence.control_input)
        required.update(state.input_name for state in sequence.state)
    return required, offered


def code_of(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that executes: the target itself, or the `__call__` of a class."""
    if not isinstance(target, type):
        return target
    methods = [vars(cls)["__call__"] for cls in target.__mro__ if "__call__" in vars(cls)]
    return methods[0] if methods else target


def is_generator(code: Callable[..., Any]) -> bool:
    """Whether a function yields what it makes."""
    return inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)


def function_of(target: object) -> ModelFunction | None:
    """Return what makes a function or class a model, or None if it is none."""
    found: ModelFunction | None = getattr(target, "__dict__", {}).get(ATTRIBUTE)
    return found


def make_model_function(
    target: Callable[..., Any], config: ModelConfig, runner: AsyncRunner
) -> ModelFunction:
    """Return a function or class as a model, with every parameter checked.

    Raises:
      RequestError: INVALID_ARG; it cannot be one.
    """
    if not inspect.isfunction(code_of(target)):
        is_class = isinstance(target, type)
        got = "a class without one" if is_class else f"an object of type {type(target).__name__}"
        raise invalid_argument(
            f"model '{config.name}': expected a function or a class with __call__, got {got}"
        )
    function = ModelFunction(target, config, runner)
    function.accepted_names(config)
    return function


_held: Final[dict[Path, ModelFunction]] = {}


@contextmanager
def holding(directory: Path, function: ModelFunction) -> Iterator[None]:
    """Let the model in a directory be a function of this process, while the block runs.

    Args:
      directory: The model's directory, without symbolic links.
      function: The function.
    """
    assert directory not in _held
    _held[directory] = function
    try:
        yield
    finally:
        del _held[directory]


def held_in(directory: Path) -> ModelFunction | None:
    """Return the function of this process that the model in a directory is, or None."""
    return _held.get(directory)
