"""When repositories are looked at, and which changes have settled."""

from __future__ import annotations

from pathlib import Path

from tritrio.actors._poll_policy import QUICK_LOOKS_MAX, Look, PollPolicy, look_of
from tritrio.actors._repository_policy import Fingerprint, ModelFiles
from tritrio.protocol.errors import invalid_argument


def look(shared: str = "s") -> Look:
    return ((Path("r/a"), Fingerprint(shared)),)


def policy(**first: Look) -> PollPolicy:
    made = PollPolicy(15.0)
    made.start(first)
    return made


def test_a_look_without_a_change_is_followed_by_the_next_interval() -> None:
    polls = policy(a=look())
    assert polls.next_look_s(0.0) == 15.0
    assert polls.see({"a": look()}, 15.25) == []
    assert polls.next_look_s(15.25) == 30.25


def test_a_change_counts_once_it_was_seen_twice_a_second_apart() -> None:
    polls = policy(a=look())
    assert polls.see({"a": look("t")}, 15.0) == []
    assert polls.next_look_s(15.5) == 16.5
    assert polls.see({"a": look("t")}, 15.75) == []
    assert polls.see({"a": look("t")}, 16.5) == ["a"]
    assert polls.settled("a", look("t"), 16.5)
    assert polls.next_look_s(16.5) == 31.5
    assert polls.see({"a": look("t")}, 31.5) == []


def test_models_that_come_and_go_are_changes() -> None:
    polls = policy(a=look())
    assert polls.see({"b": look()}, 15.0) == []
    assert polls.see({"b": look()}, 16.0) == ["a", "b"]
    assert polls.settled("a", (), 16.0)
    assert polls.settled("b", look(), 16.0)
    assert polls.see({"b": look()}, 31.0) == []


def test_what_was_gone_for_a_moment_is_no_change() -> None:
    polls = policy(a=look())
    assert polls.see({}, 15.0) == []
    assert polls.see({"a": look()}, 16.0) == []
    assert polls.next_look_s(16.0) == 31.0
    assert polls.see({}, 31.0) == []
    assert polls.see({}, 32.0) == ["a"]


def test_what_changes_at_every_look_is_never_loaded_and_looked_at_a_bounded_number_of_times() -> (
    None
):
    polls = policy()
    now_s = polls.next_look_s(0.0)
    times_s = []
    for number in range(2 * (QUICK_LOOKS_MAX + 1)):
        times_s.append(now_s)
        assert polls.see({"a": look(str(number))}, now_s) == []
        now_s = polls.next_look_s(now_s)
    quick = list(range(QUICK_LOOKS_MAX + 1))
    assert times_s == [15.0 + each for each in quick] + [
        30.0 + QUICK_LOOKS_MAX + each for each in quick
    ]


def test_one_model_that_keeps_changing_does_not_hold_up_another() -> None:
    polls = policy()
    assert polls.see({"a": look("0"), "b": look()}, 15.0) == []
    assert polls.see({"a": look("1"), "b": look()}, 16.0) == ["b"]


def test_what_changes_between_the_look_and_the_scan_has_to_settle_again() -> None:
    polls = policy()
    polls.see({"a": look("0")}, 15.0)
    assert polls.see({"a": look("0")}, 16.0) == ["a"]
    assert not polls.settled("a", look("1"), 16.25)
    assert polls.see({"a": look("1")}, 17.0) == []
    assert polls.see({"a": look("1")}, 17.25) == ["a"]
    assert polls.settled("a", look("1"), 17.25)


def test_a_model_in_another_place_or_with_another_fault_looks_different() -> None:
    here, there = (ModelFiles("a", Path(each), {}, fingerprint=Fingerprint("s")) for each in "rq")
    assert look_of([here]) != look_of([there])
    assert look_of([here]) == look_of([here])
    first, second, again = (
        ModelFiles("a", Path("r"), {}, fault=invalid_argument(each)) for each in ("1", "2", "1")
    )
    assert look_of([first]) != look_of([second])
    assert look_of([first]) == look_of([again])
    assert look_of([]) == ()
