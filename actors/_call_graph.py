"""Whether a call of one model by another could only wait for itself.  Pure: no trio, no clock.

A call is one or more requests. Each is executed by an instance, or waits for any of the instances
of a model. An execution waits for every call that it made itself. So an instance comes free if all
calls of its execution do; a call if all of its requests do; a request that is executed if its
instance does, and one that waits if any instance that could take it does. What is left over waits
for itself, and will for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..protocol.wording import quoted

CHAIN_SHOWN_MAX = 8
"""Links of a chain in an error; a longer one says how many there are."""

CallT = TypeVar("CallT", bound=Hashable)
InstanceT = TypeVar("InstanceT", bound=Hashable)


class Waits(Protocol[CallT, InstanceT]):
    """Who waits for whom, as of now."""

    def calls_of(self, instance: InstanceT) -> Collection[CallT]:
        """Return the calls that what an instance executes waits for; none if it is idle."""

    def takers_of(self, call: CallT) -> Collection[Collection[InstanceT]]:
        """Return, for each request of a call, the instances of which one has to come free.

        A request of which nobody knows who takes it is left out.
        """


class Link(NamedTuple, Generic[CallT, InstanceT]):
    """One step of a chain: an instance, and the call that its execution waits for."""

    instance: InstanceT
    call: CallT


def chain_text(links: Iterable[tuple[str, str]]) -> str:
    """Return a chain as errors show it.

    Args:
      links: Name of an instance, and of the model that its execution waits for.
    """
    shown = [f"instance '{name}' waits for model {quoted(model)}" for name, model in links]
    if len(shown) > CHAIN_SHOWN_MAX:
        shown[CHAIN_SHOWN_MAX:] = [f"… ({len(shown)} in all)"]
    return ", ".join(shown)


def circle(
    takers: Collection[InstanceT], waits: Waits[CallT, InstanceT]
) -> list[Link[CallT, InstanceT]] | None:
    """Return why a new request would wait for itself, or None if it would not.

    Args:
      takers: The instances of which one has to come free for it.
      waits: Everything else, with the caller's execution waiting for the new request's call, which
        is said to have that request.

    Returns:
      A chain that starts with an instance of `takers` and in which each call waits for the
      instance of the next link, the last one for an instance that is in the chain.
    """
    if not takers or any(not waits.calls_of(taker) for taker in takers):
        return None  # as nearly always
    stuck = _stuck(takers, waits)
    if any(taker not in stuck for taker in takers):
        return None
    chain: list[Link[CallT, InstanceT]] = []
    seen: set[InstanceT] = set()
    instance = next(iter(takers))
    while instance not in seen:
        seen.add(instance)
        instance = _next(instance, stuck, waits, chain)
    return chain


def _next(
    instance: InstanceT,
    stuck: Collection[InstanceT],
    waits: Waits[CallT, InstanceT],
    chain: list[Link[CallT, InstanceT]],
) -> InstanceT:
    """Add the link of a stuck instance, and return an instance that its call waits for."""
    for call in waits.calls_of(instance):
        for takers in waits.takers_of(call):
            if takers and all(taker in stuck for taker in takers):
                chain.append(Link(instance, call))
                return next(iter(takers))
    raise AssertionError("an instance that is stuck has a call that is")


def _stuck(takers: Collection[InstanceT], waits: Waits[CallT, InstanceT]) -> Collection[InstanceT]:
    """Return those instances, of all that a request could depend on, that never come free."""
    needs: dict[InstanceT, list[Collection[InstanceT]]] = {}
    found = list(takers)
    while found:
        instance = found.pop()
        if instance in needs:
            continue
        needs[instance] = [
            group for call in waits.calls_of(instance) for group in waits.takers_of(call) if group
        ]
        found += [taker for group in needs[instance] for taker in group]
    freed = True
    while freed:
        free = [
            instance
            for instance, groups in needs.items()
            if all(any(taker not in needs for taker in group) for group in groups)
        ]
        freed = bool(free)
        for instance in free:
            del needs[instance]
    return needs
