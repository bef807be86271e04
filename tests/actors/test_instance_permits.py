"""How a scheduler uses its permits: whoever has more to do competes, whoever has not lets go."""

from __future__ import annotations

from tritrio.actors._instance_permits import InstancePermits
from tritrio.actors.rate_limiter import Permit, RateLimiter
from tritrio.protocol.pb import inference as pb


class Model:
    """One model with instances that all need the same resource, and a scheduler that is woken."""

    def __init__(self, limiter: RateLimiter, *, instances: int = 1, priority: int = 1) -> None:
        resource = pb.ModelRateLimiterResource(name="R", count=1)
        group = pb.ModelInstanceGroup(
            name="group",
            kind=pb.ModelInstanceGroupKind.CPU,
            rate_limiter=pb.ModelRateLimiter(resources=[resource], priority=priority),
        )
        self.woken = 0
        self.raw: list[Permit] = [
            limiter.register(f"group_{index}", group, 0, self._wake) for index in range(instances)
        ]
        self.permits = InstancePermits(dict(enumerate(self.raw)))
        for index in range(instances):
            self.permits.ended(index)

    def _wake(self) -> None:
        self.woken += 1

    def execute(self, index: int) -> bool:
        if self.permits.choose([index]) is None:
            return False
        self.permits.executes(index)
        return True


def test_an_instance_waits_for_another_model_and_is_woken() -> None:
    limiter = RateLimiter({})
    first, second = Model(limiter), Model(limiter)
    assert first.execute(0)
    assert not second.execute(0)
    assert second.woken == 0
    first.permits.ended(0)
    first.permits.let_go([0])
    assert second.woken == 1
    assert second.execute(0)


def test_with_more_to_do_both_take_turns_by_priority() -> None:
    limiter = RateLimiter({})
    often, seldom = Model(limiter), Model(limiter, priority=2)
    turns = ""
    assert often.execute(0)
    assert not seldom.execute(0)
    running = often
    for _ in range(12):
        turns += "o" if running is often else "s"
        running.permits.ended(0)
        other = seldom if running is often else often
        running = running if running.execute(0) else other
        assert running is not other or other.execute(0)
    assert turns == "ososoosoosoo"


def test_only_one_of_several_idle_instances_asks_when_one_is_granted() -> None:
    limiter = RateLimiter({("R", None): 2})
    model, other = Model(limiter, instances=2), Model(limiter)
    assert model.permits.choose([0, 1]) == 0
    model.permits.executes(0)
    assert other.execute(0)
    model.permits.let_go([1])
    assert [permit.granted for permit in model.raw] == [True, False]


def test_a_grant_that_is_not_used_goes_to_the_next() -> None:
    limiter = RateLimiter({})
    first, second = Model(limiter), Model(limiter)
    assert first.permits.choose([0]) == 0
    assert not second.execute(0)
    first.permits.let_go([0])
    assert second.woken == 1
    assert second.execute(0)


def test_what_a_dead_instance_held_goes_to_the_next() -> None:
    limiter = RateLimiter({})
    first, second = Model(limiter), Model(limiter)
    assert first.execute(0)
    assert not second.execute(0)
    first.permits.gone(0)
    assert second.woken == 1
    assert second.execute(0)
