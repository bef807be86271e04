"""Sequences, the slots that hold them, and which slot is free.  Pure: no trio, no clock, no I/O."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from math import inf
from typing import final

from ..backends.base import SequenceEndReason
from ..protocol.tensors import Tensor
from .messages import Infer


@final
class Sequence:
    """One sequence: from its START to its end.

    It waits for a slot in the backlog, or follows an earlier sequence with its id into that one's
    slot; it then keeps its slot, and with it the instance.

    Attributes:
      id: Its correlation id.
      generation: A number that no other sequence of the model version has.
      states: State input name -> its value for the next request.
      queue: Its requests that wait, in order.
      executing: Its request at the instance; one at a time.
      resumed: Whether its request was executed before; it is the only one, and iterative.
      started: Whether the instance has ever got a request of it.
      end_reason: Why it takes no more requests, or None while it does.
      slot: What holds it, or None while it waits.
      ticket: Its place in the backlog, or 0.
      predecessor: The last earlier sequence with its id, or None if all of those are over.
      successor: The first later sequence with its id, or None.
      follows: Whether it takes the place of its predecessor once that is over.
    """

    __slots__ = (
        "end_reason",
        "executing",
        "follows",
        "generation",
        "id",
        "predecessor",
        "queue",
        "resumed",
        "slot",
        "started",
        "states",
        "successor",
        "ticket",
    )

    def __init__(self, id: int | str, generation: int, states: dict[str, Tensor]) -> None:  # noqa: A002 - the field's name
        self.id = id
        self.generation = generation
        self.states = states
        self.queue: deque[Infer] = deque()
        self.executing: Infer | None = None
        self.resumed = False
        self.started = False
        self.end_reason: SequenceEndReason | None = None
        self.slot: Slot | None = None
        self.ticket = 0
        self.predecessor: Sequence | None = None
        self.successor: Sequence | None = None
        self.follows = False

    @property
    def follower(self) -> Sequence | None:
        """What takes its place once it is over."""
        successor = self.successor
        return successor if successor is not None and successor.follows else None

    def __repr__(self) -> str:
        return f"<Sequence {self.id!r} in {self.slot}: {len(self.queue)} queued>"


@final
class Slot:
    """A place for one sequence on one instance.

    Attributes:
      number: Its number among all slots of the model version.
      instance: The index of its instance.
      index: Its index on the instance; for the strategy `direct` its row of a batch.
      sequence: What it holds, or None.
      idle_at_s: When its sequence has been idle for too long, in clock seconds; `inf` for never.
    """

    __slots__ = ("idle_at_s", "index", "instance", "number", "sequence")

    def __init__(self, number: int, instance: int, index: int) -> None:
        self.number = number
        self.instance = instance
        self.index = index
        self.sequence: Sequence | None = None
        self.idle_at_s = inf

    def __repr__(self) -> str:
        return f"<Slot {self.index} of instance {self.instance}>"

    @property
    def head(self) -> Infer:
        """The request that its sequence wants to have executed next."""
        assert self.sequence is not None
        return self.sequence.queue[0]


@final
class SlotPool:
    """The slots of all instances; each is made when it is first used.

    Args:
      instances: How many instances there are.
      size: Slots an instance has; >= 1.

    Attributes:
      size: Slots an instance has.
      used: How many slots are taken.
    """

    def __init__(self, instances: int, size: int) -> None:
        assert size >= 1
        self.size = size
        self.used = 0
        self._slots: dict[int, Slot] = {}
        self._free: list[list[int]] = [[] for _ in range(instances)]  # heaps of indices
        self._fresh = [0] * instances  # the lowest index that was never used
        self._lost: set[int] = set()

    def __len__(self) -> int:
        return self.size * len(self._fresh)

    def take(self) -> Slot | None:
        """Take the free slot with the lowest index, of the first instance that has it."""
        best: tuple[int, int] | None = None
        for instance, (free, fresh) in enumerate(zip(self._free, self._fresh, strict=True)):
            index = free[0] if free else fresh
            if index < self.size and instance not in self._lost:
                candidate = (index, instance)
                best = candidate if best is None else min(best, candidate)
        if best is None:
            return None
        index, instance = best
        if self._free[instance]:
            heapq.heappop(self._free[instance])
        else:
            self._fresh[instance] += 1
        self.used += 1
        number = instance * self.size + index
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = Slot(number, instance, index)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Make a taken slot free."""
        heapq.heappush(self._free[slot.instance], slot.index)
        self.used -= 1

    def find(self, number: int) -> Slot | None:
        """Return a slot that was ever used."""
        return self._slots.get(number)

    def of_instance(self, instance: int) -> Iterator[Slot]:
        """Yield the slots of an instance that were ever used."""
        for index in range(self._fresh[instance]):
            yield self._slots[instance * self.size + index]

    def lose(self, instance: int) -> None:
        """Take no slots of an instance until it is restored."""
        self._lost.add(instance)

    def restore(self, instance: int) -> bool:
        """Take slots of an instance again; return whether it was lost."""
        if instance not in self._lost:
            return False
        self._lost.remove(instance)
        return True

    def is_lost(self, instance: int) -> bool:
        """Whether an instance was lost and is not restored."""
        return instance in self._lost
