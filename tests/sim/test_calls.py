"""Random models that call each other: everybody is answered, and nobody is refused in vain."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st

from tests.support.limits import TICK_S
from tests.support.programs import Program, Programs, programs
from tests.support.schedules import run_virtually
from tritrio.actors.reply import Reply

NAMES = "abc"


def program(names: str, depth: int, *, acyclic: bool) -> st.SearchStrategy[Program]:
    """Programs that call these models, and those in turn them all or later ones only."""
    sleep: st.SearchStrategy[Any] = st.integers(0, 3)
    if not depth or not names:
        return st.lists(sleep, max_size=1).map(tuple)
    call = st.sampled_from(names).flatmap(
        lambda name: st.tuples(
            st.just(name),
            program(
                names[names.index(name) + 1 :] if acyclic else names, depth - 1, acyclic=acyclic
            ),
        )
    )
    calls = st.lists(call, min_size=1, max_size=3).map(tuple)
    return st.lists(sleep | calls, max_size=3).map(tuple)


def clients(*, acyclic: bool) -> st.SearchStrategy[list[tuple[int, str, Program, int]]]:
    """When each client sends its request, to whom, what, and when it leaves (0: never)."""
    return st.lists(
        st.sampled_from(NAMES).flatmap(
            lambda name: st.tuples(
                st.integers(0, 4),
                st.just(name),
                program(NAMES[NAMES.index(name) + 1 :] if acyclic else NAMES, 3, acyclic=acyclic),
                st.integers(0, 3),
            )
        ),
        min_size=1,
        max_size=6,
    )


async def run(counts: dict[str, int], plans: list[tuple[int, str, Program, int]]) -> Programs:
    """Let all clients ask; each that stays gets one answer, which is no error."""
    answered = 0
    async with programs(**counts) as served, trio.open_nursery() as nursery:

        async def ask(at: int, name: str, what: Program, leaves: int) -> None:
            nonlocal answered
            await trio.sleep(at * TICK_S)
            reply: Reply = served.submit(name, what)
            with trio.move_on_after((leaves - 0.5) * TICK_S if leaves else float("inf")):
                response = await reply.receive()
                assert response.final
                assert response.error is None
            reply.close()
            answered += 1

        for plan in plans:
            nursery.start_soon(ask, *plan)
    assert answered == len(plans)
    assert all(not count for count in served.executing.values())
    return served


counts = st.fixed_dictionaries({name: st.integers(1, 3) for name in NAMES})


@pytest.mark.slow
@settings(deadline=None)
@given(counts, clients(acyclic=False), st.random_module())
def test_every_client_is_answered_and_only_calls_of_busy_models_are_refused(
    counts: dict[str, int], plans: list[tuple[int, str, Program, int]], random: object
) -> None:
    served = run_virtually(partial(run, counts, plans))
    for name, response, executing, _ in served.answers:
        if response.error is not None and "wait for itself" in response.error.message:
            assert executing == counts[name]


@pytest.mark.slow
@settings(deadline=None)
@given(counts, clients(acyclic=True), st.random_module())
def test_models_that_call_in_no_circle_are_never_refused(
    counts: dict[str, int], plans: list[tuple[int, str, Program, int]], random: object
) -> None:
    served = run_virtually(partial(run, counts, plans))
    for _, response, _, _ in served.answers:
        assert response.error is None or "cancelled" in response.error.message
