"""Which instance may execute next, when instances share resources?  Pure: no trio, no clock.

An instance asks before each execution and gets all the resources it needs at once, or waits.
Among the waiting whose resources are free, the one with the smallest number of executions times
its priority is next, and of several such the one that has waited longest.

A waiter that was passed over too often is *due*: what it needs is kept for it. From then on an
instance may only be granted what leaves, of each resource that a due one needs, as much of the
capacity as all the due before it need. So what a due waiter needs becomes free as executions
end, and stays free. Waiters that need none of these resources do not notice.

Source: Triton's rate limiter, `ModelRateLimiter` in model_config.proto.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, final

from ..protocol.errors import invalid_argument
from ..protocol.pb.inference import ModelInstanceGroup, ModelInstanceGroupKind
from ..protocol.wording import quoted

K = TypeVar("K", bound=Hashable)

DUE_AFTER: Final = 32
"""How often an ask is passed over, times the priority of its instance, before it is due. It must
be more than the instances that usually compete, since each of them goes first once in a round."""

GLOBAL: Final = -1
"""The device of a pool that all devices share."""

CPU: Final = -2
"""The device of the pools of instances that are on no GPU; a capacity for device 0 is theirs too,
but the pools are apart."""

COUNT_MAX: Final = 2**32 - 1
"""Largest count of a resource, as a configuration can hold it."""


class Pool(NamedTuple):
    """Where a resource comes from.

    Attributes:
      name: The resource's name.
      device: A GPU's id, `CPU` or `GLOBAL`.
    """

    name: str
    device: int


Needs: TypeAlias = Mapping[Pool, int]
"""How much of each pool an execution takes; each at least 1."""

Capacities: TypeAlias = Mapping[tuple[str, int | None], int]
"""(resource name, device id or None for all devices) -> how much there is, as it was configured."""


def needs_of(group: ModelInstanceGroup, device_id: int) -> Needs:
    """Return what an execution of an instance takes.

    Args:
      group: The instance's group, from a valid configuration.
      device_id: The instance's GPU; ignored where the group is not on GPUs.
    """
    device = device_id if group.kind == ModelInstanceGroupKind.GPU else CPU
    needs: Counter[Pool] = Counter()
    if group.rate_limiter is not None:
        for resource in group.rate_limiter.resources:
            needs[Pool(resource.name, GLOBAL if resource.global_ else device)] += resource.count
    return needs


def parse_rate_limit_resource(text: str) -> tuple[tuple[str, int | None], int]:
    """Return one item of `Capacities` from a command line's `<name>:<count>[:<device>]`.

    Raises:
      ValueError: it has another form; says which was expected.
    """
    name, *numbers = text.split(":")
    if name and len(numbers) in {1, 2} and all(map(_is_count, numbers)):
        count, *device = map(int, numbers)
        return (name, device[0] if device else None), count
    raise ValueError(f"expected <name>:<count>[:<device>] with whole numbers, got {quoted(text)}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= COUNT_MAX


class _Member:
    """One registered instance.

    Attributes:
      needs: What an execution takes.
      priority: Weight of an execution; at least 1.
      executions: How many were granted.
      passed: How often it was passed over since it asked.
    """

    __slots__ = ("executions", "needs", "passed", "priority")

    def __init__(self, needs: Needs, priority: int) -> None:
        self.needs = needs
        self.priority = priority
        self.executions = 0
        self.passed = 0

    @property
    def turn(self) -> int:
        return self.executions * self.priority


@final
class RateLimitPolicy(Generic[K]):
    """Hands the resources of a server to the instances of all its models.

    Every instance is idle, waiting or granted. What frees resources returns the instances that
    are granted because of it, in order.

    Args:
      capacities: What was configured; of what is not, each pool has as much as the instance
        with the largest need takes.
    """

    def __init__(self, capacities: Capacities) -> None:
        self._configured = dict(capacities)
        self._members: dict[K, _Member] = {}
        self._capacity: dict[Pool, int] = {}
        self._used: Counter[Pool] = Counter()
        self._waiting: dict[K, _Member] = {}  # in the order they asked
        self._due: dict[K, _Member] = {}  # of those, in the order they became due
        self._granted: dict[K, _Member] = {}

    def __repr__(self) -> str:
        return (
            f"<RateLimitPolicy of {len(self._members)}: {len(self._waiting)} waiting, "
            f"{len(self._granted)} granted>"
        )

    def register(self, key: K, name: str, needs: Needs, priority: int) -> list[K]:
        """Take an instance in, idle; return who is granted because there is more of a pool now.

        Args:
          key: Tells it from all others.
          name: Its name, for errors.
          needs: What an execution takes.
          priority: As configured; 0 counts as 1.

        Raises:
          RequestError: INVALID_ARG; the configured capacity of a pool is below the need. Names
            the resource, the capacity, and the least that is required.
        """
        assert key not in self._members
        for pool, count in needs.items():
            configured = self._configured_of(pool)
            if configured is not None and configured < count:
                raise invalid_argument(
                    f"instance '{name}' needs resource '{pool.name}'{_place_text(pool)}: expected "
                    f"a configured count of at least {count}, got {configured}"
                )
        self._members[key] = _Member(needs, max(1, priority))
        self._set_capacities(needs)
        return self._grant()

    def unregister(self, key: K) -> list[K]:
        """Let an instance go, whatever its state; return who is granted because of it."""
        member = self._members[key]
        self._leave(key, member)
        del self._members[key]
        self._set_capacities(member.needs)
        return self._grant()

    def ask(self, key: K) -> list[K]:
        """Ask for an execution of an instance that does not wait; return who is granted.

        An execution it has ends with this; unlike after a `release`, it competes for what it
        gives back.
        """
        member = self._members[key]
        assert key not in self._waiting
        self._leave(key, member)
        member.passed = 0
        self._waiting[key] = member
        return self._grant()

    def withdraw(self, key: K) -> list[K]:
        """Take back an ask that waits, or that was granted and is not used.

        It is not counted as an execution. Without an ask nothing happens.
        """
        member = self._members[key]
        if key in self._granted:
            member.executions -= 1
        self._leave(key, member)
        return self._grant()

    def release(self, key: K) -> list[K]:
        """End the execution of an instance; nothing happens if it has none granted."""
        if key not in self._granted:
            return []
        self._leave(key, self._members[key])
        return self._grant()

    def is_granted(self, key: K) -> bool:
        """Return whether an instance may execute."""
        return key in self._granted

    def turn(self, key: K) -> int:
        """Return executions times priority; whoever has the smallest should ask first."""
        return self._members[key].turn

    def _configured_of(self, pool: Pool) -> int | None:
        everywhere = self._configured.get((pool.name, None))  # which GLOBAL has only
        device = 0 if pool.device == CPU else pool.device
        return self._configured.get((pool.name, device), everywhere)

    def _set_capacities(self, needs: Needs) -> None:
        """Set the capacities of these pools anew, since an instance came or went."""
        for pool in needs:
            largest = max((m.needs.get(pool, 0) for m in self._members.values()), default=0)
            configured = self._configured_of(pool)
            self._capacity[pool] = largest if configured is None else configured
            if not largest:  # nobody needs it any more
                del self._capacity[pool], self._used[pool]

    def _leave(self, key: K, member: _Member) -> None:
        """Make an instance idle."""
        if self._granted.pop(key, None) is not None:
            self._used.subtract(member.needs)
        self._waiting.pop(key, None)
        self._due.pop(key, None)

    def _grant(self) -> list[K]:
        """Grant what can be granted, one after the other."""
        granted: list[K] = []
        while (key := self._next()) is not None:
            granted.append(key)
            member = self._waiting[key]
            self._leave(key, member)
            self._granted[key] = member
            self._used.update(member.needs)
            member.executions += 1
            self._pass_over(member)
        return granted

    def _next(self) -> K | None:
        kept: Counter[Pool] = Counter()
        for key, member in self._due.items():
            if self._fits(member, kept):
                return key
            kept.update(member.needs)
        fitting = (key for key, member in self._waiting.items() if self._fits(member, kept))
        return min(fitting, key=self.turn, default=None)  # the first of equals

    def _fits(self, member: _Member, kept: Mapping[Pool, int]) -> bool:
        return all(
            self._used[pool] + kept.get(pool, 0) + count <= self._capacity[pool]
            for pool, count in member.needs.items()
        )

    def _pass_over(self, granted: _Member) -> None:
        """Count a grant for those that wait for one of its resources."""
        for key, member in self._waiting.items():
            if not member.needs.keys().isdisjoint(granted.needs.keys()):
                member.passed += 1
                if member.passed >= DUE_AFTER * member.priority:
                    self._due.setdefault(key, member)


def _place_text(pool: Pool) -> str:
    if pool.device == GLOBAL:
        return ""
    return " of the CPU" if pool.device == CPU else f" of device {pool.device}"
