"""Which of many things is due?  Pure: the time comes in.

A heap with lazy removal: most deadlines are discarded long before they pass, and a discarded one
stays until it is on top or until discarded ones outnumber the rest, so the heap stays within
twice what is alive.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar, final

K = TypeVar("K", bound=int)

SLACK = 64
"""Discarded entries that are not worth a rebuild."""


@final
class Deadlines(Generic[K]):
    """Deadlines by key; each key has at most one."""

    __slots__ = ("_alive", "_heap")

    def __init__(self) -> None:
        self._alive: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []

    def __len__(self) -> int:
        return len(self._alive)

    def add(self, key: K, deadline_s: float) -> None:
        """Note the deadline of a key, in clock seconds."""
        assert key not in self._alive
        self._alive[key] = deadline_s
        heappush(self._heap, (deadline_s, key))

    def discard(self, key: K) -> None:
        """Forget a key's deadline, if it has one."""
        if self._alive.pop(key, None) is not None and len(self._heap) > SLACK + 2 * len(
            self._alive
        ):
            self._heap = [(deadline_s, key) for key, deadline_s in self._alive.items()]
            heapify(self._heap)

    def next_s(self) -> float:
        """Return the earliest deadline, or inf."""
        heap = self._heap
        while heap and self._alive.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else inf

    def expire(self, now_s: float) -> list[K]:
        """Remove and return the keys whose deadline has come, earliest first."""
        due: list[K] = []
        while self.next_s() <= now_s:
            key = heappop(self._heap)[1]
            del self._alive[key]
            due.append(key)
        return due
