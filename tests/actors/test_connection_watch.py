"""Which phase may last how long, tick by tick."""

from __future__ import annotations

import pytest

from tritrio.actors._connection_watch import ConnectionWatch, Patience, Phase

PATIENCE = Patience(idle_s=3.0, head_s=4.0, body_s=5.0, write_s=6.0)
LIMITS = [(Phase.IDLE, 3), (Phase.HEAD, 4), (Phase.BODY, 5), (Phase.WRITING, 6)]


def ticks_until_due(watch: ConnectionWatch, phase: Phase, *, progress: int = 0) -> int:
    for count in range(1, 1000):
        if watch.tick(phase, progress, PATIENCE):
            return count
    return 0


@pytest.mark.parametrize(("phase", "limit"), LIMITS)
def test_phase_without_progress_is_due_after_its_limit(phase: Phase, limit: int) -> None:
    watch = ConnectionWatch()
    watch.tick(phase, 7, PATIENCE)  # begins
    assert ticks_until_due(watch, phase, progress=7) == limit


def test_serving_is_never_due() -> None:
    assert ticks_until_due(ConnectionWatch(), Phase.SERVING) == 0


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.HEAD, Phase.BODY, Phase.WRITING])
def test_progress_starts_the_count_again(phase: Phase) -> None:
    watch = ConnectionWatch()
    for progress in range(100):
        assert not watch.tick(phase, progress, PATIENCE)
        assert not watch.tick(phase, progress, PATIENCE)


def test_another_phase_starts_the_count_again() -> None:
    watch = ConnectionWatch()
    for _ in range(50):
        assert not watch.tick(Phase.HEAD, 0, PATIENCE)
        assert not watch.tick(Phase.HEAD, 0, PATIENCE)
        assert not watch.tick(Phase.BODY, 0, PATIENCE)
        assert not watch.tick(Phase.BODY, 0, PATIENCE)
