"""What a case is, and how two answers are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .http_exchange import Mask

RequestT = TypeVar("RequestT")
Status: TypeAlias = int | str
"""An HTTP status, or the name of a gRPC status."""
Expected: TypeAlias = Status | tuple[Status, Any]
"""A status, and perhaps the content (of a dict: some of its items)."""

SENTENCE_CHARS_MAX = 1000
FIXED_TEXTS = {"Method Not Allowed", "Not Found"}
"""The only texts that clients know; all others are each server's own."""


@dataclass(frozen=True, slots=True)
class Differs:
    """A deliberate difference: what either side answers, and the row of the document it has.

    Attributes:
      why: The row's name in docs/compatibility.md.
    """

    reference: Expected
    ours: Expected
    why: str


@dataclass(frozen=True, slots=True)
class Case(Generic[RequestT]):
    """One request for both servers.

    Attributes:
      expected: The status both give, with equal answers; or how they differ.
      mask: Takes out of a JSON answer what cannot be equal, such as times.
    """

    name: str
    request: RequestT
    expected: Status | Differs
    mask: Mask | None = None


class Seen(Protocol):
    """What an answer must offer to be judged."""

    @property
    def status(self) -> Status: ...
    @property
    def json(self) -> Any: ...
    @property
    def error(self) -> str | None: ...


def judge(case: Case[Any], reference: Seen, ours: Seen) -> None:
    """Assert that the answers are what the case says."""
    expected = case.expected
    if isinstance(expected, Differs):
        _check("the reference", expected.reference, reference)
        _check("ours", expected.ours, ours)
    else:
        assert (reference.status, ours.status) == (expected, expected), (reference, ours)
        assert _comparable(ours) == _comparable(reference)
    check_wording(ours.error, reference.error)


def check_wording(ours: str | None, reference: str | None) -> None:
    """Assert that our error text is one sentence, in our own words."""
    if ours is None or ours in FIXED_TEXTS:
        return
    assert ours == ours.strip()
    assert 0 < len(ours) <= SENTENCE_CHARS_MAX
    assert "\n" not in ours
    assert ours != reference


def _check(side: str, expected: Expected, seen: Seen) -> None:
    status, content = expected if isinstance(expected, tuple) else (expected, None)
    assert seen.status == status, (side, seen)
    if isinstance(content, dict):
        assert {key: seen.json.get(key) for key in content} == content, side
    elif content is not None:
        assert seen.json == content, side


def _comparable(seen: Seen) -> Any:
    return {name: getattr(seen, name) for name in seen.__slots__ if name != "error"}  # type: ignore[attr-defined]
