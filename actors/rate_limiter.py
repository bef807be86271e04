"""The rate limiter: shared by the schedulers of all models, on the event loop. No task of its own.

A scheduler asks for the permit of an idle instance when there is something to execute, and
releases it, or asks again, when the instance is idle again or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from ..protocol.pb.inference import ModelInstanceGroup
from ._rate_limit_policy import Capacities, RateLimitPolicy, needs_of


@final
class RateLimiter:
    """Decides which instances execute, by the rules of `RateLimitPolicy`.

    Args:
      capacities: As the command line has them; see `parse_rate_limit_resource`.
    """

    def __init__(self, capacities: Capacities) -> None:
        self._policy: RateLimitPolicy[Permit] = RateLimitPolicy(capacities)

    def __repr__(self) -> str:
        return f"<RateLimiter {self._policy!r}>"

    def register(
        self, name: str, group: ModelInstanceGroup, device_id: int, on_grant: Callable[[], None]
    ) -> Permit:
        """Return the permit of a new instance, to be closed when the instance is gone for good.

        Args:
          name: The instance's name, for errors.
          group: Its group, from a valid configuration.
          device_id: Its GPU; ignored where the group is not on GPUs.
          on_grant: Called when an ask that had to wait is granted; must neither raise nor wait.

        Raises:
          RequestError: INVALID_ARG; less of a resource is configured than the instance needs.
        """
        permit = Permit(self._policy, name, on_grant)
        priority = 0 if group.rate_limiter is None else group.rate_limiter.priority
        tell(self._policy.register(permit, name, needs_of(group, device_id), priority))
        return permit


@final
class Permit:
    """The right of one instance to execute one batch at a time; made by `RateLimiter`."""

    __slots__ = ("_closed", "_name", "_on_grant", "_policy")

    def __init__(
        self, policy: RateLimitPolicy[Permit], name: str, on_grant: Callable[[], None]
    ) -> None:
        self._policy = policy
        self._name = name
        self._on_grant = on_grant
        self._closed = False

    def __repr__(self) -> str:
        return f"<Permit {self._name}{' granted' if self.granted else ''}>"

    @property
    def granted(self) -> bool:
        """Whether the instance may execute now."""
        return not self._closed and self._policy.is_granted(self)

    @property
    def turn(self) -> int:
        """Executions times priority; of several idle instances the smallest should ask first."""
        return self._policy.turn(self)

    def ask(self) -> bool:
        """Ask for one execution; return whether it is granted at once, else `on_grant` tells.

        The permit must not wait already. If it is granted still, that execution ends with this:
        so a scheduler with more to execute competes for what it gives back, as it does not after
        a `release`.
        """
        granted = self._policy.ask(self)
        tell(permit for permit in granted if permit is not self)
        return self in granted

    def withdraw(self) -> None:
        """Take the ask back, also one that was granted and is not used; idempotent."""
        if not self._closed:
            tell(self._policy.withdraw(self))

    def release(self) -> None:
        """The execution has ended; idempotent."""
        tell(self._policy.release(self))

    def close(self) -> None:
        """Give everything back for good; idempotent."""
        if not self._closed:
            self._closed = True
            tell(self._policy.unregister(self))

    def tell(self) -> None:
        """Tell the scheduler that it is granted, unless it gave that up meanwhile."""
        if self.granted:
            self._on_grant()


def tell(permits: Iterable[Permit]) -> None:
    """Tell permits that they are granted."""
    for permit in permits:
        permit.tell()
