"""Models come and go: the same steps on both servers, and what is there after each."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from . import life_cycle_cases, life_cycle_faults, life_cycle_models, life_cycle_requests
from .cases import Case, compare, judge
from .life_cycle import Done, Scenario, Step, ask, check_after, play
from .servers import Servers, need_reference, running, start_ours, start_reference

EXPLICIT = [
    *life_cycle_requests.SCENARIOS,
    *life_cycle_models.SCENARIOS,
    *life_cycle_faults.SCENARIOS,
]
EXPLICIT_CONTROL = ["--exit-on-error=false", "--model-control-mode=explicit"]
REFERENCE_FLAGS = [
    # It answers nobody else on a thread that waits for a load.
    f"--http-thread-count={4 * len(EXPLICIT)}",
    f"--model-load-thread-count={len(EXPLICIT)}",
    # Models that it could not load keep it from ending before that.
    "--exit-timeout-secs=2",
]
READINESS = life_cycle_cases.READINESS
STEPS = [step for scenario in [*EXPLICIT, READINESS] for step in scenario.steps]


@contextmanager
def serving(directory: Path, scenarios: list[Scenario]) -> Iterator[Servers]:
    """Both servers with explicit model control, on two repositories."""
    repository, second = directory / "models", directory / life_cycle_faults.SECOND
    repository.mkdir()
    second.mkdir()
    for scenario in scenarios:
        scenario.write(repository)
    flags = [*EXPLICIT_CONTROL, f"--model-repository={second}"]
    reference = start_reference(
        repository, directory / "reference.log", *REFERENCE_FLAGS, flags=flags
    )
    ours = start_ours(repository, directory / "ours.log", flags=flags)
    with running(reference, ours) as servers:
        yield servers


def play_all(directory: Path, scenarios: list[Scenario]) -> dict[str, Done]:
    """Take scenarios side by side, since the reference loads slowly, on servers of their own."""
    every: dict[str, Done] = {}
    with serving(directory, scenarios) as servers, ThreadPoolExecutor(len(scenarios)) as threads:
        played = partial(play, servers=servers, repository=directory / "models")
        for done in threads.map(played, scenarios):
            every |= done
    return every


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """What every step led to."""
    need_reference()
    directories = [tmp_path_factory.mktemp(name) for name in ("explicit", "readiness")]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        # Or the reference's models would change their own directories while they are loaded.
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        explicit, readiness = threads.map(play_all, directories, (EXPLICIT, [READINESS]))
    return explicit | readiness


@pytest.mark.reference
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_leads_to_the_same(step: Step, done: dict[str, Done]) -> None:
    judge(step, done[step.name].ours, done[step.name].reference)
    check_after(step, done[step.name])


@pytest.mark.reference
@pytest.mark.parametrize("case", life_cycle_cases.NOT_EXPLICIT, ids=lambda case: case.name)
def test_nothing_comes_or_goes_without_explicit_control(case: Case[Any], servers: Servers) -> None:
    compare(case, ask, servers)
