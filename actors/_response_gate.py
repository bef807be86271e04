"""Slows a decoupled model down to the pace of its client: one gate per request in execution."""

from __future__ import annotations

import threading
from typing import final

RESPONSES_WAITING_MAX = 64
"""Responses of one request that wait to be received: enough to keep a client busy while the model
computes, and few enough that a client that reads slowly costs no more memory than that."""


@final
class ResponseGate:
    """Lets the threads of a model post responses, while few of them wait to be received."""

    __slots__ = ("_opened", "_room")

    def __init__(self) -> None:
        self._room = threading.Semaphore(RESPONSES_WAITING_MAX)
        self._opened = False

    def enter(self) -> bool:
        """Wait for room for one response; False if nobody wants it. Not for the event loop."""
        self._room.acquire()
        if self._opened:
            self._room.release()  # for the next thread that waits
            return False
        return True

    def leave(self) -> None:
        """Note that one response was received."""
        self._room.release()

    def open(self) -> None:
        """Let every thread through from now on, since nobody wants the responses; idempotent."""
        self._opened = True
        self._room.release()
