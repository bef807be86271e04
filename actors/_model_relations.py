"""Which models need which others, and what follows from that.  Pure: no trio, no clock, no I/O.

An ensemble needs the models of its steps. All functions take that as a mapping: model -> the models
it needs; those that are not in it need nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from ..protocol.errors import RequestError, invalid_argument

Needs: TypeAlias = Mapping[str, Collection[str]]


def waves(needs: Needs) -> tuple[list[list[str]], dict[str, RequestError]]:
    """Return in which order models are loaded that need each other.

    Returns:
      The models in waves, each of which needs earlier ones only, and the error for each model
      that needs itself by way of others; those that need such a model are not among them.
    """
    refused: dict[str, RequestError] = {}
    while True:
        left = {
            name: [each for each in needed if each in needs and each not in refused]
            for name, needed in sorted(needs.items())
            if name not in refused
        }
        sorter = TopologicalSorter(left)
        try:
            sorter.prepare()
        except CycleError as error:
            refused |= _circular(error.args[1][1:])
        else:
            break
    ordered: list[list[str]] = []
    while sorter.is_active():
        wave = sorter.get_ready()
        ordered.append(sorted(wave))
        sorter.done(*wave)
    return ordered, refused


def _circular(names: Sequence[str]) -> dict[str, RequestError]:
    """Return the error of each model of a circle; each name is used by the next."""
    errors: dict[str, RequestError] = {}
    for index, name in enumerate(names):
        circle = [name, *reversed(names[:index]), *reversed(names[index:])]
        chain = " -> ".join(f"'{each}'" for each in circle)
        errors[name] = invalid_argument(f"ensemble '{name}' uses itself: {chain}")
    return errors


def dependents(names: Iterable[str], needs: Needs) -> set[str]:
    """Return the models that need one of these, directly or by way of others; not these."""
    given = set(names)
    found: set[str] = set()
    while True:
        more = {
            name
            for name, needed in needs.items()
            if name not in found and not (given | found).isdisjoint(needed)
        }
        if not more:
            return found - given
        found |= more


def related(names: Iterable[str], needs: Needs) -> frozenset[str]:
    """Return these models, and all that are connected with one of them by needs, either way."""
    found = set(names)
    while True:
        more = set().union(
            *(
                {name, *needed}
                for name, needed in needs.items()
                if name in found or not found.isdisjoint(needed)
            )
        )
        if more <= found:
            return frozenset(found)
        found |= more


def left_over(name: str, needs: Needs, implicit: Collection[str]) -> set[str]:
    """Return the models that nobody needs any more once a model is unloaded.

    Args:
      name: The model that is unloaded.
      needs: Of all models that are loaded, this one included.
      implicit: The models that nobody asked for, and that are loaded because others need them.
    """
    gone = {name}
    while True:
        wanted = set().union(*(needed for each, needed in needs.items() if each not in gone))
        candidates = set().union(*(needs.get(each, ()) for each in gone))
        more = {each for each in candidates - gone - wanted if each in implicit}
        if not more:
            return gone - {name}
        gone |= more
