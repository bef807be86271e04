"""What is to be done, given what runs and what lies in the repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritrio.actors._repository_policy import (
    Fingerprint,
    LoadModel,
    ModelFiles,
    RefuseModel,
    RunningModel,
    UnloadModel,
    changes,
    grouped,
)
from tritrio.protocol.errors import invalid_argument

BOTH = frozenset({1, 2})


def files(
    name: str = "a", shared: str = "s", versions: dict[int, str] | None = None, place: str = "r"
) -> ModelFiles:
    prints = {1: "x", 2: "y"} if versions is None else versions
    return ModelFiles(
        name,
        Path(place) / name,
        dict.fromkeys(prints, ()),
        fingerprint=Fingerprint(shared, prints),
    )


def running(
    selected: frozenset[int] = BOTH, ready: frozenset[int] = BOTH, *, comparable: bool = True
) -> RunningModel:
    return RunningModel(files().fingerprint if comparable else None, selected, ready)


def test_what_was_never_loaded_is_loaded() -> None:
    assert changes({}, grouped([[files("b")], [files("a")]])) == [
        LoadModel(files("a")),
        LoadModel(files("b")),
    ]


@pytest.mark.parametrize(
    ("before", "now", "unchanged"),
    [
        (running(), files(), None),
        (running(frozenset({2}), frozenset({2})), files(), None),
        (running(), files(versions={1: "x", 2: "z"}), {1}),
        (running(), files(versions={1: "x", 2: "y", 3: "z"}), {1, 2}),
        (running(), files(versions={2: "y"}), {2}),
        (running(), files(shared="t"), set()),
        (running(ready=frozenset({1})), files(), {1}),  # a version that has failed is tried again
        (running(frozenset({2}), frozenset({2})), files(versions={1: "w", 2: "y"}), {2}),
        (running(comparable=False), files(), set()),
    ],
)
def test_only_what_has_changed_or_does_not_run_is_loaded(
    before: RunningModel, now: ModelFiles, unchanged: set[int] | None
) -> None:
    wanted = [] if unchanged is None else [LoadModel(now, frozenset(unchanged))]
    assert changes({"a": before}, {"a": [now]}) == wanted


def test_what_lies_nowhere_is_unloaded() -> None:
    assert changes({"a": running()}, {}) == [UnloadModel("a")]


def test_what_lies_in_two_places_is_refused() -> None:
    [action] = changes({}, grouped([[files(place="r")], [files(place="q")]]))
    assert isinstance(action, RefuseModel)
    assert action.error.message == (
        "model 'a' must lie in one repository only, found 'r/a' and 'q/a'"
    )


def test_what_cannot_be_read_is_refused() -> None:
    fault = invalid_argument("no")
    found = ModelFiles("a", Path("r/a"), {}, fault=fault)
    assert changes({"a": running()}, {"a": [found]}) == [RefuseModel("a", fault)]
