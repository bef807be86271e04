"""Which of the loads and unloads that were asked for may run now?  Pure: no trio, no clock.

Operations on models that have to do with each other run one after the other, in the order in which
they were asked for; all others side by side.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final


@final
class Ticket:
    """The place of one operation in the queue.

    Attributes:
      names: The models it has to do with; None as long as that is not known, which may be any.
      running: Whether it has its turn.
    """

    __slots__ = ("names", "running")

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None
        self.running = False

    def __repr__(self) -> str:
        names = "?" if self.names is None else ",".join(sorted(self.names))
        return f"<Ticket for {names}{' running' if self.running else ''}>"


@final
class OperationTurns:
    """The queue of operations."""

    def __init__(self) -> None:
        self._tickets: dict[Ticket, None] = {}  # in the order asked

    def __len__(self) -> int:
        """Return how many operations run or wait."""
        return len(self._tickets)

    def __repr__(self) -> str:
        return f"<OperationTurns {list(self._tickets)}>"

    def enter(self) -> Ticket:
        """Return a place at the end of the queue."""
        ticket = Ticket()
        self._tickets[ticket] = None
        return ticket

    def claim(self, ticket: Ticket, names: Collection[str]) -> bool:
        """Say which models an operation has to do with; more than before ends its turn.

        Returns:
          Whether it has its turn, all of these models included.
        """
        claimed = frozenset(names) | (ticket.names or frozenset())
        ticket.running = ticket.running and claimed == ticket.names
        ticket.names = claimed
        return ticket.running

    def advance(self) -> list[Ticket]:
        """Give their turns to all operations that nothing speaks against; return those."""
        taken = set().union(*(ticket.names or () for ticket in self._tickets if ticket.running))
        begun: list[Ticket] = []
        for ticket in self._tickets:
            if ticket.running:
                continue
            if ticket.names is None:
                break
            if taken.isdisjoint(ticket.names):
                ticket.running = True
                begun.append(ticket)
            taken |= ticket.names
        return begun

    def leave(self, ticket: Ticket) -> None:
        """Take an operation that has ended out of the queue."""
        del self._tickets[ticket]
