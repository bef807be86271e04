"""Who executes next, and that everybody does at some time."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from tritrio.actors import _rate_limit_policy
from tritrio.actors._rate_limit_policy import (
    CPU,
    DUE_AFTER,
    GLOBAL,
    Needs,
    Pool,
    RateLimitPolicy,
    needs_of,
    parse_rate_limit_resource,
)
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb import inference as pb

R, S = Pool("R", 0), Pool("S", 0)
Policy = RateLimitPolicy[str]


def policy_of(
    *members: tuple[str, Needs, int], capacities: dict[tuple[str, int | None], int] | None = None
) -> Policy:
    policy = Policy(capacities or {})
    for key, needs, priority in members:
        assert policy.register(key, key, needs, priority) == []
    return policy


def turns(policy: Policy, running: str, count: int) -> str:
    """Who executes one after the other, if each asks again when it has executed."""
    order = []
    for _ in range(count):
        (running,) = policy.ask(running)
        order.append(running)
    return "".join(order)


def granted_in_a_row(policy: Policy, key: str) -> int:
    """How often an instance that executes is granted the next execution, and nobody else is."""
    asks = (policy.ask(key) for _ in range(10 * DUE_AFTER))
    return len(list(itertools.takewhile(lambda granted: granted == [key], asks)))


def refusal(policy: Policy, needs: Needs) -> str:
    with pytest.raises(RequestError) as caught:
        policy.register("x", "m_0", needs, 1)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith("instance 'm_0' needs resource ")
    return caught.value.message.removeprefix("instance 'm_0' needs resource ")


def test_an_instance_without_resources_is_granted_whoever_holds_what() -> None:
    policy = policy_of(("a", {R: 1}, 1), ("b", {R: 1}, 1), ("free", {}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == []
    assert policy.ask("free") == ["free"]


def test_a_waiter_is_granted_when_what_it_needs_is_released() -> None:
    policy = policy_of(("a", {R: 1}, 1), ("b", {R: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == []
    assert not policy.is_granted("b")
    assert policy.release("a") == ["b"]
    assert policy.is_granted("b")
    assert policy.release("a") == []  # it has nothing any more


def test_the_smallest_executions_times_priority_is_next() -> None:
    policy = policy_of(("a", {R: 1}, 1), ("b", {R: 1}, 2))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == []
    assert turns(policy, "a", 9) == "babaabaab"


def test_priority_0_counts_as_1() -> None:
    policy = policy_of(("a", {R: 1}, 0), ("b", {R: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == []
    assert turns(policy, "a", 6) == "bababa"


def test_of_equal_turns_whoever_has_waited_longest_is_next() -> None:
    policy = policy_of(*[(key, {R: 1}, 1) for key in "zyx"], ("hold", {R: 1}, 1))
    assert policy.ask("hold") == ["hold"]
    for key in ("y", "z", "x"):
        assert policy.ask(key) == []
    assert policy.release("hold") == ["y"]
    assert policy.release("y") == ["z"]
    assert policy.release("z") == ["x"]


def test_a_waiter_whose_resources_are_not_free_does_not_hold_up_others() -> None:
    policy = policy_of(("a", {R: 1}, 1), ("both", {R: 1, S: 1}, 1), ("s", {S: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("both") == []
    assert policy.ask("s") == ["s"]


def test_several_are_granted_at_once_if_they_fit() -> None:
    policy = policy_of(("big", {R: 3}, 1), *[(key, {R: 1}, 1) for key in "abcd"])
    assert policy.ask("big") == ["big"]
    assert [policy.ask(key) for key in "abcd"] == [[]] * 4
    assert policy.release("big") == ["a", "b", "c"]


def test_an_ask_that_is_withdrawn_gives_way() -> None:
    policy = policy_of(("a", {R: 1}, 1), ("b", {R: 1}, 1), ("c", {R: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == []
    assert policy.ask("c") == []
    assert policy.withdraw("b") == []
    assert policy.release("a") == ["c"]


def test_a_grant_that_is_withdrawn_is_no_execution() -> None:
    policy = policy_of(("a", {R: 1}, 5), ("b", {R: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.turn("a") == 5
    assert policy.ask("b") == []
    assert policy.withdraw("a") == ["b"]
    assert policy.turn("a") == 0


def test_an_instance_that_is_gone_gives_everything_back() -> None:
    policy = policy_of(("a", {R: 1}, 1), ("b", {R: 1}, 1), ("c", {R: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == []
    assert policy.ask("c") == []
    assert policy.unregister("b") == []
    assert policy.unregister("a") == ["c"]
    assert policy.unregister("c") == []
    assert policy._capacity == policy._used == {}
    assert policy.register("a", "a", {R: 2}, 1) == []  # and the name can come again
    assert policy.ask("a") == ["a"]


def test_without_a_configured_capacity_there_is_what_the_largest_needs() -> None:
    policy = policy_of(("a", {R: 1}, 1), ("b", {R: 1}, 1), ("c", {R: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == []
    assert policy.ask("c") == []
    assert policy.register("big", "big", {R: 2}, 1) == ["b"]  # there is more of it now
    assert policy.unregister("big") == []
    assert policy.release("a") == []  # and less again
    assert policy.release("b") == ["c"]


def test_a_device_has_a_pool_of_its_own_and_so_has_the_cpu() -> None:
    pools = [Pool("R", 0), Pool("R", 1), Pool("R", CPU), Pool("R", GLOBAL)]
    policy = policy_of(*[(str(pool.device), {pool: 1}, 1) for pool in pools])
    for pool in pools:
        assert policy.ask(str(pool.device)) == [str(pool.device)]


@pytest.mark.parametrize(
    ("capacities", "counts"),
    [
        ({("R", None): 2}, {0: 2, 1: 2, CPU: 2, GLOBAL: 2}),
        ({("R", 0): 2}, {0: 2, 1: 1, CPU: 2, GLOBAL: 1}),
        ({("R", 1): 2}, {0: 1, 1: 2, CPU: 1, GLOBAL: 1}),
        ({("R", None): 3, ("R", 1): 2}, {0: 3, 1: 2, CPU: 3, GLOBAL: 3}),
        ({("S", None): 9}, {0: 1, 1: 1, CPU: 1, GLOBAL: 1}),
    ],
)
def test_a_configured_capacity_is_of_one_device_or_of_all(
    capacities: dict[tuple[str, int | None], int], counts: dict[int, int]
) -> None:
    for device, count in counts.items():
        needs = {Pool("R", device): 1}
        policy = policy_of(*[(key, needs, 1) for key in "abcd"], capacities=capacities)
        assert sum(len(policy.ask(key)) for key in "abcd") == count, device


def test_a_configured_capacity_below_what_an_instance_needs_is_an_error() -> None:
    policy = Policy({("R", 0): 2, ("S", None): 0})
    expected = "expected a configured count of at least"
    assert refusal(policy, {Pool("R", 0): 3}) == f"'R' of device 0: {expected} 3, got 2"
    assert refusal(policy, {Pool("R", CPU): 4}) == f"'R' of the CPU: {expected} 4, got 2"
    assert refusal(policy, {Pool("S", GLOBAL): 1}) == f"'S': {expected} 1, got 0"
    assert policy.register("x", "m_0", {Pool("R", 0): 2}, 1) == []  # nothing was left behind


def test_who_needs_much_is_passed_over_by_small_ones_a_limited_number_of_times() -> None:
    policy = policy_of(("big", {R: 2}, 1), ("a", {R: 1}, 1), ("b", {R: 1}, 1), ("s", {S: 1}, 1))
    assert policy.ask("a") == ["a"]
    assert policy.ask("b") == ["b"]
    assert policy.ask("big") == []
    assert granted_in_a_row(policy, "a") == DUE_AFTER
    assert policy.ask("s") == ["s"]  # which needs nothing of what is kept
    assert policy.ask("b") == ["big"]
    assert policy.ask("big") == ["b", "a"]  # b has executed less, and big begins anew
    assert granted_in_a_row(policy, "a") == DUE_AFTER - 2  # they were the first two


def test_grants_of_other_resources_do_not_count_as_passing_over() -> None:
    policy = policy_of(("big", {R: 2}, 1), ("a", {R: 1}, 1), ("b", {R: 1}, 1), ("s", {S: 1}, 1))
    for key in ("a", "b", "big"):
        policy.ask(key)
    for _ in range(DUE_AFTER):
        assert policy.ask("s") == ["s"]
    assert policy.ask("a") == ["a"]


def test_who_has_a_larger_priority_may_be_passed_over_more_often() -> None:
    policy = policy_of(("big", {R: 2}, 3), ("a", {R: 1}, 1), ("b", {R: 1}, 1))
    for key in ("a", "b", "big"):
        policy.ask(key)
    assert granted_in_a_row(policy, "a") == 3 * DUE_AFTER


def test_what_is_kept_for_a_due_waiter_is_not_more_than_it_needs() -> None:
    policy = policy_of(
        ("both", {R: 1, S: 1}, 1),
        ("s", {S: 1}, 1),
        ("a", {R: 1}, 1),
        ("b", {R: 1}, 1),
        capacities={("R", None): 2},
    )
    assert policy.ask("s") == ["s"]
    assert policy.ask("both") == []
    for _ in range(DUE_AFTER + 1):
        assert policy.ask("a") == ["a"]  # one of the two
    assert policy.ask("b") == []
    assert policy.release("s") == ["both"]
    assert policy.release("a") == ["b"]


def test_a_newcomer_does_not_keep_an_old_instance_waiting_until_it_has_caught_up() -> None:
    policy = policy_of(("old", {R: 1}, 1))
    for _ in range(1000):
        assert policy.ask("old") == ["old"]
    policy.register("new", "new", {R: 1}, 1)
    assert policy.ask("new") == []
    assert turns(policy, "old", DUE_AFTER + 2) == ("new" * DUE_AFTER) + "old" + "new"


def test_a_resource_on_the_command_line_with_endless_digits_is_the_same_error() -> None:
    with pytest.raises(ValueError, match="expected <name>:<count>"):
        parse_rate_limit_resource("R:" + "9" * 5000)


def needs() -> st.SearchStrategy[Needs]:
    return st.dictionaries(st.sampled_from([R, S, Pool("T", 0)]), st.integers(1, 3), max_size=3)


@given(st.lists(needs(), min_size=1, max_size=6), st.data())
def test_no_more_is_held_than_there_is_and_nobody_waits_for_nothing(
    all_needs: list[Needs], data: st.DataObject
) -> None:
    policy = policy_of()
    for index, of_one in enumerate(all_needs):
        policy.register(str(index), str(index), of_one, 1)
    capacity = {pool: max(n.get(pool, 0) for n in all_needs) for n in all_needs for pool in n}
    waiting: dict[str, Needs] = {}
    held: dict[str, Needs] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        index = data.draw(st.integers(0, len(all_needs) - 1))
        key = str(index)
        if key in held:
            leave = policy.release if data.draw(st.booleans()) else policy.withdraw
            del held[key]
            granted = leave(key)
        elif key in waiting and data.draw(st.booleans()):
            del waiting[key]
            granted = policy.withdraw(key)
        elif key in waiting:
            continue
        else:
            waiting[key] = all_needs[index]
            granted = policy.ask(key)
        for one in granted:
            held[one] = waiting.pop(one)
        used = sum((Counter(n) for n in held.values()), Counter[Pool]())
        assert all(used[pool] <= capacity[pool] for pool in used)
        assert [key for key in held if not policy.is_granted(key)] == []
        for of_one in waiting.values():  # too few steps here for anybody to become due
            assert any(used[pool] + count > capacity[pool] for pool, count in of_one.items())


Member = tuple[Needs, int]


def waits_s(members: list[Member], durations: Iterator[int], until: int) -> list[tuple[int, int]]:
    """(member, how long it waited) for each ask, where each asks again at once, at times below
    `until`; asks without an answer included."""
    policy = policy_of()
    for index, (of_one, priority) in enumerate(members):
        policy.register(str(index), str(index), of_one, priority)
    ends: list[tuple[int, int, str]] = []
    asked = {str(index): 0 for index in range(len(members))}
    waits: list[tuple[int, int]] = []
    order = itertools.count()

    def start(keys: list[str], now: int) -> None:
        for key in keys:
            waits.append((int(key), now - asked.pop(key)))
            heapq.heappush(ends, (now + next(durations), next(order), key))

    for key in list(asked):
        start(policy.ask(key), 0)
    while ends[0][0] < until:
        now, _, key = heapq.heappop(ends)
        asked[key] = now
        start(policy.ask(key), now)
    return waits + [(int(key), until - since) for key, since in asked.items()]


@given(
    st.lists(st.tuples(needs(), st.integers(1, 2)), min_size=2, max_size=6),
    st.lists(st.integers(1, 8), min_size=1, max_size=20),
)
def test_everybody_gets_its_turn_however_long_the_others_take(
    members: list[Member], durations: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rate_limit_policy, "DUE_AFTER", 2)
        waits = waits_s(members, itertools.cycle(durations), until=2000)
    longest, count = max(durations), len(members)
    for index, wait in waits:
        priority = members[index][1]
        assert wait <= (2 * priority + 1) * (count + 1) * longest
        if not members[index][0]:
            assert wait == 0


def test_what_an_instance_needs_is_of_its_device_or_of_all() -> None:
    resource = pb.ModelRateLimiterResource
    resources = [resource(name="R", count=2), resource(name="G", count=3, global_=True)]
    limiter = pb.ModelRateLimiter(resources=resources)
    for kind, device in (("GPU", 1), ("CPU", CPU), ("MODEL", CPU)):
        group = pb.ModelInstanceGroup(kind=pb.ModelInstanceGroupKind[kind], rate_limiter=limiter)
        assert needs_of(group, 1) == {Pool("R", device): 2, Pool("G", GLOBAL): 3}
    assert needs_of(pb.ModelInstanceGroup(), 0) == {}


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("R:4", (("R", None), 4)),
        ("R1:4:0", (("R1", 0), 4)),
        ("a b:0:17", (("a b", 17), 0)),
        ("R:4294967295", (("R", None), 4294967295)),
    ],
)
def test_a_resource_on_the_command_line(text: str, item: object) -> None:
    assert parse_rate_limit_resource(text) == item


@pytest.mark.parametrize(
    "text",
    ["", "R", ":1", "R:", "R:-1", "R:1:", "R:1:x", "R:1:2:3", "R:1.5", "R:²", "R:4294967296"],
)
def test_a_resource_on_the_command_line_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected <name>:<count>") as caught:
        parse_rate_limit_resource(text)
    assert str(caught.value) == (
        f"expected <name>:<count>[:<device>] with whole numbers, got '{text}'"
    )
