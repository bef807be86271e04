"""Which models need which others, and what follows from that."""

from __future__ import annotations

import pytest

from tritrio.actors._model_relations import dependents, left_over, related

NEEDS = {"e": {"a", "b"}, "o": {"e", "c"}, "second": {"b"}, "loop": {"pool"}, "pool": {"loop"}}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"b"}, {"e", "o", "second"}),
        ({"c"}, {"o"}),
        ({"o"}, set()),
        ({"a", "e"}, {"o"}),
        ({"loop"}, {"pool"}),
        ({"unknown"}, set()),
    ],
)
def test_dependents_are_direct_and_indirect(names: set[str], found: set[str]) -> None:
    assert dependents(names, NEEDS) == found


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"c"}, {"a", "b", "c", "e", "o", "second"}),
        ({"loop"}, {"loop", "pool"}),
        ({"alone", "pool"}, {"alone", "loop", "pool"}),
    ],
)
def test_related_is_what_is_connected_either_way(names: set[str], found: set[str]) -> None:
    assert related(names, NEEDS) == found


@pytest.mark.parametrize(
    ("name", "implicit", "left"),
    [
        ("o", {"a", "b", "c", "e"}, {"a", "c", "e"}),  # `second` needs b
        ("o", {"a", "b", "c"}, {"c"}),
        ("o", {"a", "e"}, {"a", "e"}),
        ("second", {"b"}, set()),  # `e` needs it
        ("a", {"b", "c"}, set()),
    ],
)
def test_models_are_left_over_that_nobody_asked_for_and_nobody_needs(
    name: str, implicit: set[str], left: set[str]
) -> None:
    assert left_over(name, NEEDS, implicit) == left
