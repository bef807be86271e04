"""Which of the idle instances of a model may execute, when a rate limiter has a say in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, final


class Permit(Protocol):
    """The right of one instance to execute one batch; see `rate_limiter`."""

    @property
    def granted(self) -> bool:
        """Whether the instance may execute now."""

    @property
    def turn(self) -> int:
        """Of several idle instances the one with the smallest asks first."""

    def ask(self) -> bool:
        """Ask for one execution; return whether it is granted at once."""

    def withdraw(self) -> None:
        """Take an ask back, also one that was granted and is not used."""

    def release(self) -> None:
        """The execution has ended."""


@final
class InstancePermits:
    """The permits of the instances of one model version, as its scheduler sees them.

    An execution that has ended keeps its permit until the scheduler knows whether there is more to
    execute: whoever asks again competes with those that wait, instead of going behind them.

    Args:
      permits: One an instance, by index; each grant that had to wait wakes the scheduler.
    """

    def __init__(self, permits: Mapping[int, Permit]) -> None:
        self._permits = dict(permits)
        self._asked: set[int] = set()
        self._ended: set[int] = set()
        self._going_on: set[int] = set()

    def choose(self, idle: Iterable[int]) -> int | None:
        """Return an idle instance that may execute; None if all of them wait for their permits.

        Call it when there is something for each of them to execute, and else `let_go`.
        """
        permits = self._permits
        unasked: list[int] = []
        for index in idle:
            if index in self._going_on:
                return index
            if index not in self._asked:
                unasked.append(index)
            elif permits[index].granted:
                return index
        for index in sorted(unasked, key=lambda index: permits[index].turn):
            self._ended.discard(index)
            self._asked.add(index)
            if permits[index].ask():
                return index
        return None

    def executes(self, index: int) -> None:
        """Note that the chosen instance has got a batch."""
        self._asked.discard(index)
        self._going_on.discard(index)

    def goes_on(self, index: int) -> None:
        """Note that an instance is idle although it executes: the same permit is for both."""
        self._ended.discard(index)
        self._going_on.add(index)

    def ended(self, index: int) -> None:
        """Note that an instance is idle, whether it has executed or has just started."""
        self._going_on.discard(index)
        self._ended.add(index)

    def gone(self, index: int) -> None:
        """Note that an instance has died, whatever it was doing."""
        self._asked.discard(index)
        self._ended.discard(index)
        self._going_on.discard(index)
        self._permits[index].release()
        self._permits[index].withdraw()

    def add(self, index: int, permit: Permit) -> None:
        """Take the permit of a new instance in, which is not idle yet."""
        self._permits[index] = permit

    def remove(self, index: int) -> None:
        """Forget an instance that executes nothing more; idempotent."""
        if index in self._permits:
            self.gone(index)
            del self._permits[index]

    def let_go(self, idle: Iterable[int]) -> None:
        """Give back what idle instances hold or ask for: there is nothing for them to execute."""
        for index in idle:
            if index in self._asked:
                self._asked.discard(index)
                self._permits[index].withdraw()
            elif index in self._ended:
                self._ended.discard(index)
                self._permits[index].release()
