"""Which model runs the current code: what `pb_utils` knows without being told.

An instance enters its context on its thread whenever it calls the model, and what the model starts
with asyncio inherits it. A thread that a model made itself is recognised by the model's code that
it runs.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import final

from .base import Batch, ModelSource
from .pb_tensor import TritonModelException
from .server_link import ServerLink

_current: ContextVar[ModelContext | None] = ContextVar("tritrio model", default=None)
_loaded: dict[str, ModelContext] = {}
"""Package of an instance's code -> its context."""


@final
class Running:
    """What an instance executes.

    Attributes:
      batch: What is in its `execute` right now.
    """

    __slots__ = ("batch",)

    def __init__(self) -> None:
        self.batch: Batch | None = None


@final
@dataclass(frozen=True, slots=True)
class ModelContext:
    """One instance of a model, as the code in it sees it.

    Attributes:
      source: Where the model lies.
      server: What it may ask; None without a server.
      number: What the server calls the instance; None without one.
      in_execution: Whether an execution of the instance, if there is one, waits for what this code
        does.
      on_event_loop: Whether the code runs on the server's event loop, which must never block.
      running: What the instance executes.
    """

    source: ModelSource
    server: ServerLink | None = None
    number: int | None = None
    in_execution: bool = True
    on_event_loop: bool = False
    running: Running = field(default_factory=Running)


def enter_model(context: ModelContext | None) -> None:
    """Note that from now on, this thread or task runs the code of an instance, or of none."""
    _current.set(context)


def model_loaded(package: str, context: ModelContext) -> None:
    """Recognise the code of an instance by its package until `model_unloaded`."""
    _loaded[package] = replace(context, in_execution=False)


def model_unloaded(package: str) -> None:
    """Forget the code of an instance; idempotent."""
    _loaded.pop(package, None)


def model_context() -> ModelContext | None:
    """Return the context of the code that calls; None where no model is known."""
    return _current.get() or _context_of_code()


def required_context(what: str) -> ModelContext:
    """Return the context of the code that calls.

    Raises:
      TritonModelException: it is of no model.
    """
    context = model_context()
    if context is None:
        raise TritonModelException(f"{what} is for the code of a model that a server has loaded")
    return context


def required_server(what: str) -> tuple[ModelContext, ServerLink]:
    """Return the context of the code that calls, and the server.

    Raises:
      TritonModelException: there is no server to ask.
    """
    context = model_context()
    if context is None and _loaded:  # a thread that runs no code of its model: any has the server
        context = next(reversed(_loaded.values()))
    if context is None:
        context = required_context(what)
    if context.server is None:
        raise TritonModelException(f"{what} needs a server, and this model runs without one")
    return context, context.server


def about_caller() -> dict[str, str]:
    """Return the `extra` of a line that a model logs: the model, and which request it is about.

    That is known while the model executes a single one.
    """
    context = model_context()
    if context is None:
        return {}
    extra = {"model": context.source.name, "version": str(context.source.version)}
    batch = context.running.batch
    if batch is not None and len(batch.requests) == 1:
        extra["request_id"] = batch.requests[0].id
    return extra


def _context_of_code() -> ModelContext | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the cheap way to see the callers
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        context = _loaded.get(name.partition(".")[0])
        if context is not None:
            return context
        frame = frame.f_back
    return None
