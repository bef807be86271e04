"""Deadlines by key, against the plainest implementation there is."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings, strategies as st

from tritrio.actors._deadlines import SLACK, Deadlines


def test_keys_expire_earliest_first_and_once() -> None:
    deadlines = Deadlines[int]()
    for key, deadline_s in ((1, 5.0), (2, 3.0), (3, 4.0), (4, 9.0)):
        deadlines.add(key, deadline_s)
    assert deadlines.next_s() == 3.0
    assert deadlines.expire(2.9) == []
    assert deadlines.expire(5.0) == [2, 3, 1]
    assert deadlines.expire(5.0) == []
    assert (len(deadlines), deadlines.next_s()) == (1, 9.0)


def test_discarded_keys_do_not_expire() -> None:
    deadlines = Deadlines[int]()
    deadlines.add(1, 1.0)
    deadlines.add(2, 2.0)
    deadlines.discard(1)
    deadlines.discard(7)
    assert deadlines.next_s() == 2.0
    assert deadlines.expire(10.0) == [2]
    assert deadlines.next_s() == inf


def test_key_that_is_used_again_has_its_new_deadline() -> None:
    deadlines = Deadlines[int]()
    deadlines.add(1, 1.0)
    deadlines.discard(1)
    deadlines.add(1, 5.0)
    assert deadlines.next_s() == 5.0
    assert deadlines.expire(4.0) == []
    assert deadlines.expire(5.0) == [1]


def test_discarded_deadlines_do_not_pile_up() -> None:
    deadlines = Deadlines[int]()
    deadlines.add(0, 0.0)  # on top for ever
    for key in range(1, 10_000):
        deadlines.add(key, float(key))
        deadlines.discard(key)
    assert len(deadlines) == 1
    assert len(deadlines._heap) <= SLACK + 4


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("discard"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("expire"), st.just(0), st.integers(0, 20)),
    )
)


@settings(max_examples=200, derandomize=True)
@given(STEPS)
def test_a_dictionary_does_the_same(steps: list[tuple[str, int, int]]) -> None:
    deadlines, plain = Deadlines[int](), dict[int, int]()
    for action, key, at_s in steps:
        if action == "add" and key not in plain:
            deadlines.add(key, at_s)
            plain[key] = at_s
        elif action == "discard":
            deadlines.discard(key)
            plain.pop(key, None)
        elif action == "expire":
            due = sorted(
                (deadline_s, key) for key, deadline_s in plain.items() if deadline_s <= at_s
            )
            assert deadlines.expire(at_s) == [key for _, key in due]
            for _, expired in due:
                del plain[expired]
        assert deadlines.next_s() == min(plain.values(), default=inf)
        assert len(deadlines) == len(plain)
