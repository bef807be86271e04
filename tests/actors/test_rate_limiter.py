"""Permits: what schedulers see of the rate limiter."""

from __future__ import annotations

import pytest

from tritrio.actors.rate_limiter import Permit, RateLimiter
from tritrio.protocol.errors import RequestError
from tritrio.protocol.pb import inference as pb


def group_of(count: int, priority: int = 0) -> pb.ModelInstanceGroup:
    resources = [pb.ModelRateLimiterResource(name="R", count=count)]
    return pb.ModelInstanceGroup(
        kind=pb.ModelInstanceGroupKind.CPU,
        rate_limiter=pb.ModelRateLimiter(resources=resources, priority=priority),
    )


class Instances:
    """Permits by name, and the names of those told that they are granted."""

    def __init__(self, *names: str, **capacities: int) -> None:
        self.told: list[str] = []
        self.limiter = RateLimiter({(name, None): count for name, count in capacities.items()})
        self.permits = {name: self.register(name) for name in names}

    def register(self, name: str, count: int = 1, priority: int = 0) -> Permit:
        return self.limiter.register(
            name, group_of(count, priority), 0, lambda: self.told.append(name)
        )


def test_a_permit_that_had_to_wait_is_told_and_one_granted_at_once_is_not() -> None:
    instances = Instances("a", "b")
    a, b = instances.permits.values()
    assert a.ask() is True
    assert b.ask() is False
    assert (a.granted, b.granted, instances.told) == (True, False, [])
    a.release()
    assert (a.granted, b.granted, instances.told) == (False, True, ["b"])
    b.release()
    b.release()
    assert instances.told == ["b"]


def test_a_permit_that_asks_again_competes_for_what_it_gives_back() -> None:
    instances = Instances()
    a, b = instances.register("a"), instances.register("b", priority=2)
    assert a.ask() is True
    assert b.ask() is False
    assert a.ask() is False  # b has executed less
    assert instances.told == ["b"]
    assert (a.turn, b.turn) == (1, 2)
    assert b.ask() is False
    assert instances.told == ["b", "a"]
    assert a.ask() is False  # both have 2, and b has waited longer
    assert instances.told == ["b", "a", "b"]


def test_withdrawing_and_closing_let_others_go_and_may_come_twice() -> None:
    instances = Instances("a", "b", "c")
    a, b, c = instances.permits.values()
    a.ask()
    b.ask()
    c.ask()
    b.withdraw()
    a.withdraw()
    assert instances.told == ["c"]
    assert a.ask() is False
    c.close()
    assert instances.told == ["c", "a"]
    assert c.granted is False
    c.close()
    c.withdraw()
    c.release()
    assert a.granted


def test_whoever_was_closed_by_another_that_was_told_is_not_told() -> None:
    instances = Instances(R=2)
    hold = instances.register("hold", 2)
    second = instances.register("second")
    first = instances.limiter.register("first", group_of(1), 0, second.close)
    assert hold.ask() is True
    assert first.ask() is False
    assert second.ask() is False
    hold.release()
    assert first.granted
    assert instances.told == []


def test_a_larger_need_brings_more_and_waiters_are_told() -> None:
    instances = Instances("a", "b")
    for permit in instances.permits.values():
        permit.ask()
    instances.register("big", 2)
    assert instances.told == ["b"]


def test_less_than_an_instance_needs_is_an_error() -> None:
    with pytest.raises(RequestError) as caught:
        Instances(R=1).register("m_0", 2)
    assert caught.value.message == (
        "instance 'm_0' needs resource 'R' of the CPU: expected a configured count of at least 2, "
        "got 1"
    )


def test_a_group_without_a_rate_limiter_never_waits() -> None:
    limiter = RateLimiter({})
    permit = limiter.register("m_0", pb.ModelInstanceGroup(), 0, lambda: None)
    assert permit.ask() is True
    assert permit.ask() is True
    assert permit.turn == 2
