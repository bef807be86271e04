"""Equal requests on their way to one answer: who waits, who may, and what is kept of it."""

from __future__ import annotations

from typing import final

import trio

from ..memory.response_cache import CacheKey, Entry
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferResponse
from .messages import Infer


@final
class Flight:
    """Equal requests on their way to one answer.

    Attributes:
      key: Their key.
      leader: Whose place in the queue it is; None once answered.
      followers: Who waits with it, in order of arrival; each counts as pending.
      lookup: The look-up in a cache that blocks, while it goes on; then the leader counts as
        pending as well.
      inner: What is executed, once the look-up was in vain.
      entry: Its answer, while it is inserted in a cache that blocks.
    """

    __slots__ = ("entry", "followers", "inner", "key", "leader", "lookup")

    def __init__(self, key: CacheKey, leader: Infer) -> None:
        self.key = key
        self.leader: Infer | None = leader
        self.followers: dict[Infer, None] = {}
        self.lookup: trio.CancelScope | None = None
        self.inner: Infer | None = None
        self.entry: Entry | None = None

    def take_all(self) -> list[Infer]:
        """Return everybody, the leader first, and leave nobody."""
        everybody = [*self.followers] if self.leader is None else [self.leader, *self.followers]
        self.leader = None
        self.followers = {}
        return everybody


def has_queue_timeouts(config: ModelConfig) -> bool:
    """Whether requests that name no timeout may time out in the queue of a model.

    Only where a queue policy has a default timeout. Of requests that name one, see
    `counts_own_timeouts`.
    """
    batching = config.dynamic_batching
    if batching is None:
        return False
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    return any(
        policy is not None and policy.default_timeout_microseconds > 0 for policy in policies
    )


def counts_own_timeouts(config: ModelConfig) -> bool:
    """Whether a timeout that a request names counts somewhere in the queues of a model.

    Dynamic batching ignores it unless a policy with a default timeout lets requests override that;
    everything else heeds it, or hands it on to models that do.
    """
    batching = config.dynamic_batching
    if batching is None:
        return True
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    return any(
        policy is not None
        and policy.allow_timeout_override
        and policy.default_timeout_microseconds > 0
        for policy in policies
    )


def entry_of(response: InferResponse) -> Entry | None:
    """Return what can be kept of a response: nothing if an output has no raw form."""
    try:
        return Entry.of(response)
    except (LookupError, TypeError, ValueError):  # objects that are no bytes and have no text
        return None
