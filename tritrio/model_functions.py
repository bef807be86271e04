"""The decorator that makes a model of a function or a class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar, final

import outcome
import trio
from trio.testing import MockClock

from .backends.device_context import HostContext
from .backends.device_thread import DeviceThread
from .backends.model_function import (
    ATTRIBUTE,
    Emit,
    ModelFunction,
    code_of,
    function_of,
    is_generator,
    make_model_function,
)
from .protocol.config_json import model_config_from_dict
from .protocol.config_rules import ConfigContext, normalise
from .protocol.config_validation import validate
from .protocol.dtypes import BYTES, CONFIG_NUMBERS
from .protocol.errors import ErrorCode, RequestError, invalid_argument
from .protocol.pb.inference import ModelConfig
from .protocol.wording import quoted

T = TypeVar("T", bound=Callable[..., Any])

BACKEND: Final = "function"
NAME_BYTES_MAX: Final = 255
"""What file systems allow."""

_TENSOR: Final = re.compile(r"([A-Z0-9]+)\[(-?[0-9]+(?:, *-?[0-9]+)*)\]")


def model(
    name: str | None = None,
    *,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    max_batch_size: int = 0,
    dynamic_batching: bool | Mapping[str, Any] | None = None,
    instances: int = 1,
    response_cache: bool = False,
    config: Mapping[str, Any] | None = None,
) -> Callable[[T], T]:
    """Make a model of the function or class below; it stays what it is, and can be called.

    Args:
      name: The model's name; the name of the function or class if None.
      inputs: Input name -> data type and dimensions, such as "FP32[-1,3]"; without the batch
        dimension, -1 is variable. An input is optional if its parameter has a default.
      outputs: Output name -> the same.
      max_batch_size: Most rows in a batch; 0 for a model that does not batch.
      dynamic_batching: Whether requests wait for each other, up to `max_batch_size`; a mapping has
        the fields of `dynamic_batching` in the configuration.
      instances: How many copies execute side by side.
      response_cache: Whether responses are kept, if the server has a cache.
      config: Any other fields of the configuration, in its JSON form. What is given here replaces
        what the other arguments say.

    Raises:
      RequestError: the configuration is not valid, or the function does not fit it.
    """
    if callable(name):
        raise invalid_argument(
            "expected @tritrio.model(inputs={...}, outputs={...}), got @tritrio.model without "
            "inputs= and outputs="
        )

    def decorate(target: T) -> T:
        called = getattr(target, "__name__", "") if name is None else name
        fields: dict[str, Any] = {
            "name": called,
            "backend": BACKEND,
            "max_batch_size": max_batch_size,
            "input": _tensors(called, inputs, _defaults_of(target)),
            "output": _tensors(called, outputs),
            "instance_group": [{"count": instances, "kind": "KIND_CPU"}],
        }
        if is_generator(code_of(target)):
            fields["model_transaction_policy"] = {"decoupled": True}
        if dynamic_batching is not None and dynamic_batching is not False:
            given = {} if dynamic_batching is True else dict(dynamic_batching)
            fields["dynamic_batching"] = given
        if response_cache:
            fields["response_cache"] = {"enable": True}
        written = model_config_from_dict({**fields, **(config or {})})
        _check(written, instances)
        if "dynamic_batching" in fields and written.max_batch_size < 1:
            raise invalid_argument(
                f"model '{written.name}': expected a max_batch_size of at least 1 with "
                f"dynamic_batching, got {written.max_batch_size}"
            )
        context = ConfigContext(preferred_count=1)
        validate(normalise(written, context=context), context=context)
        setattr(target, ATTRIBUTE, make_model_function(target, written, AsyncFunctions()))
        return target

    return decorate


def _check(config: ModelConfig, instances: int) -> None:
    """Refuse what another backend, or another way to write it down, would allow."""
    name = config.name
    if name in {".", ".."} or {"/", "\0"} & {*name} or len(name.encode()) > NAME_BYTES_MAX:
        raise invalid_argument(
            f"expected a model name that a directory can have, got {quoted(name)}"
        )
    if config.backend != BACKEND:
        raise invalid_argument(
            f"model '{name}': expected the backend '{BACKEND}', got {quoted(config.backend)}"
        )
    if instances < 1:
        raise invalid_argument(f"model '{name}': expected at least 1 of instances, got {instances}")


def model_function(target: object) -> ModelFunction:
    """Return what the decorator made of a function or class.

    Raises:
      TypeError: it has no decorator.
    """
    function = function_of(target)
    if function is None:
        raise TypeError(
            "expected a function or class with the decorator tritrio.model, "
            f"got {quoted(repr(target))}"
        )
    return function


def _defaults_of(target: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters that need not be given."""
    try:
        parameters = inspect.signature(code_of(target)).parameters.values()
    except (TypeError, ValueError):  # it is refused as a model later on
        return frozenset()
    return frozenset(each.name for each in parameters if each.default is not each.empty)


def _tensors(
    model_name: str, given: Mapping[str, str] | None, optional: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    tensors: list[dict[str, Any]] = []
    for name, text in (given or {}).items():
        match = _TENSOR.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[1] not in CONFIG_NUMBERS:
            raise invalid_argument(
                f"model '{model_name}': expected '{name}' as DATATYPE[DIMENSIONS], such as "
                f"'FP32[-1,3]', with one of {', '.join(CONFIG_NUMBERS)}, got {quoted(str(text))}"
            )
        tensor: dict[str, Any] = {
            "name": name,
            "data_type": "TYPE_STRING" if match[1] == BYTES else f"TYPE_{match[1]}",
            "dims": [int(size) for size in match[2].split(",")],
        }
        if name in optional:
            tensor["optional"] = True
        tensors.append(tensor)
    return tensors


WATCH_INTERVAL_S = 1 / 32
"""How often an async function that runs looks whether its clients are still there."""


@final
class AsyncFunctions:
    """Runs async functions by `trio.run`, on the thread of the instance that executes.

    On an event loop, where a model is tested, a short-lived thread has the second loop, whose
    clock is a virtual one, so that no time passes.
    """

    def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        wanted: Callable[[], bool],
    ) -> Any:
        """Return or raise what the async function does."""
        called = partial(function, **arguments)
        if trio.lowlevel.in_trio_run():
            return _run(called)
        return trio.run(_while_wanted, wanted, called)

    def stream(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        emit: Emit,
        wanted: Callable[[], bool],
    ) -> None:
        """Hand over what the async generator yields, until its end or until `emit` says False."""
        generator = partial(function, **arguments)
        if trio.lowlevel.in_trio_run():
            for value in _run(_collect, generator):
                if not emit(value):
                    break
        else:
            trio.run(_while_wanted, wanted, partial(_drive, generator, emit))


async def _while_wanted(wanted: Callable[[], bool], function: Callable[[], Any]) -> Any:
    """Return or raise what an async function does; cut it off once nobody wants it.

    Raises:
      RequestError: CANCELLED; it was cut off.
    """
    left = False

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal left
        while wanted():  # noqa: ASYNC110 - the flag is set on another thread
            await trio.sleep(WATCH_INTERVAL_S)
        left = True
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        result = await outcome.acapture(function)
        nursery.cancel_scope.cancel()
    if left:
        raise RequestError(ErrorCode.CANCELLED, "nobody waits for the answer any more")
    return result.unwrap()


async def _collect(generator: Callable[[], Any]) -> list[Any]:
    return [value async for value in generator()]


async def _drive(generator: Callable[[], Any], emit: Emit) -> None:
    async with aclosing(generator()) as values:
        async for value in values:
            if not emit(value):
                break


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run an async function on the event loop of another thread, where no time passes."""
    outcomes: SimpleQueue[Any] = SimpleQueue()
    thread = DeviceThread("async-function", HostContext(), lambda _, result: outcomes.put(result))
    thread.start()
    job = partial(trio.run, function, *arguments, clock=MockClock(autojump_threshold=0))
    thread.submit(outcomes.put, job)
    result = outcomes.get()
    thread.stop()
    return result.unwrap()
