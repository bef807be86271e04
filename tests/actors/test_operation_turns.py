"""Which of the loads and unloads that were asked for may run."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tritrio.actors._operation_turns import OperationTurns, Ticket


def entered(turns: OperationTurns, names: str) -> Ticket:
    ticket = turns.enter()
    turns.claim(ticket, names)
    return ticket


def test_operations_on_different_models_run_side_by_side() -> None:
    turns = OperationTurns()
    one, two = entered(turns, "ab"), entered(turns, "c")
    assert turns.advance() == [one, two]
    assert turns.advance() == []


def test_operations_on_one_model_run_in_the_order_asked() -> None:
    turns = OperationTurns()
    one, two, three = entered(turns, "a"), entered(turns, "ab"), entered(turns, "b")
    assert turns.advance() == [one]  # the third does not overtake the second
    turns.leave(one)
    assert turns.advance() == [two]
    turns.leave(two)
    assert turns.advance() == [three]


def test_what_may_concern_any_model_holds_up_what_was_asked_for_later() -> None:
    turns = OperationTurns()
    one, unknown, three = entered(turns, "a"), turns.enter(), entered(turns, "b")
    assert turns.advance() == [one]
    turns.claim(unknown, "c")
    assert turns.advance() == [unknown, three]


def test_an_operation_that_concerns_more_models_than_it_knew_waits_again() -> None:
    turns = OperationTurns()
    one, two = entered(turns, "a"), entered(turns, "b")
    assert turns.advance() == [one, two]
    assert turns.claim(one, "a")
    assert not turns.claim(one, "b")
    assert turns.advance() == []
    turns.leave(two)
    assert turns.advance() == [one]


@given(st.data())
def test_nothing_runs_beside_what_it_conflicts_with_and_everything_runs_some_time(
    data: st.DataObject,
) -> None:
    names = st.frozensets(st.sampled_from("abcd"), min_size=1)
    turns = OperationTurns()
    tickets: dict[Ticket, frozenset[str]] = {}
    running: set[Ticket] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        ticket = turns.enter()
        tickets[ticket] = data.draw(names)
        turns.claim(ticket, tickets[ticket])
    while tickets:
        running.update(turns.advance())
        assert running
        taken = [name for ticket in running for name in ticket.names or ()]
        assert len(taken) == len(set(taken))
        ticket = data.draw(st.sampled_from(sorted(running, key=list(tickets).index)))
        if data.draw(st.booleans()) and ticket.names == tickets[ticket]:
            if not turns.claim(ticket, data.draw(names)):
                running.remove(ticket)
            continue
        running.remove(ticket)
        del tickets[ticket]
        turns.leave(ticket)
    assert len(turns) == 0
