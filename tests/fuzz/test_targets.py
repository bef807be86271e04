"""Every parser survives its seeds, all that was ever found, and a number of damaged seeds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .mutation import damaged
from .seeds import SEEDS
from .targets import TARGETS

FOUND = Path(__file__).parent / "found"
"""`<target>/<name>`: inputs that a parser once did not survive."""
DAMAGED = 1500
"""Damaged seeds of each target in the suite; `scripts/fuzz` goes on for as long as it is told."""


def test_each_target_has_seeds() -> None:
    assert set(SEEDS) == set(TARGETS)
    assert {path.name for path in FOUND.iterdir() if path.is_dir()} <= set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_good_inputs_are_survived(target: str) -> None:
    for seed in SEEDS[target]:
        TARGETS[target](seed)
    TARGETS[target](b"")


@pytest.mark.parametrize(
    "path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_what_was_found_is_survived(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_damaged_inputs_are_survived(target: str) -> None:
    chance = random.Random(target)
    for _ in range(DAMAGED):
        data = damaged(SEEDS[target], chance)
        try:
            TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"{target} does not survive {data!r}") from error
