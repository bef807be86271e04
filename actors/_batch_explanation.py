"""What a batcher did lately and why, for people who ask.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, final

from ..backends.llm.steps import EngineLimits
from ..protocol.llm_statistics import EngineGauges
from ._batch_candidate import BatchReason
from ._batch_policy import BatchPolicy

DECISIONS_KEPT = 64
"""Decisions that are remembered: enough to see a pattern, and some ten kilobytes a model."""


class _Decision(NamedTuple):
    now_s: float
    instance: int
    requests: int
    rows: int
    reason: BatchReason
    oldest_s: float
    queue_left: int
    left_out: BatchReason | None
    left_out_keys: tuple[Hashable, Hashable] | None


@final
class BatchLog:
    """The last decisions of one batcher. Words are made when somebody reads them, not before."""

    __slots__ = ("_decisions",)

    def __init__(self) -> None:
        self._decisions: deque[tuple[Any, ...]] = deque(maxlen=DECISIONS_KEPT)

    def __len__(self) -> int:
        return len(self._decisions)

    def record(self, policy: BatchPolicy, requests: int, instance: int, now_s: float) -> None:
        """Note the batch that was just taken from the policy.

        Args:
          policy: Where it was taken from.
          requests: How many requests it has.
          instance: Index of the instance that gets it.
          now_s: The time.
        """
        self._decisions.append(  # of a plain tuple, which costs half as much
            (
                now_s,
                instance,
                requests,
                policy.rows,
                policy.reason,
                policy.oldest_s,
                len(policy),
                policy.left_out,
                policy.left_out_keys,
            )
        )

    def describe(self, policy: BatchPolicy, now_s: float) -> list[dict[str, Any]]:
        """Return the decisions as JSON values, the last one first."""
        return [
            _describe(_Decision._make(decision), policy, now_s)
            for decision in reversed(self._decisions)
        ]


def continuous(
    rules: Mapping[str, Any], limits: Sequence[EngineLimits], gauges: EngineGauges
) -> dict[str, Any]:
    """Return how a model that generates text batches, as JSON values: continuously.

    Args:
      rules: Of its queue; see `BatchPolicy.describe`.
      limits: What each of its instances can do; at least one, and all the same.
      gauges: How they stand together.
    """
    return {
        "scheduler": "continuous",
        "rules": {
            "rows": sum(each.rows for each in limits),
            "tokens_per_row": limits[0].tokens_per_row,
            "step_tokens": limits[0].step_tokens,
            "prefix_caching": limits[0].prefix_caching,
            "preserve_ordering": rules["preserve_ordering"],
            "levels": rules["levels"],
        },
        "running": gauges.running,
        "waiting": gauges.waiting,
        "paused": gauges.paused,
        "kv_used_bytes": gauges.kv_used_bytes,
        "kv_cached_bytes": gauges.kv_cached_bytes,
        "kv_budget_bytes": gauges.kv_budget_bytes,
    }


def _describe(decision: _Decision, policy: BatchPolicy, now_s: float) -> dict[str, Any]:
    left_out = decision.left_out
    described = {
        "ago_us": _microseconds(now_s - decision.now_s),
        "instance": decision.instance,
        "requests": decision.requests,
        "rows": decision.rows,
        "reason": decision.reason.value,
        "oldest_wait_us": _microseconds(decision.now_s - decision.oldest_s),
        "queue_left": decision.queue_left,
        "left_out": None if left_out is None else left_out.value,
    }
    if decision.left_out_keys is not None:
        described["detail"] = policy.shape_difference(decision.left_out_keys)
    return described


def _microseconds(duration_s: float) -> int:
    return round(duration_s * 1e6)
