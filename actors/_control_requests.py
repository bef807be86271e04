"""Loads and unloads that models ask for, from any thread onto the event loop and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeAlias, final

from ..protocol.errors import ErrorCode, RequestError
from .model_control import Done, StartsControl

Start: TypeAlias = Callable[[StartsControl, Done], None]
"""Starts what is asked for; raises a `RequestError` if it does not even begin."""


class Ring(Protocol):
    """Has a function called on the event loop, from any thread."""

    def __call__(self, function: Callable[..., None], /, *args: object) -> None:
        """Return at once."""


@final
class ControlRequests:
    """Lets threads wait for loads and unloads.

    Lifetime: made on the event loop's thread. After `close` everything is refused, and nobody
    waits any more.

    Args:
      ring: Rings the event loop.
      refusal: Returns why the code of an instance, by its number, may ask for nothing now; called
        on the event loop.

    Attributes:
      control: Carries out what is asked for; None refuses it.
    """

    def __init__(self, ring: Ring, refusal: Callable[[int | None], RequestError | None]) -> None:
        self.control: StartsControl | None = None
        self._ring = ring
        self._refusal = refusal
        self._waiting: dict[_Asked, None] = {}
        self._waited: set[int | None] = set()
        self._closed = False
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()  # of what is asked, and of whether it is closed

    def __repr__(self) -> str:
        return f"<ControlRequests, {len(self._waiting)} waiting>"

    def ask(self, start: Start, *, caller: int | None) -> None:
        """Have something done and wait for it, on any thread but that of the event loop.

        Args:
          start: What is asked for.
          caller: The number of the instance whose code asks, or None.

        Raises:
          RequestError: it is refused, or it failed.
        """
        if self.control is None:
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                "loading and unloading models on request needs a server with model control",
            )
        if threading.get_ident() == self._loop_thread:
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                "an async execute runs on the server's event loop, which must not block: load and "
                "unload models with trio.to_thread.run_sync()",
            )
        asked = _Asked(start, caller)
        with self._lock:
            closed = self._closed
            if not closed:
                self._waiting[asked] = None
        if closed:
            raise _stops()
        self._ring(self._begin, asked)
        error = asked.answer.get()
        if error is not None:
            raise RequestError(error.code, error.message)

    def waited(self, instance: int) -> bool:
        """Return whether code of an instance waits, or did since this was asked."""
        lately = instance in self._waited
        self._waited.discard(instance)
        with self._lock:
            return lately or any(asked.caller == instance for asked in self._waiting)

    def close(self) -> None:
        """Refuse everything from now on, and answer those that wait."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, {}
        for asked in waiting:
            asked.answer.put(_stops())

    def _begin(self, asked: _Asked) -> None:
        def done(error: RequestError | None) -> None:
            with self._lock:
                self._waiting.pop(asked, None)
            self._waited.add(asked.caller)
            asked.answer.put(error)

        assert self.control is not None
        refusal = self._refusal(asked.caller)
        if refusal is not None:
            done(refusal)
            return
        try:
            asked.start(self.control, done)
        except RequestError as error:
            done(error)


@final
class _Asked:
    """Something that a thread waits for."""

    __slots__ = ("answer", "caller", "start")

    def __init__(self, start: Start, caller: int | None) -> None:
        self.start = start
        self.caller = caller
        self.answer: SimpleQueue[RequestError | None] = SimpleQueue()


def _stops() -> RequestError:
    return RequestError(ErrorCode.UNAVAILABLE, "the server stops, and loads no more models")
