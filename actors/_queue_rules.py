"""What a priority level of a queue allows, and where that stands in a configuration.

Source: Triton `ModelDynamicBatching` and `ModelQueuePolicy` in model_config.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.pb.inference import (
    ModelDynamicBatching,
    ModelQueuePolicy,
    ModelQueuePolicyTimeoutAction,
)

QUEUE_SIZE_MAX = 65_536
"""Requests a queue takes when its configuration sets no limit, so that no queue is unbounded: at
the rate one process can serve, it is several seconds of work."""

PRIORITY_LEVELS_MAX = 1024
"""Levels a configuration may have: each costs a queue, and every decision looks at all of them."""


@final
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

    def timeout_s_of(self, request_timeout_us: int) -> float:
        """Return how long a request may wait, in seconds; 0 is no limit.

        Args:
          request_timeout_us: What the request itself asks for, in microseconds; 0 is nothing.
        """
        if 0 < request_timeout_us < self.override_below_us:
            return request_timeout_us / 1e6
        return self.timeout_us / 1e6


def queue_levels(batching: ModelDynamicBatching) -> tuple[QueueRules, ...]:
    """Return the rules of the levels 1, 2, ...; one entry if there are no priorities.

    Raises:
      RequestError: INVALID_ARG; there are too many levels.
    """
    default = batching.default_queue_policy or ModelQueuePolicy()
    count = batching.priority_levels
    if count > PRIORITY_LEVELS_MAX:
        raise RequestError(
            ErrorCode.INVALID_ARG,
            f"expected at most {PRIORITY_LEVELS_MAX} priority_levels, got {count}",
        )
    return tuple(
        queue_rules(batching.priority_queue_policy.get(number, default))
        for number in range(1, max(1, count) + 1)
    )


def queue_rules(policy: ModelQueuePolicy) -> QueueRules:
    """Return the rules of one queue policy."""
    timeout_us = policy.default_timeout_microseconds
    return QueueRules(
        size_max=policy.max_queue_size or QUEUE_SIZE_MAX,
        timeout_us=timeout_us,
        override_below_us=timeout_us if policy.allow_timeout_override else 0,
        delays=policy.timeout_action == ModelQueuePolicyTimeoutAction.DELAY,
    )
