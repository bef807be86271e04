"""Takes the members out of a JSON object of a request, checked one by one; none may be left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from ..wording import quoted
from .errors import OpenAiError, wrong


@final
class Fields:
    """The members of one JSON object; each is taken once.

    A member that is null counts as absent, as in OpenAI's API.

    Args:
      document: The object.
      place: Where it is in the request, for messages; "" for the request itself.
    """

    def __init__(self, document: Mapping[str, Any], place: str = "") -> None:
        self._left = {name: value for name, value in document.items() if value is not None}
        self._place = place

    def name(self, member: str) -> str:
        """Return a member's name with its place."""
        return f"{self._place}.{member}" if self._place else member

    def take(self, member: str) -> Any:
        """Return any value, or None."""
        return self._left.pop(member, None)

    def has(self, member: str) -> bool:
        """Return whether a member is there, and not taken yet."""
        return member in self._left

    def ignore(self, *members: str) -> None:
        """Leave members out that change nothing in the answer."""
        for member in members:
            self._left.pop(member, None)

    def text(self, member: str) -> str | None:
        """Return a string, or None."""
        value = self.take(member)
        if value is None or isinstance(value, str):
            return value
        raise wrong(self.name(member), "a string", value)

    def required_text(self, member: str) -> str:
        """Return a string that is not empty."""
        value = self.text(member)
        if not value:
            raise self.missing(member, "a string that is not empty", value)
        return value

    def flag(self, member: str, *, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.take(member)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise wrong(self.name(member), "a boolean", value)

    def whole(self, member: str, least: int, most: int) -> int | None:
        """Return an integer in a range, or None."""
        value = self.take(member)
        if value is None:
            return None
        if type(value) is int and least <= value <= most:
            return value
        raise wrong(self.name(member), f"an integer from {least} to {most}", value)

    def mapping(self, member: str) -> dict[str, Any] | None:
        """Return an object, or None."""
        value = self.take(member)
        if value is None or isinstance(value, dict):
            return value
        raise wrong(self.name(member), "an object", value)

    def array(self, member: str, most: int) -> list[Any] | None:
        """Return an array of at most so many elements, or None."""
        value = self.take(member)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong(self.name(member), "an array", value)
        if len(value) > most:
            raise wrong(self.name(member), f"an array of at most {most}", value)
        return value

    def one_of(self, member: str, *allowed: str) -> str | None:
        """Return one of these strings, or None."""
        value = self.take(member)
        if value is None or (isinstance(value, str) and value in allowed):
            return value
        expected = " or ".join(f"'{each}'" for each in allowed)
        raise wrong(self.name(member), expected, value)

    def missing(self, member: str, expected: str, value: object = None) -> OpenAiError:
        """Return the error for a member that has to be there."""
        name = self.name(member)
        if value is None:
            return OpenAiError(
                400, f"expected {expected} as '{name}', got no such member", param=name
            )
        return wrong(name, expected, value)

    def end(self) -> None:
        """Refuse what is left."""
        for member in self._left:
            name = self.name(member)
            raise OpenAiError(
                400,
                f"{quoted(name)} is not supported here",
                param=name[:128],
                code="unknown_parameter",
            )


def as_fields(value: object, place: str) -> Fields:
    """Return the members of a value that has to be an object."""
    if not isinstance(value, dict):
        raise wrong(place, "an object", value)
    return Fields(value, place)
