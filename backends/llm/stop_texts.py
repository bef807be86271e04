"""Ends a text at the first stop text in it, while it is generated."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Looks for stop texts in a text that comes in parts.

    The match that ends first counts, because there generation would have stopped; of several that
    end at the same place, the longest. What could still become a match is held back, which is less
    than the longest stop text. Takes time in proportion to the characters, for each stop text.
    """

    __slots__ = ("_held", "_include", "_searches", "_stopped")

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        """Prepare the search.

        Args:
          stops: The stop texts; none is empty.
          include: Whether the text that is given out ends with the stop text, not before it.
        """
        assert all(stops), "an empty stop text stops everything"
        self._searches = [_Search(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._include = include
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, str | None]:
        """Take what comes next; not to be called after it returned a stop text.

        Returns:
          (what is certain to be part of the text, the stop text that ends it or None).
        """
        assert not self._stopped, "nothing follows a stop text"
        if not self._searches:
            return text, None
        held_before = len(self._held)
        self._held += text
        for index, character in enumerate(text, held_before + 1):
            found = [search.stop for search in self._searches if search.matches(character)]
            if found:
                self._stopped = True
                end = index if self._include else index - len(found[0])
                emit, self._held = self._held[:end], ""
                return emit, found[0]
        wanted = max(search.matched for search in self._searches)
        cut = len(self._held) - wanted
        emit, self._held = self._held[:cut], self._held[cut:]
        return emit, None

    def flush(self) -> str:
        """Return what was held back, at the end of a text without a stop text."""
        held, self._held = self._held, ""
        return held


class _Search:
    """Looks for one text by Knuth, Morris and Pratt's rule, so that no character is read twice.

    Attributes:
      stop: The text.
      matched: How many of its first characters end what was read so far.
    """

    __slots__ = ("_shorter", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._shorter = [0]  # matched characters -> the next smaller number that could be matched
        for character in stop[1:]:
            matched = self._shorter[-1]
            while matched and stop[matched] != character:
                matched = self._shorter[matched - 1]
            self._shorter.append(matched + (stop[matched] == character))

    def matches(self, character: str) -> bool:
        """Read on; return whether a match ends here, after which nothing may be read."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self.stop[self.matched] == character
        return self.matched == len(self.stop)
