"""Which connection has kept us waiting too long?  Pure: ticks in, verdict out.

The frontend ticks every connection at a fixed pace; a connection only counts its own progress.
So a timeout costs nothing on the data path and is exact to one tick.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import final

TICK_S = 1.0
"""Seconds between two ticks: fine enough for timeouts of many seconds."""

DRAINING_WRITE_S = 5.0
"""`Patience.write_s` of a server that exits: a client that is there takes something within a few
round trips and retransmissions, and one that is not must not hold the exit up to its timeout."""


class Phase(Enum):
    """What a connection is doing, as far as patience is concerned."""

    IDLE = auto()
    """Nothing asked, nothing owed."""
    HEAD = auto()
    """A request head has begun and is not complete."""
    BODY = auto()
    """A request body is being received."""
    SERVING = auto()
    """Every request is complete; the server owes an answer."""
    WRITING = auto()
    """An answer waits for the peer to take it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each phase may last, in seconds.

    Attributes:
      idle_s: A keep-alive connection without a request. Longer than the 60 s that load balancers
        keep theirs, so that they and not we close first.
      head_s: From the first byte of a head to its last, however it is dripped; in gRPC from the
        beginning to the preface of HTTP/2.
      body_s: Without any byte of a body.
      write_s: Without the peer taking a byte of an answer.
    """

    idle_s: float = 75.0
    head_s: float = 30.0
    body_s: float = 60.0
    write_s: float = 60.0

    def while_draining(self) -> Patience:
        """Return the patience of a server that wants to exit."""
        return replace(self, write_s=min(self.write_s, DRAINING_WRITE_S))


@final
class ConnectionWatch:
    """Counts the ticks a connection has spent in one phase without the progress that counts."""

    __slots__ = ("_phase", "_progress", "_ticks")

    def __init__(self) -> None:
        self._phase = Phase.IDLE
        self._progress = 0
        self._ticks = 0

    def tick(self, phase: Phase, progress: int, patience: Patience) -> bool:
        """Note one tick.

        Args:
          phase: The phase right now.
          progress: Any number that changes whenever there is progress: bytes that move, but for a
            head, which a client could drip for ever, only requests that become complete.
          patience: The limits.

        Returns:
          Whether the connection has used up the patience for its phase.
        """
        if phase is not self._phase or progress != self._progress:
            self._phase = phase
            self._progress = progress
            self._ticks = 0
            return False
        self._ticks += 1
        limit_s = {
            Phase.IDLE: patience.idle_s,
            Phase.HEAD: patience.head_s,
            Phase.BODY: patience.body_s,
            Phase.SERVING: float("inf"),
            Phase.WRITING: patience.write_s,
        }[phase]
        return self._ticks * TICK_S >= limit_s
