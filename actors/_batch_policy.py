"""Which requests form a batch, and when does it leave?  Pure: no trio, no clock, no I/O.

Two requests may share a batch when their keys (the shapes of their inputs) are equal. Requests
of other keys do not come between those that could leave together: each key has its own batch
forming, and of those that are ripe the one goes whose first request stands first. So nothing
starves, and requests of one key leave in order. Where order is promised across keys, another key
sends the batch instead, as in Triton.

Source: Triton `ModelDynamicBatching` in model_config.proto.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Any, final

from ..protocol.errors import RequestError
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ._batch_candidate import BatchReason, BatchStrategy, Candidate, StrategyGuard
from ._batch_keys import BatchKeys
from ._priority_queue import PriorityQueue
from ._queue_rules import QueueRules, queue_levels
from .messages import Infer

LOOK_AHEAD_MAX = 128
"""Requests of other shapes that a decision passes on its way through the queue, so that its time
is bounded however long the queue is; beyond them the first batch no longer waits for company."""


@final
class BatchPolicy:
    """The queue of one model version, and how batches are taken from it.

    Args:
      model_name: Named in errors.
      rows_max: Most rows in one batch; >= 1.
      batching: Whether requests may share a batch; False makes each leave alone.
      preferred_sizes: Rows at which a batch leaves at once; none means `rows_max` only.
      delay_max_s: How long a request may wait for company, in seconds.
      ordered: Whether requests leave in the order of the queue, whatever their shapes.
      levels: Rules of the priority levels 1, 2, ...; a single entry is a model without priorities.
      default_level: The level, from 1, of requests that name none or one that does not exist.
      shape_inputs: Inputs that must have equal shapes within a batch.
      content_inputs: Inputs that must be equal within a batch: shape tensors.
      optional_inputs: Inputs that every request of a batch must have, or none.
      strategy: The model's own say in what joins a batch. Each decision begins anew with it.

    Attributes:
      model_name: As given.
      reason: Why the batch left that `take` returned last.
      rows: Rows of that batch.
      oldest_s: When the request of that batch was queued that waited longest, in clock seconds.
      left_out: Why the next request did not leave with it; None if there was none.
      left_out_keys: The keys of the batch and of the request that was left out for its shapes;
        see `shape_difference`.
      shape_splits: Batches that left without a queued request because of its shapes.
    """

    def __init__(
        self,
        model_name: str,
        *,
        rows_max: int = 1,
        batching: bool = False,
        preferred_sizes: tuple[int, ...] = (),
        delay_max_s: float = 0.0,
        ordered: bool = False,
        levels: tuple[QueueRules, ...] = (QueueRules(),),
        default_level: int = 1,
        shape_inputs: tuple[str, ...] = (),
        content_inputs: tuple[str, ...] = (),
        optional_inputs: tuple[str, ...] = (),
        strategy: BatchStrategy | None = None,
    ) -> None:
        assert rows_max >= 1
        self.model_name = model_name
        self._rows_max = rows_max
        self._batching = batching
        self._preferred = frozenset(preferred_sizes or (rows_max,))
        self._preferred_max = max(self._preferred)
        self._delay_max_s = delay_max_s
        self._ordered = ordered
        self._keys = BatchKeys(shape_inputs, content_inputs, optional_inputs)
        self._keyed = batching and self._keys.matter
        self._strategy = None if strategy is None else StrategyGuard(model_name, strategy)
        self._queue = PriorityQueue(model_name, levels, default_level)
        self._single = len(self._queue.queues) == 1
        self._rows_due = 0
        self._key_due: Hashable = None
        self._ripe_at_s = -inf
        self.reason = BatchReason.ALONE
        self.rows = 0
        self.oldest_s = 0.0
        self.left_out: BatchReason | None = None
        self.left_out_keys: tuple[Hashable, Hashable] | None = None
        self.shape_splits = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        queue = self._queue
        return f"<BatchPolicy {self.model_name}: {len(queue)} requests, {queue.rows} rows>"

    # What waits.

    def add(self, infer: Infer, now_s: float) -> RequestError | None:
        """Queue one request, or return why its queue cannot take it."""
        rows = infer.request.batch_size or 1
        assert rows <= self._rows_max, "request_rules lets no larger request pass"
        key = self._keys.key(infer) if self._keyed else None
        if key != self._key_due:
            self._rows_due = 0
        return self._queue.add(infer, key, now_s)

    def requeue(self, infers: list[Infer]) -> None:
        """Put requests that an instance did not survive in front of their levels again.

        Each leaves alone, so that the one it died of harms no other.
        """
        self._rows_due = 0
        self._queue.requeue(infers)

    def timeout_at_s(self) -> float:
        """When the next request times out, in clock seconds; `inf` if none can."""
        return self._queue.timeout_at_s()

    def expire(self, now_s: float) -> list[Infer]:
        """Remove and return the requests whose time is over and that are to be refused."""
        expired = self._queue.expire(now_s)
        if expired:
            self._rows_due = 0
        return expired

    def remove(self, infer: Infer) -> bool:
        """Take one request out, in O(1); False if it was not queued."""
        self._rows_due = 0
        return self._queue.remove(infer)

    def remove_cancelled(self) -> list[Infer]:
        """Remove and return what nobody waits for any more; looks at the whole queue."""
        self._rows_due = 0
        return self._queue.remove_cancelled()

    def remove_all(self) -> list[Infer]:
        """Remove and return everything, in order."""
        self._rows_due = 0
        return self._queue.remove_all()

    def shed(self, share: float) -> list[tuple[Infer, RequestError]]:
        """Admit only part of the levels from now on; see `PriorityQueue.shed`."""
        self._rows_due = 0
        return self._queue.shed(share)

    def oldest_due_s(self) -> float:
        """When the request that waits longest had no wait for company left; `inf` with none."""
        company_s = self._delay_max_s if self._batching else 0.0
        return self._queue.oldest_queued_s() + company_s

    # What leaves.

    def take(self, now_s: float) -> list[Infer]:
        """Remove and return the batch that is ripe at `now_s`; empty if none is.

        Call `expire` first; `inf` makes everything ripe that is queued.
        """
        queue = self._queue
        if not queue.count:
            return []
        if not self._batching:
            infers = [queue.first()]
            queue.remove(infers[0])
            self.reason = BatchReason.ALONE
            self.rows = infers[0].request.batch_size or 1
            self.oldest_s = infers[0].queued_s
            self.left_out = BatchReason.ALONE if queue.count else None
            return infers
        batch = self._ripe(now_s)
        if batch is None:
            return []
        infers = batch.infers
        self.rows = batch.rows
        self.oldest_s = batch.oldest_s
        if 0 < batch.best < len(infers):
            infers = infers[: batch.best]
            self.rows = batch.best_rows
            self.oldest_s = min([infer.queued_s for infer in infers])
        for infer in infers:
            queue.remove(infer)
        self._rows_due = 0
        self.left_out = self.left_out_keys = None
        if queue.count:
            self._note_left_out(batch)
        return infers

    def is_ripe(self, now_s: float) -> bool:
        """Whether `take` would return a batch; like it, call `expire` first."""
        if not self._queue.count:
            return False
        return not self._batching or self._ripe(now_s) is not None

    def ripe_at_s(self) -> float:
        """When a batch ripens by waiting, after `take` found none; `inf` with nothing queued."""
        return self._ripe_at_s if self._queue.count else inf

    def _ripe(self, now_s: float) -> Candidate | None:
        """Return the batch that leaves now, `best` being 0 if all of it does, and set `reason`."""
        if self._queue.rows < self._rows_due and now_s < self._ripe_at_s:
            return None
        candidates = self._walk(now_s)
        lead = candidates[0]
        for candidate in candidates:
            reason = self._reason(candidate, now_s)
            if reason is None:
                continue
            if candidate.place > lead.place:  # no lower level goes first
                self.reason = BatchReason.SHAPE
                return lead
            self.reason = reason
            return candidate
        # Until one of these is reached, or something that resets _rows_due happens, such as an
        # arrival of another key, another walk would find the same.
        self._key_due = lead.key
        self._rows_due = min(size for size in self._preferred if size > lead.rows)
        if not self._single or self._strategy is not None:
            self._rows_due = 0
        self._ripe_at_s = min([candidate.oldest_s for candidate in candidates]) + self._delay_max_s
        return None

    def _reason(self, candidate: Candidate, now_s: float) -> BatchReason | None:
        """Return why a candidate leaves; None if it waits. A size that is too late is dropped."""
        late = self._late(candidate, now_s)
        if candidate.best and not late:
            full = candidate.best_rows == self._rows_max
            return BatchReason.FULL if full else BatchReason.PREFERRED
        candidate.best = 0
        if candidate.closed is not None:
            return candidate.closed
        if candidate.rows >= self._preferred_max:
            return BatchReason.PREFERRED
        if now_s == inf:
            return BatchReason.DRAINED
        if late:
            return BatchReason.DELAY
        return None if self._delay_max_s else BatchReason.NO_DELAY

    def _walk(self, now_s: float) -> list[Candidate]:
        """Collect what could leave together, in order of what stands first.

        It ends where the first candidate is closed, and after `LOOK_AHEAD_MAX` others.
        """
        candidates: dict[Hashable, Candidate] = {}  # the lead is the first
        lead: Candidate | None = None
        passed = 0
        for place, infer, key in self._queue.items():
            if lead is None:
                lead = candidates[key] = self._begin(infer, key, place)
            elif key == lead.key:
                self._offer(lead, infer, now_s)
            elif self._ordered or passed == LOOK_AHEAD_MAX:
                lead.closed = BatchReason.SHAPE
            else:
                passed += 1
                other = candidates.get(key)
                if other is None:
                    candidates[key] = self._begin(infer, key, place)
                elif other.closed is None:
                    self._offer(other, infer, now_s)
            if lead.closed is not None:
                break
        if self._strategy is not None:
            self._strategy.end()
        return list(candidates.values())

    def _begin(self, infer: Infer, key: Hashable, place: int) -> Candidate:
        rows = infer.request.batch_size or 1
        candidate = Candidate(infer, rows, key, place)
        if rows in self._preferred:
            candidate.best = 1
            candidate.best_rows = rows
        if rows == self._rows_max:
            candidate.closed = BatchReason.FULL
        elif key is infer:
            candidate.closed = BatchReason.ALONE
        if self._strategy is not None:
            self._strategy.begin(candidate, infer.request)
        return candidate

    def _offer(self, candidate: Candidate, infer: Infer, now_s: float) -> None:
        """Let a request of the same key join a candidate, or close it."""
        infers = candidate.infers
        total = candidate.rows + (infer.request.batch_size or 1)
        if total > self._rows_max:
            candidate.closed = BatchReason.FULL
            return
        if self._strategy is not None and not self._strategy.include(candidate, infer.request):
            candidate.closed = BatchReason.STRATEGY
            return
        if total > self._preferred_max and not candidate.best:
            candidate.best = len(infers)
            candidate.best_rows = candidate.rows
        infers.append(infer)
        candidate.rows = total
        candidate.oldest_s = min(candidate.oldest_s, infer.queued_s)
        if total in self._preferred:
            candidate.best = len(infers)
            candidate.best_rows = total
        if total == self._rows_max:
            candidate.closed = BatchReason.FULL
        elif total >= self._preferred_max and self._single and not self._late(candidate, now_s):
            candidate.closed = BatchReason.PREFERRED  # `best` is set; more rows change nothing

    def _late(self, candidate: Candidate, now_s: float) -> bool:
        """Whether a candidate has waited for company for long enough; inf ends every wait."""
        return self._delay_max_s > 0 and now_s >= candidate.oldest_s + self._delay_max_s

    def _note_left_out(self, batch: Candidate) -> None:
        """Note why what is queued now did not leave with a batch that was taken."""
        if 0 < batch.best < len(batch.infers):
            self.left_out = BatchReason.PREFERRED
        else:
            self.left_out = batch.closed or BatchReason.SHAPE
        if self.left_out is BatchReason.SHAPE:
            _, infer, key = next(self._queue.items())
            if key is infer:
                self.left_out = BatchReason.ALONE
            else:
                self.shape_splits += 1
                self.left_out_keys = (batch.key, key)

    # What people are told.

    def describe(self) -> dict[str, Any]:
        """Return the rules in force and what is queued, as JSON values."""
        return {
            "batching": self._batching,
            "max_batch_size": self._rows_max,
            "preferred_batch_size": sorted(self._preferred),
            "max_queue_delay_us": round(self._delay_max_s * 1e6),
            "preserve_ordering": self._ordered,
            **self._keys.describe(),
            "strategy": None if self._strategy is None else repr(self._strategy),
            "look_ahead": LOOK_AHEAD_MAX,
            "levels": self._queue.describe(),
        }

    def shape_difference(self, keys: tuple[Hashable, Hashable]) -> str:
        """Return in words what `left_out_keys` say."""
        return self._keys.difference(*keys)


def batch_policy(
    config: ModelConfig,
    spec: ModelSpec,
    *,
    stacks_inputs: bool = True,
    strategy: BatchStrategy | None = None,
) -> BatchPolicy:
    """Return the queue of a model version as its normalised configuration wants it.

    A model without `dynamic_batching` has no queue policy; there the timeout of a request itself
    counts, so that clients of every model can bound their wait.

    Args:
      config: The final configuration.
      spec: Its inputs.
      stacks_inputs: Whether the backend joins the inputs of a batch; see `Backend`.
      strategy: The model's own say in what joins a batch.
    """
    rows_max = max(1, spec.max_batch_size)
    batching = config.dynamic_batching
    if batching is None:
        rules = QueueRules(override_below_us=inf)
        return BatchPolicy(spec.name, rows_max=rows_max, levels=(rules,))
    stacked = spec.inputs if stacks_inputs else {}
    return BatchPolicy(
        spec.name,
        rows_max=rows_max,
        batching=spec.max_batch_size > 1,
        preferred_sizes=tuple(size for size in batching.preferred_batch_size if size <= rows_max),
        delay_max_s=batching.max_queue_delay_microseconds / 1e6,
        ordered=batching.preserve_ordering,
        levels=queue_levels(batching),
        default_level=batching.default_priority_level or 1,
        shape_inputs=tuple(
            name
            for name, tensor in stacked.items()
            if -1 in tensor.dims and not tensor.allow_ragged_batch
        ),
        content_inputs=tuple(name for name, tensor in stacked.items() if tensor.is_shape_tensor),
        optional_inputs=tuple(name for name, tensor in stacked.items() if tensor.optional),
        strategy=strategy,
    )
