"""Who waits, in which order and for how long?  Pure: no trio, no clock, no I/O.

Requests wait in one queue, or with priorities in one a level; level 1 goes first. With the
timeout action DELAY a request that waited too long moves to its level's delayed queue, which
goes after the level's live queue and before the next level; it never times out again. A level may
starve those below it, which is what priorities are for; within a queue, first come is first.

A queue is an ordered dictionary request -> key, so that a request in its middle leaves it in O(1);
the key, which says what a request can be stacked with, matters only to the caller.

Source: Triton `ModelQueuePolicy` in model_config.proto.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from math import inf
from typing import Any, TypeAlias, final

from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ._overload_policy import OVERLOAD_RETRY_S, levels_admitted
from ._queue_rules import QueueRules
from .messages import Infer

Queue: TypeAlias = "OrderedDict[Infer, Hashable]"

RETRY_S_MIN = 0.125
"""The shortest retry hint: a client that comes back sooner only adds load."""

RETRY_S_MAX = 30.0
"""The longest retry hint: clients give up if they are told to wait for longer."""

_STALE_DEADLINES = 64
"""Deadlines of requests that have left, over as many as there are queued, before a clean-up."""


class _Level:
    __slots__ = ("delayed", "live", "number", "rules")

    def __init__(self, number: int, rules: QueueRules) -> None:
        self.number = number
        self.rules = rules
        self.live: Queue = OrderedDict()
        self.delayed: Queue = OrderedDict()

    def __len__(self) -> int:
        return len(self.live) + len(self.delayed)

    def oldest_queued_s(self) -> float:
        return min([next(iter(queue)).queued_s for queue in (self.live, self.delayed) if queue])


@final
class PriorityQueue:
    """The waiting requests of one model version, level by level.

    Args:
      model_name: Named in errors.
      levels: Rules of the priority levels 1, 2, ...; a single entry is a model without priorities.
      default_level: The level, from 1, of requests that name none or one that does not exist.

    Attributes:
      queues: In the order in which they are served; to be read only.
      count: How many requests wait.
      rows: Rows of all that waits.
    """

    def __init__(
        self, model_name: str, levels: tuple[QueueRules, ...], default_level: int = 1
    ) -> None:
        assert 1 <= default_level <= len(levels)
        self._model_name = model_name
        self._levels = {number: _Level(number, rules) for number, rules in enumerate(levels, 1)}
        self._default_level = self._levels[default_level]
        self._admitted = len(levels)
        self._deadlines: list[tuple[float, int, Infer, _Level]] = []
        self._sequence = 0
        self.count = 0
        self.rows = 0
        self.queues = [
            queue
            for level in self._levels.values()
            for queue in ((level.live, level.delayed) if level.rules.delays else (level.live,))
        ]

    def __len__(self) -> int:
        return self.count

    def add(self, infer: Infer, key: Hashable, now_s: float) -> RequestError | None:
        """Queue one request, or return why its level cannot take it."""
        request = infer.request
        level = self._levels.get(request.priority, self._default_level)
        if level.number > self._admitted:
            return self._overloaded(level)
        if len(level.live) + len(level.delayed) >= level.rules.size_max:
            return self._full(level, now_s)
        infer.queued_s = now_s
        infer.level = level.number
        rules = level.rules
        if rules.timeout_us or (rules.override_below_us and request.timeout_us):
            self._set_deadline(infer, level)
        level.live[infer] = key
        self.count += 1
        self.rows += request.batch_size or 1
        return None

    def requeue(self, infers: list[Infer]) -> None:
        """Put requests that had left in front of their levels again, in this order.

        They keep the time at which they were queued, each is its own key, and no limit applies.
        One that has waited too long by now still times out, but is not delayed.
        """
        for infer in reversed(infers):
            level = self._levels.get(infer.request.priority, self._default_level)
            level.live[infer] = infer
            level.live.move_to_end(infer, last=False)
            if not level.rules.delays:
                self._set_deadline(infer, level)
            self.count += 1
            self.rows += infer.request.batch_size or 1

    def _set_deadline(self, infer: Infer, level: _Level) -> None:
        timeout_s = level.rules.timeout_s_of(infer.request.timeout_us)
        if timeout_s:
            self._sequence += 1
            expires_s = infer.queued_s + timeout_s
            if not level.rules.delays:
                infer.expires_s = expires_s
            entry = (expires_s, self._sequence, infer, level)
            heapq.heappush(self._deadlines, entry)

    def _full(self, level: _Level, now_s: float) -> RequestError:
        # What waits longest came to a queue about as long as this one is now: so long it takes.
        waited_s = now_s - level.oldest_queued_s()
        return RequestError(
            ErrorCode.UNAVAILABLE,
            f"expected at most {level.rules.size_max} waiting requests in the queue of model "
            f"'{self._model_name}', got one more",
            reason=FailureReason.REJECTED,
            retry_after_s=min(max(waited_s, RETRY_S_MIN), RETRY_S_MAX),
        )

    def _overloaded(self, level: _Level) -> RequestError:
        return RequestError(
            ErrorCode.UNAVAILABLE,
            f"the server is overloaded: model '{self._model_name}' takes requests of priority "
            f"{self._admitted} and above only, got one of {level.number}",
            reason=FailureReason.REJECTED,
            retry_after_s=OVERLOAD_RETRY_S,
        )

    def timeout_at_s(self) -> float:
        """When the next request times out, in clock seconds; `inf` if none can."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] not in deadlines[0][3].live:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else inf

    def expire(self, now_s: float) -> list[Infer]:
        """Remove and return the requests whose time is over and that are to be refused."""
        expired: list[Infer] = []
        while self._deadlines and self.timeout_at_s() <= now_s:
            _, _, infer, level = heapq.heappop(self._deadlines)
            if level.rules.delays:
                level.delayed[infer] = level.live.pop(infer)
            else:
                self.remove(infer)
                expired.append(infer)
        return expired

    def remove(self, infer: Infer) -> bool:
        """Take one request out, in O(1); False if it was not queued."""
        level = self._levels.get(infer.request.priority, self._default_level)
        if infer in level.live:
            del level.live[infer]
        elif infer in level.delayed:
            del level.delayed[infer]
        else:
            return False
        self.count -= 1
        self.rows -= infer.request.batch_size or 1
        if len(self._deadlines) > 2 * self.count + _STALE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in entry[3].live]
            heapq.heapify(self._deadlines)
        return True

    def remove_cancelled(self) -> list[Infer]:
        """Remove and return what nobody waits for any more; looks at the whole queue."""
        return self._remove([infer for infer in self._all() if infer.request.cancelled])

    def remove_all(self) -> list[Infer]:
        """Remove and return everything, in order."""
        return self._remove(list(self._all()))

    def shed(self, share: float) -> list[tuple[Infer, RequestError]]:
        """Admit only the highest levels from now on.

        Args:
          share: Which part of the levels, see `levels_admitted`.

        Returns:
          What waited in the other levels and is removed, each with why.
        """
        admitted = levels_admitted(len(self._levels), share)
        if admitted == self._admitted:
            return []
        self._admitted = admitted
        return [
            (infer, self._overloaded(level))
            for level in self._levels.values()
            if level.number > admitted
            for infer in self._remove([*level.live, *level.delayed])
        ]

    def first(self) -> Infer:
        """Return the request that is served next; there has to be one."""
        return next(iter(next(filter(None, self.queues))))

    def items(self) -> Iterator[tuple[int, Infer, Hashable]]:
        """Return index of its queue, request and key of all that waits, in order."""
        for place, queue in enumerate(self.queues):
            for infer, key in queue.items():
                yield place, infer, key

    def oldest_queued_s(self) -> float:
        """When the request that waits longest was queued, in clock seconds; `inf` with none."""
        if not self.count:
            return inf
        return min([next(iter(queue)).queued_s for queue in self.queues if queue])

    def describe(self) -> list[dict[str, Any]]:
        """Return the rules and the length of each level, as JSON values."""
        return [
            {
                "level": level.number,
                "max_queue_size": level.rules.size_max,
                "default_timeout_us": level.rules.timeout_us,
                "allow_timeout_override": level.rules.override_below_us > 0,
                "timeout_action": "DELAY" if level.rules.delays else "REJECT",
                "admitted": level.number <= self._admitted,
                "queued": len(level.live),
                "delayed": len(level.delayed),
            }
            for level in self._levels.values()
        ]

    def _all(self) -> Iterable[Infer]:
        return (infer for queue in self.queues for infer in queue)

    def _remove(self, infers: list[Infer]) -> list[Infer]:
        for infer in infers:
            self.remove(infer)
        return infers
