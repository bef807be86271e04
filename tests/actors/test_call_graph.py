"""Which calls could only wait for themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from tritrio.actors._call_graph import circle


@dataclass
class Graph:
    """Instances are named by model and number, as "A0"; a model's request may go to all of them.

    Args:
      waiting: Instance -> the calls that its execution waits for.
      requests: Call -> what each of its requests waits for: an instance or a model.
      counts: Model -> instances, where it is not one.
    """

    waiting: dict[str, list[str]]
    requests: dict[str, list[str]]
    counts: dict[str, int] = field(default_factory=dict)

    def instances(self, model: str) -> list[str]:
        return [f"{model}{number}" for number in range(self.counts.get(model, 1))]

    def calls_of(self, instance: str) -> list[str]:
        return self.waiting.get(instance, [])

    def takers_of(self, call: str) -> list[list[str]]:
        return [
            [place] if place[-1].isdigit() else self.instances(place)
            for place in self.requests[call]
        ]

    def chain(self, model: str) -> list[tuple[str, str]] | None:
        found = circle(self.instances(model), self)
        return None if found is None else [(link.instance, link.call) for link in found]


def test_a_call_of_an_idle_model_waits_for_nothing() -> None:
    assert Graph({"A0": ["x"]}, {"x": ["B"]}).chain("B") is None


def test_a_model_with_one_instance_cannot_call_itself() -> None:
    assert Graph({"A0": ["x"]}, {"x": ["A"]}).chain("A") == [("A0", "x")]


def test_a_second_instance_takes_a_call_of_the_model_itself() -> None:
    assert Graph({"A0": ["x"]}, {"x": ["A"]}, {"A": 2}).chain("A") is None


def test_the_last_of_two_instances_that_call_their_model_has_nobody_to_take_it() -> None:
    graph = Graph({"A0": ["x"], "A1": ["y"]}, {"x": ["A"], "y": ["A"]}, {"A": 2})
    assert graph.chain("A") == [("A0", "x")]


def test_a_chain_through_other_models_is_found_in_order() -> None:
    graph = Graph({"A0": ["x"], "B0": ["y"], "C0": ["z"]}, {"x": ["B0"], "y": ["C0"], "z": ["A"]})
    assert graph.chain("A") == [("A0", "x"), ("B0", "y"), ("C0", "z")]


def test_two_models_whose_executions_wait_in_each_others_queue_are_found() -> None:
    graph = Graph({"A0": ["x"], "B0": ["y"]}, {"x": ["B"], "y": ["A"]})
    assert graph.chain("A") == [("A0", "x"), ("B0", "y")]


def test_an_instance_that_computes_will_be_free() -> None:
    waiting = {"A0": ["x"], "B0": ["y"]}
    busy = Graph(waiting, {"x": ["B0"], "y": ["A"]}, {"A": 2})
    assert busy.chain("A") is None  # A1 executes something that calls nobody


def test_an_instance_that_waits_for_one_that_computes_will_be_free() -> None:
    graph = Graph(
        {"A0": ["x"], "A1": ["w"], "B0": ["y"]},
        {"x": ["B0"], "y": ["A"], "w": ["C0"]},
        {"A": 2},
    )
    assert graph.chain("A") is None


def test_a_call_whose_request_is_being_executed_waits_for_that_instance_only() -> None:
    graph = Graph(
        {"A0": ["x"], "B0": ["y"]}, {"x": ["B0"], "y": ["A"]}, {"B": 2}
    )  # B1 is idle, which helps nobody
    assert graph.chain("A") == [("A0", "x"), ("B0", "y")]


def test_one_of_several_calls_that_waits_for_itself_is_enough() -> None:
    graph = Graph({"A0": ["x", "y"], "B0": []}, {"x": ["B0"], "y": ["A"]})
    assert graph.chain("A") == [("A0", "y")]
    assert graph.chain("B") is None


def test_a_call_of_several_requests_waits_for_each_of_them() -> None:
    graph = Graph({"A0": ["x"], "B0": []}, {"x": ["B0", "A"]})
    assert graph.chain("A") == [("A0", "x")]


def test_a_request_of_which_nobody_knows_who_takes_it_is_no_circle() -> None:
    graph = Graph({"A0": ["x"]}, {"x": ["E"]}, {"E": 0})
    assert graph.chain("A") is None
    assert graph.chain("E") is None


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    counts = {model: draw(st.integers(1, 3)) for model in "ABC"}
    instances = [f"{model}{number}" for model in "ABC" for number in range(counts[model])]
    calls = [f"c{number}" for number in range(draw(st.integers(0, 8)))]
    makers = {call: draw(st.sampled_from(instances)) for call in calls}
    requests = {
        call: draw(st.lists(st.sampled_from([*instances, *"ABC"]), max_size=2)) for call in calls
    }
    waiting = {
        instance: [call for call in calls if makers[call] == instance] for instance in instances
    }
    return Graph(waiting, requests, counts)


@pytest.mark.slow
@given(graphs(), st.sampled_from("ABC"))
def test_what_is_refused_is_what_no_order_of_events_could_end(graph: Graph, model: str) -> None:
    """Let everything end that can, in rounds, and see whether an instance comes free."""
    waiting = {instance: list(calls) for instance, calls in graph.waiting.items()}
    ended = True
    while ended:
        free = [instance for instance, calls in waiting.items() if not calls]
        done = {
            call
            for calls in waiting.values()
            for call in calls
            if all(any(taker in free for taker in takers) for takers in graph.takers_of(call))
        }
        waiting = {
            instance: [call for call in calls if call not in done]
            for instance, calls in waiting.items()
        }
        ended = bool(done)
    hopeless = all(waiting[instance] for instance in graph.instances(model))
    chain = circle(graph.instances(model), graph)
    assert (chain is not None) == hopeless
    if chain is None:
        return
    assert chain[0].instance in graph.instances(model)
    names = [link.instance for link in chain]
    for link, following in zip(chain, [*names[1:], None], strict=True):
        assert link.call in graph.calls_of(link.instance)
        takers = [taker for group in graph.takers_of(link.call) for taker in group]
        assert following in takers if following else set(names) & set(takers)
