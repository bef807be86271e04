"""Which requests form a batch, and when does it leave?  Pure: no trio, no clock, no I/O.

Requests wait in one queue, or with priorities in one a level; level 1 goes first. With the
timeout action DELAY a request that waited too long moves to its level's delayed queue, which
goes after the level's live queue and before the next level; it never times out again.

A queue is an ordered dictionary request -> shape key, so that a request in its middle leaves it
in O(1). Two requests may share a batch when their keys are equal.

Source: Triton `ModelDynamicBatching` and `ModelQueuePolicy` in model_config.proto.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias, final

from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import (
    ModelConfig,
    ModelDynamicBatching,
    ModelQueuePolicy,
    ModelQueuePolicyTimeoutAction,
)
from .messages import Infer

QUEUE_SIZE_MAX = 65_536
"""Requests a queue takes when its configuration sets no limit, so that no queue is unbounded: at
the rate one process can serve, it is several seconds of work."""

PRIORITY_LEVELS_MAX = 1024
"""Levels a configuration may have: each costs a queue, and every decision looks at all of them."""

_STALE_DEADLINES = 64
"""Deadlines of requests that have left, over as many as there are queued, before a clean-up."""

_Queue: TypeAlias = "OrderedDict[Infer, Hashable]"


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What one priority level allows.

    Attributes:
      size_max: Most requests that wait in the level.
      timeout_us: How long a request may wait, in microseconds; 0 is no limit.
      override_below_us: A request's own timeout counts if it is positive and below this.
      delays: Whether a timed-out request goes to the end (True) or is refused (False).
    """

    size_max: int = QUEUE_SIZE_MAX
    timeout_us: int = 0
    override_below_us: float = 0
    delays: bool = False


class _Level:
    __slots__ = ("delayed", "live", "rules")

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.live: _Queue = OrderedDict()
        self.delayed: _Queue = OrderedDict()


@final
class BatchPolicy:
    """The queue of one model version.

    Args:
      model_name: Named in errors.
      rows_max: Most rows in one batch; >= 1.
      batching: Whether requests may share a batch; False makes each leave alone.
      preferred_sizes: Rows at which a batch leaves at once; none means `rows_max` only.
      delay_max_s: How long a request may wait for company, in seconds.
      levels: Rules of the priority levels 1, 2, ...; a single entry is a model without priorities.
      default_level: The level, from 1, of requests that name none or one that does not exist.
      shape_inputs: Inputs that must have equal shapes within a batch.
      optional_inputs: Inputs that every request of a batch must have, or none.

    Attributes:
      shape_splits: Batches that left early because the next request had other shapes.
    """

    def __init__(
        self,
        model_name: str,
        *,
        rows_max: int = 1,
        batching: bool = False,
        preferred_sizes: tuple[int, ...] = (),
        delay_max_s: float = 0.0,
        levels: tuple[QueueRules, ...] = (QueueRules(),),
        default_level: int = 1,
        shape_inputs: tuple[str, ...] = (),
        optional_inputs: tuple[str, ...] = (),
    ) -> None:
        assert rows_max >= 1
        assert 1 <= default_level <= len(levels)
        self._model_name = model_name
        self._rows_max = rows_max
        self._batching = batching
        self._preferred = frozenset(preferred_sizes or (rows_max,))
        self._preferred_max = max(self._preferred)
        self._delay_max_s = delay_max_s
        self._shape_inputs = shape_inputs
        self._optional_inputs = optional_inputs
        self._levels = {number: _Level(rules) for number, rules in enumerate(levels, 1)}
        self._default_level = self._levels[default_level]
        self._queues = [
            queue
            for level in self._levels.values()
            for queue in ((level.live, level.delayed) if level.rules.delays else (level.live,))
        ]
        self._deadlines: list[tuple[float, int, Infer, _Level]] = []
        self._sequence = 0
        self._count = 0
        self._rows = 0
        self._last_key: Hashable = None
        self._rows_due = 0
        self._ripe_at_s = -inf
        self.shape_splits = 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<BatchPolicy {self._model_name}: {self._count} requests, {self._rows} rows>"

    def add(self, infer: Infer, now_s: float) -> RequestError | None:
        """Queue one request, or return why its queue cannot take it."""
        request = infer.request
        rows = request.batch_size or 1
        assert rows <= self._rows_max, "request_rules lets no larger request pass"
        level = self._levels.get(request.priority, self._default_level)
        rules = level.rules
        if len(level.live) + len(level.delayed) >= rules.size_max:
            return RequestError(
                ErrorCode.UNAVAILABLE,
                f"expected at most {rules.size_max} waiting requests in the queue of model "
                f"'{self._model_name}', got one more",
                reason=FailureReason.REJECTED,
            )
        infer.queued_s = now_s
        timeout_us = rules.timeout_us
        if 0 < request.timeout_us < rules.override_below_us:
            timeout_us = request.timeout_us
        if timeout_us:
            self._sequence += 1
            entry = (now_s + timeout_us / 1e6, self._sequence, infer, level)
            heapq.heappush(self._deadlines, entry)
        key: Hashable = None
        if self._shape_inputs or self._optional_inputs:
            key = self._shape_key(infer)
            if key != self._last_key:
                self._last_key = key
                self._rows_due = 0
        level.live[infer] = key
        self._count += 1
        self._rows += rows
        return None

    def _shape_key(self, infer: Infer) -> Hashable:
        """Equal for requests that can be stacked; the batch dimension does not count."""
        inputs = infer.request.inputs
        shapes = [inputs[name].shape[1:] if name in inputs else None for name in self._shape_inputs]
        return (*shapes, *[name in inputs for name in self._optional_inputs])

    def take(self, now_s: float) -> list[Infer]:
        """Remove and return the batch that is ripe at `now_s`; empty if none is.

        Call `expire` first; `inf` makes everything ripe that is queued.
        """
        if not self._count:
            return []
        if self._batching:
            if self._rows < self._rows_due and now_s < self._ripe_at_s:
                return []
            batch = self._ripe_batch(now_s)
        else:
            batch = [next(iter(next(filter(None, self._queues))))]
        for infer in batch:
            self.remove(infer)
        return batch

    def _ripe_batch(self, now_s: float) -> list[Infer]:
        batch, best, rows, closed = self._walk()
        ripe_at_s = min([infer.queued_s for infer in batch]) + self._delay_max_s
        late = self._delay_max_s > 0 and now_s >= ripe_at_s
        if best and not late:
            return batch[:best]
        if closed or late or self._delay_max_s == 0 or rows >= self._preferred_max:
            return batch
        # Until one of these is reached, or other shapes or a removal set _rows_due to 0, another
        # walk would find the same.
        self._rows_due = min(size for size in self._preferred if size > rows)
        if len(self._queues) > 1:
            self._rows_due = 0
        self._ripe_at_s = ripe_at_s
        return []

    def _walk(self) -> tuple[list[Infer], int, int, bool]:
        """Collect what could leave together.

        Returns:
          The requests, how many of them make the best preferred size (0: none), their rows, and
          whether nothing can join them any more.
        """
        preferred, preferred_max, rows_max = self._preferred, self._preferred_max, self._rows_max
        batch: list[Infer] = []
        best = rows = 0
        first_key: Hashable = None
        for queue in self._queues:
            for infer, key in queue.items():
                total = rows + (infer.request.batch_size or 1)
                if not batch:
                    first_key = key
                elif total > rows_max:
                    return batch, best, rows, True
                elif key != first_key:
                    self.shape_splits += 1
                    return batch, best, rows, True
                elif total > preferred_max and not best:
                    best = len(batch)
                batch.append(infer)
                rows = total
                if rows in preferred:
                    best = len(batch)
        return batch, best, rows, False

    def ripe_at_s(self) -> float:
        """When a batch ripens by waiting, after `take` found none; `inf` with nothing queued."""
        return self._ripe_at_s if self._count else inf

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
        self._count -= 1
        self._rows -= infer.request.batch_size or 1
        self._rows_due = 0
        if len(self._deadlines) > 2 * self._count + _STALE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in entry[3].live]
            heapq.heapify(self._deadlines)
        return True

    def remove_cancelled(self) -> list[Infer]:
        """Remove and return what nobody waits for any more; looks at the whole queue."""
        cancelled = [infer for queue in self._queues for infer in queue if infer.request.cancelled]
        for infer in cancelled:
            self.remove(infer)
        return cancelled

    def remove_all(self) -> list[Infer]:
        """Remove and return everything, in order."""
        infers = [infer for queue in self._queues for infer in queue]
        for infer in infers:
            self.remove(infer)
        return infers


def batch_policy(config: ModelConfig, spec: ModelSpec) -> BatchPolicy:
    """Return the queue of a model version as its normalised configuration wants it.

    A model without `dynamic_batching` has no queue policy; there the timeout of a request itself
    counts, so that clients of every model can bound their wait.
    """
    rows_max = max(1, spec.max_batch_size)
    batching = config.dynamic_batching
    if batching is None:
        rules = QueueRules(override_below_us=inf)
        return BatchPolicy(spec.name, rows_max=rows_max, levels=(rules,))
    return BatchPolicy(
        spec.name,
        rows_max=rows_max,
        batching=spec.max_batch_size > 1,
        preferred_sizes=tuple(size for size in batching.preferred_batch_size if size <= rows_max),
        delay_max_s=batching.max_queue_delay_microseconds / 1e6,
        levels=_levels(batching),
        default_level=batching.default_priority_level or 1,
        shape_inputs=tuple(
            name
            for name, tensor in spec.inputs.items()
            if -1 in tensor.dims and not tensor.allow_ragged_batch
        ),
        optional_inputs=tuple(name for name, tensor in spec.inputs.items() if tensor.optional),
    )


def _levels(batching: ModelDynamicBatching) -> tuple[QueueRules, ...]:
    default = batching.default_queue_policy or ModelQueuePolicy()
    count = batching.priority_levels
    if count > PRIORITY_LEVELS_MAX:
        raise RequestError(
            ErrorCode.INVALID_ARG,
            f"expected at most {PRIORITY_LEVELS_MAX} priority_levels, got {count}",
        )
    return tuple(
        _queue_rules(batching.priority_queue_policy.get(number, default))
        for number in range(1, max(1, count) + 1)
    )


def _queue_rules(policy: ModelQueuePolicy) -> QueueRules:
    timeout_us = policy.default_timeout_microseconds
    return QueueRules(
        size_max=policy.max_queue_size or QUEUE_SIZE_MAX,
        timeout_us=timeout_us,
        override_below_us=timeout_us if policy.allow_timeout_override else 0,
        delays=policy.timeout_action == ModelQueuePolicyTimeoutAction.DELAY,
    )
