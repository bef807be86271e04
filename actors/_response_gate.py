"""Slows a decoupled model down to the pace of its client: one gate per request in execution."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import final

RESPONSES_WAITING_MAX = 64
"""Responses of one request that wait to be received: enough to keep a client busy while the model
computes, and few enough that a client that reads slowly costs no more memory than that."""

RESPONSES_HELD_BACK_MAX = 1024
"""The same where responses may have to wait for those of an earlier request: their model cannot
wait with them, since it may be the one that has to end that request."""

STALLED_MAX_S = 15.0
"""How long a response waits for a client that takes none, in seconds. The model serves others too,
and a client that has not read for so long is taken for gone."""


class StalledError(Exception):
    """A response found no room; says why."""


@final
class ResponseGate:
    """Lets the threads of a model post responses, while few of them wait to be received.

    Args:
      ordered: Whether responses may have to wait for those of earlier requests.
    """

    __slots__ = ("_full_since_ns", "_held_back", "_opened", "_room", "_room_max", "_waits")

    def __init__(self, *, ordered: bool = False) -> None:
        self._room_max = RESPONSES_HELD_BACK_MAX if ordered else RESPONSES_WAITING_MAX
        self._room = threading.Semaphore(self._room_max)
        self._opened = False
        self._held_back = False
        self._waits = False
        self._full_since_ns = 0  # as `has_room` saw it

    def enter(self, *, waits: bool = True) -> bool:
        """Take room for one response; False if nobody wants it. Not for the event loop.

        Args:
          waits: Whether to wait for room while there is none.

        Raises:
          StalledError: there is no room, or none was made for `STALLED_MAX_S`.
        """
        if not self._room.acquire(blocking=False):
            if not waits:
                raise StalledError(
                    f"{self._room_max} responses wait for those of earlier requests, as "
                    "preserve_ordering wants it; there is no room for more"
                )
            self._held_back = self._waits = True
            entered = self._room.acquire(timeout=max(0.0, STALLED_MAX_S - self._full_s()))
            self._waits = False
            if not entered:
                raise StalledError(f"the client has taken no response for {STALLED_MAX_S:g} s")
        if self._opened:
            self._room.release()  # for the next thread that waits
            return False
        return True

    def has_room(self) -> bool:
        """Return whether `enter` would not wait, for a thread that looks again instead of waiting.

        After `STALLED_MAX_S` without room it would not, since it would raise.
        """
        if self._room.acquire(blocking=False):
            self._room.release()
            self._full_since_ns = 0
            return True
        self._held_back = True
        if not self._full_since_ns:
            self._full_since_ns = perf_counter_ns()
        return self._full_s() >= STALLED_MAX_S

    def _full_s(self) -> float:
        since_ns = self._full_since_ns
        return (perf_counter_ns() - since_ns) / 1e9 if since_ns else 0.0

    def was_held_back(self) -> bool:
        """Return whether a thread waits here, or had to since the last call."""
        held_back, self._held_back = self._held_back, False
        return held_back or self._waits

    def leave(self) -> None:
        """Note that one response was received."""
        self._room.release()

    def open(self) -> None:
        """Let every thread through from now on, since nobody wants the responses; idempotent."""
        self._opened = True
        self._room.release()
