"""Pings, ages and strikes: numbers in, verdicts out."""

from __future__ import annotations

import pytest

from tritrio.actors._keep_alive_policy import (
    AGE_JITTER,
    IDLE_PING_INTERVAL_S,
    GrpcKeepAlive,
    KeepAliveAction,
    KeepAlivePolicy,
)

NOTHING, PING, CUT = KeepAliveAction.NOTHING, KeepAliveAction.PING, KeepAliveAction.CUT
RETIRE, EXPIRE = KeepAliveAction.RETIRE, KeepAliveAction.EXPIRE


def actions(
    policy: KeepAlivePolicy,
    until_s: int,
    *,
    heard_at: tuple[int, ...] = (),
    sent_at: tuple[int, ...] = (),
    has_calls: bool = True,
) -> list[tuple[int, KeepAliveAction]]:
    """What there is to do with a tick every second, and when; a ping is sent at once."""
    done, heard, sent = [], 0, 0
    for now_s in range(1, until_s + 1):
        heard += now_s in heard_at
        sent += now_s in sent_at
        action = policy.tick(now_s, heard=heard, sent=sent, has_calls=has_calls)
        if action is not NOTHING:
            done.append((now_s, action))
        sent += action is PING
    return done


def policy(*, jitter: float = 0.0, **settings: float) -> KeepAlivePolicy:
    return KeepAlivePolicy(GrpcKeepAlive(**settings), 0.0, jitter=jitter)  # type: ignore[arg-type]


def test_client_that_is_silent_is_pinged_and_cut_if_it_does_not_answer() -> None:
    assert actions(policy(time_s=10, timeout_s=3), 13) == [(10, PING), (13, CUT)]


def test_anything_that_is_heard_is_an_answer_and_starts_the_time_again() -> None:
    under_test = policy(time_s=10, timeout_s=3, pings_without_data_max=0)
    done = actions(under_test, 40, heard_at=(4, 16, 28))
    assert done == [(14, PING), (26, PING), (38, PING)]


def test_connection_without_calls_is_pinged_only_where_that_is_permitted() -> None:
    assert actions(policy(time_s=10), 40, has_calls=False) == []
    permitted = policy(time_s=10, timeout_s=3, permit_without_calls=True)
    assert actions(permitted, 13, has_calls=False) == [(10, PING), (13, CUT)]


def test_pings_in_a_row_are_limited_until_something_else_is_sent() -> None:
    under_test = policy(time_s=10, timeout_s=3, pings_without_data_max=2)
    heard_at = (11, 22, 41, 52)
    done = actions(under_test, 100, heard_at=heard_at, sent_at=(40,))
    assert done == [(10, PING), (21, PING), (40, PING), (51, PING)]


def test_quiet_stream_is_pinged_every_two_hours_by_default_and_never_cut_if_it_answers() -> None:
    two_hours = 7200
    done = actions(policy(), 4 * two_hours, heard_at=(two_hours + 1, 2 * two_hours + 2))
    assert done == [(two_hours, PING), (2 * two_hours + 1, PING)]


@pytest.mark.parametrize(("jitter", "age_s"), [(0.0, 1000), (-1.0, 900), (1.0, 1100), (0.5, 1050)])
def test_old_connection_is_told_to_go_and_its_calls_have_the_grace(
    jitter: float, age_s: int
) -> None:
    assert AGE_JITTER == 0.1
    under_test = policy(connection_age_max_s=1000, connection_age_grace_s=7, jitter=jitter)
    assert actions(under_test, age_s + 8) == [
        (age_s, RETIRE),
        (age_s + 7, EXPIRE),
        (age_s + 8, EXPIRE),
    ]


def test_calls_of_an_old_connection_have_all_the_time_where_there_is_no_grace() -> None:
    assert actions(policy(connection_age_max_s=100), 5000) == [(100, RETIRE)]
    assert actions(policy(), 5000) == []


def test_old_connection_is_still_pinged() -> None:
    under_test = policy(connection_age_max_s=5, time_s=10, timeout_s=3)
    assert actions(under_test, 13) == [(5, RETIRE), (10, PING), (13, CUT)]


def pings(
    policy: KeepAlivePolicy,
    *times_s: float,
    has_calls: bool = False,
    useful_before: tuple[float, ...] = (),
) -> list[bool]:
    """Whether each ping is one too many."""
    first = times_s[:1]
    return [
        policy.client_pinged(
            now_s, repeated=now_s not in first + useful_before, has_calls=has_calls
        )
        for now_s in times_s
    ]


def test_fourth_ping_of_an_idle_client_is_one_too_many_by_default() -> None:
    assert pings(policy(), 10, 20, 30, 40) == [False, False, False, True]
    seldom = [number * IDLE_PING_INTERVAL_S for number in range(1, 10)]
    assert pings(policy(), *seldom) == [False] * 9
    often = [number * (IDLE_PING_INTERVAL_S - 1) for number in range(1, 5)]
    assert pings(policy(), *often) == [False, False, False, True]


@pytest.mark.parametrize("which", ["calls", "permission"])
def test_client_with_calls_or_permission_may_ping_every_five_minutes(which: str) -> None:
    seldom = [number * 300 for number in range(1, 10)]
    often = [number * 299 for number in range(1, 5)]
    for times_s, verdicts in ((seldom, [False] * 9), (often, [False, False, False, True])):
        under_test = policy(permit_without_calls=which == "permission")
        assert pings(under_test, *times_s, has_calls=which == "calls") == verdicts


def test_pings_between_which_something_is_sent_are_never_too_many() -> None:
    times_s = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    assert pings(policy(), *times_s, useful_before=(4.0, 7.0)) == [False] * 7


def test_strikes_are_counted_against_the_setting_and_0_is_no_limit() -> None:
    assert pings(policy(ping_strikes_max=1), 1, 2, 3) == [False, False, True]
    assert pings(policy(ping_strikes_max=0), *range(1, 1000)) == [False] * 999
    assert pings(policy(ping_interval_min_s=10), 1, 11, 21, 31, has_calls=True) == [False] * 4
