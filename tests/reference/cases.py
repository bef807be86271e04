"""What a case is, and how two answers are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .servers import Server, Servers

RequestT = TypeVar("RequestT")
Json: TypeAlias = Any
Mask: TypeAlias = Callable[[Json], Json]
Status: TypeAlias = int | str
"""An HTTP status, or the name of a gRPC status."""
Expected: TypeAlias = Status | tuple[Status, Any]
"""A status, and perhaps the content (of a dict: some of its items)."""

SENTENCE_CHARS_MAX = 1000
FIXED_TEXTS = {"Method Not Allowed", "Not Found"}
"""The only texts that clients know; all others are each server's own."""
MODEL_TEXTS = {"said the model", "the default code", "negative"}
"""Texts that come from the models of the tests."""


@dataclass(frozen=True, slots=True)
class Differs:
    """A deliberate difference: what either side answers, and the row of the document it has.

    Attributes:
      reference: None if it must not be asked, since the request crashes it.
      why: The row's name in docs/compatibility.md.
    """

    reference: Expected | None
    ours: Expected
    why: str


BAD_JSON = Differs(500, 400, "json-faults")


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
    def json(self) -> Json: ...
    @property
    def errors(self) -> tuple[str, ...]: ...
    def comparable(self) -> dict[str, Any]:
        """What must be equal on both sides."""


def compare(
    case: Case[RequestT], ask: Callable[[Server, Case[RequestT]], Seen], servers: Servers
) -> None:
    """Ask both servers and assert that the answers are what the case says."""
    for server in servers:
        server.check_running()
    expected = case.expected
    ours = ask(servers.ours, case)
    crashes = isinstance(expected, Differs) and expected.reference is None
    judge(case, ours, None if crashes else ask(servers.reference, case))


def judge(case: Case[RequestT], ours: Seen, reference: Seen | None) -> None:
    """Assert that two answers are what the case says; no reference where it was not asked."""
    expected = case.expected
    if isinstance(expected, Differs):
        _check("ours", expected.ours, ours)
    if reference is None:
        return
    if isinstance(expected, Differs):
        _check("the reference", expected.reference, reference)
    else:
        assert (reference.status, ours.status) == (expected, expected), (reference, ours)
        assert ours.comparable() == reference.comparable()
    for text in ours.errors:
        check_wording(text, reference.errors)


def check_wording(text: str, reference: tuple[str, ...]) -> None:
    """Assert that an error text of ours is one sentence, in our own words.

    That of a load is a list of sentences, one a version, with an end to each.
    """
    text = text.removesuffix(";\n")
    if text in FIXED_TEXTS | MODEL_TEXTS:
        return
    assert text == text.strip()
    assert 0 < len(text) <= SENTENCE_CHARS_MAX
    assert "\n" not in text
    assert text not in reference


def _check(side: str, expected: Expected | None, seen: Seen) -> None:
    status, content = expected if isinstance(expected, tuple) else (expected, None)
    assert seen.status == status, (side, seen)
    if isinstance(content, dict):
        assert {key: seen.json.get(key) for key in content} == content, side
    elif content is not None:
        assert seen.json == content, side


COUNTS = {"ns", "count", "last_inference", "inference_count", "execution_count"}


def without_counts(content: Json) -> Json:
    """Statistics whose times, and counts that other cases change, are just there.

    What models answered until now also decides which batch sizes and response indices there are.
    """
    if isinstance(content, dict):
        return {
            key: "a number" if key in COUNTS else without_counts(value)
            for key, value in content.items()
            if key not in {"batch_stats", "response_stats"}
        }
    return [without_counts(value) for value in content] if isinstance(content, list) else content


def reasons_are_there(content: Json) -> Json:
    """An index in name and version order, of whose reasons only the presence counts."""
    entries = content["models"] if isinstance(content, dict) else content
    for entry in entries:
        if entry.get("reason"):
            entry["reason"] = "a text"
    return sorted(entries, key=lambda entry: (entry["name"], entry.get("version", "")))


def in_any_order(content: Json) -> Json:
    """The same with the members of every object in alphabetical order."""
    if isinstance(content, dict):
        return {key: in_any_order(content[key]) for key in sorted(content)}
    return [in_any_order(value) for value in content] if isinstance(content, list) else content
