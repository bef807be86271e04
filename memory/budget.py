"""The server's byte budget: how much unanswered work it may hold in memory.

One budget covers request bodies, queued tensors and unsent responses, so that no mix of clients
can make the server grow without bound. Pure and single-threaded: it lives on the event loop.
"""

from __future__ import annotations

BUDGET_USED_UP = "the server's byte budget is used up; try again"
"""What clients are told when there is no room."""


class ByteBudget:
    """Counts bytes against a limit.

    Args:
      limit_bytes: Most bytes that may be taken at once; >= 0.

    Attributes:
      limit_bytes: As given.
      used_bytes: Bytes taken and not yet given back.
      peak_bytes: The highest `used_bytes` there ever was.
    """

    __slots__ = ("limit_bytes", "peak_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes >= 0, "a budget cannot be negative"
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.peak_bytes = 0

    def __repr__(self) -> str:
        return f"<ByteBudget {self.used_bytes} of {self.limit_bytes}, peak {self.peak_bytes}>"

    def try_take(self, byte_count: int) -> bool:
        """Take `byte_count` bytes if they fit; False leaves the budget as it was."""
        assert byte_count >= 0, "only give_back() gives back"
        used_bytes = self.used_bytes + byte_count
        if used_bytes > self.limit_bytes:
            return False
        self.used_bytes = used_bytes
        self.peak_bytes = max(self.peak_bytes, used_bytes)
        return True

    def give_back(self, byte_count: int) -> None:
        """Return bytes taken before; never more than `used_bytes`."""
        assert 0 <= byte_count <= self.used_bytes, "gave back more than was taken"
        self.used_bytes -= byte_count


class Lease:
    """What one holder, such as a connection, has taken from a budget.

    Args:
      budget: Where the bytes come from.

    Attributes:
      held_bytes: Bytes taken and not given back.
    """

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def settle(self, needed_bytes: int) -> bool:
        """Hold exactly `needed_bytes` from now on; False leaves the lease as it was."""
        more = needed_bytes - self.held_bytes
        if more > 0 and not self._budget.try_take(more):
            return False
        if more < 0:
            self._budget.give_back(-more)
        self.held_bytes = needed_bytes
        return True
