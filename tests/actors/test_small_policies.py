"""Restart budgets and the order of completion."""

from __future__ import annotations

from tests.support.builders import infer
from tritrio.actors._completion_order import CompletionOrder
from tritrio.actors._restart_policy import RestartBudget, RestartPolicy
from tritrio.protocol.requests import InferResponse


def response(number: int, *, final: bool = True) -> InferResponse:
    return InferResponse("model", "1", str(number), final=final)


def test_restarts_wait_longer_and_longer_until_the_budget_is_spent() -> None:
    policy = RestartPolicy(RestartBudget(intensity=4, period_s=8, backoff_s=0.5, backoff_max_s=2))
    assert [policy.crashed(now_s) for now_s in (0, 1, 2, 3, 4)] == [0.5, 1.0, 2.0, 2.0, None]


def test_crashes_are_forgotten_after_the_period() -> None:
    policy = RestartPolicy(RestartBudget(intensity=2, period_s=8, backoff_s=0.5, backoff_max_s=2))
    assert policy.crashed(0.0) == 0.5
    assert policy.crashed(7.0) == 1.0
    assert policy.crashed(8.0) == 1.0  # the one at 0.0 is out
    assert policy.crashed(8.5) is None


def test_responses_are_released_in_dispatch_order() -> None:
    order = CompletionOrder()
    infers = [infer(number) for number in range(3)]
    for message in infers:
        order.begin(message)
    last, middle, first = response(2), response(1), response(0)
    assert order.respond(infers[2], last) == []
    assert order.respond(infers[1], middle) == []
    assert order.respond(infers[0], first) == [
        (infers[0], first),
        (infers[1], middle),
        (infers[2], last),
    ]
    assert len(order) == 0


def test_many_responses_are_held_until_the_earlier_request_is_final() -> None:
    order = CompletionOrder()
    earlier, later = infer(0), infer(1)
    order.begin(earlier)
    order.begin(later)
    held = [response(1, final=False), response(1)]
    assert order.respond(later, held[0]) == []
    partial, final = response(0, final=False), response(0)
    assert order.respond(earlier, partial) == [(earlier, partial)]
    assert order.respond(later, held[1]) == []
    assert order.respond(earlier, final) == [
        (earlier, final),
        (later, held[0]),
        (later, held[1]),
    ]
