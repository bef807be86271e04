"""When are the repositories looked at, and which of the changes may be carried out?  Pure.

A model that is being copied looks different at each look. So a change counts once the model looks
the same in two looks that are `SETTLE_S` apart, for which the second one comes sooner than usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, final

from ._repository_policy import Fingerprint, ModelFiles

SETTLE_S: Final = 1.0
"""How long a model must not have changed before it is loaded, in seconds: copies write far more
often, and whoever waits for a change hardly notices."""

QUICK_LOOKS_MAX: Final = 10
"""Looks in a row that come sooner, since something still changes. A model whose directory something
writes to for ever costs no more than that at each interval."""

Look: TypeAlias = Sequence[tuple[Path, Fingerprint | str]]
"""What a model looks like: where it lies, and its fingerprint or why that cannot be taken; empty
for a model that lies nowhere."""


def look_of(found: Iterable[ModelFiles]) -> Look:
    """Return what a model looks like."""
    return tuple(
        (files.directory, files.fingerprint or (files.fault.message if files.fault else ""))
        for files in found
    )


@final
class PollPolicy:
    """What is known of the models after each look.

    Args:
      interval_s: Seconds between two looks, unless something changes.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._known: dict[str, Look] = {}  # of each model when it was loaded, or failed to
        self._changing: dict[str, tuple[Look, float]] = {}  # since when it looks like that
        self._quick_left = QUICK_LOOKS_MAX

    def __repr__(self) -> str:
        return f"<PollPolicy of {len(self._known)} models, {len(self._changing)} changing>"

    def start(self, first: Mapping[str, Look]) -> None:
        """Take note of what all models looked like when they were loaded at the start."""
        self._known = dict(first)

    def see(self, looks: Mapping[str, Look], now_s: float) -> list[str]:
        """Take note of what all models look like.

        Returns:
          The models that have changed and look settled; each is to be scanned (see `settled`).
        """
        before, self._changing = self._changing, {}
        due: list[str] = []
        for name in sorted(looks.keys() | self._known.keys()):
            look = looks.get(name, ())
            if look == self._known.get(name, ()):
                continue
            seen, since_s = before.get(name, ((), now_s))
            if seen != look:
                since_s = now_s
            self._changing[name] = (look, since_s)
            if now_s - since_s >= SETTLE_S:
                due.append(name)
        return due

    def settled(self, name: str, look: Look, now_s: float) -> bool:
        """Return whether a model may be changed, given what it looked like when it was scanned.

        If so it counts as done, however that ends: it is tried again once it looks different.
        """
        seen, _ = self._changing[name]
        if seen != look:
            self._changing[name] = (look, now_s)
            return False
        del self._changing[name]
        self._known.pop(name, None)
        if look:
            self._known[name] = look
        return True

    def next_look_s(self, now_s: float) -> float:
        """Return when to look again, after a look that has just ended."""
        if self._changing and self._quick_left:
            self._quick_left -= 1
            return now_s + SETTLE_S
        self._quick_left = QUICK_LOOKS_MAX
        return now_s + self._interval_s
