"""Random configurations, arrivals and departures: what batching promises holds at every instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.builders import Served, model_config, serving
from tests.support.limits import TICK_S
from tests.support.schedules import run_virtually
from tritrio.backends.base import Batch
from tritrio.protocol.errors import FailureReason
from tritrio.protocol.pb import inference as pb

ROWS_MAX = 4
LEVELS = 3


@dataclass(frozen=True)
class Client:
    """One request: when it comes, what it brings, and when its client goes away (None: never)."""

    arrives_ticks: int
    rows: int
    width: int
    priority: int
    leaves_ticks: int | None


@dataclass(frozen=True)
class Plan:
    """A model, its instances, and its clients in the order in which they come."""

    clients: list[Client]
    instance_ticks: list[int]
    batches: bool
    delay_ticks: int
    timeout_ticks: int
    queue_size: int
    preferred: list[int]
    levels: int
    ordered: bool
    delays: bool
    ragged: bool


TICKS = st.integers(0, 32)
CLIENTS = st.builds(
    Client,
    arrives_ticks=TICKS,
    rows=st.integers(1, ROWS_MAX),
    width=st.integers(1, 3),
    priority=st.integers(0, LEVELS + 1),
    leaves_ticks=st.none() | st.none() | TICKS,
)
PLANS = st.builds(
    Plan,
    clients=st.lists(CLIENTS, min_size=1, max_size=24).map(
        lambda clients: sorted(clients, key=lambda client: client.arrives_ticks)
    ),
    instance_ticks=st.lists(TICKS, min_size=1, max_size=3),
    batches=st.booleans() | st.just(True),
    delay_ticks=st.just(0) | TICKS,
    timeout_ticks=st.just(0) | TICKS,
    queue_size=st.just(0) | st.integers(1, 5),
    preferred=st.lists(st.integers(1, ROWS_MAX), max_size=2),
    levels=st.sampled_from([0, LEVELS]),
    ordered=st.booleans(),
    delays=st.booleans(),
    ragged=st.booleans(),
)


def microseconds(ticks: int) -> int:
    return ticks * 15625 // 16


def config_of(plan: Plan) -> pb.ModelConfig:
    action = pb.ModelQueuePolicyTimeoutAction
    strict = plan.ordered and not plan.levels
    batching = pb.ModelDynamicBatching(
        preferred_batch_size=plan.preferred,
        max_queue_delay_microseconds=microseconds(plan.delay_ticks),
        preserve_ordering=strict,
        priority_levels=plan.levels,
        default_priority_level=plan.levels and 2,
        default_queue_policy=pb.ModelQueuePolicy(
            timeout_action=action.DELAY if plan.delays and not strict else action.REJECT,
            default_timeout_microseconds=microseconds(plan.timeout_ticks),
            max_queue_size=plan.queue_size,
        ),
    )
    return model_config(
        max_batch_size=ROWS_MAX,
        instances=len(plan.instance_ticks),
        batching=batching if plan.batches else None,
        ragged=plan.ragged,
    )


class Observer:
    """What is seen from outside: outcomes, and what came to the devices, when."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outcomes: dict[int, str] = {}
        self.begun: list[tuple[float, list[int]]] = []
        self.served: Served | None = None

    def seconds(self, place: Any, batch: Batch) -> float:
        numbers = [int(request.id) for request in batch.requests]
        self.begun.append((trio.current_time(), numbers))
        self.check_limits()
        index = int(place.name.rsplit("_", 1)[1])
        return self.plan.instance_ticks[index] * TICK_S

    def check_limits(self) -> None:
        """No level holds more than it may, at any instant."""
        assert self.served is not None
        batcher: Any = self.served.model._scheduler
        for level in batcher.explain()["rules"]["levels"]:
            assert level["queued"] + level["delayed"] <= level["max_queue_size"]
            if self.plan.batches and self.plan.queue_size:
                assert level["max_queue_size"] == self.plan.queue_size

    async def act(self, number: int, client: Client) -> None:
        """Be one client, and note how its request ended."""
        assert self.served is not None
        await trio.sleep_until(self.served.start_s + client.arrives_ticks * TICK_S)
        reply = self.served.submit(
            number, rows=client.rows, shape=(client.width,), priority=client.priority
        )
        patience_s = trio.current_time()
        patience_s += 10_000 if client.leaves_ticks is None else client.leaves_ticks * TICK_S
        with trio.move_on_at(patience_s) as patience:
            response = await reply.receive()
        self.check_limits()
        assert number not in self.outcomes
        if patience.cancelled_caught:
            self.outcomes[number] = "left"
        else:
            assert response.final
            assert response.id == str(number)
            assert not reply._responses, "one response a request"
            if response.error is None:
                rows = response.outputs[0].array.tolist()
                assert rows == [[number] * client.width] * client.rows
                self.outcomes[number] = "success"
            else:
                assert response.error.reason is FailureReason.REJECTED
                self.outcomes[number] = "refused"
        reply.close()

    def check_order(self) -> None:
        """Equals never overtake each other, and with preserved order nobody does."""
        plan = self.plan
        if plan.batches and self.delays:
            return
        groups: dict[tuple[int, int], list[tuple[float, int]]] = {}
        for begun_s, numbers in self.begun:
            for number in numbers:
                client = plan.clients[number]
                level = client.priority if 1 <= client.priority <= LEVELS else 2
                any_shape = plan.ragged or not plan.batches or self.strict
                group = (
                    level if plan.levels and plan.batches else 0,
                    0 if any_shape else client.width,
                )
                groups.setdefault(group, []).append((begun_s, client.arrives_ticks))
        for served in groups.values():
            arrivals = [arrived for _, arrived in sorted(served)]
            assert arrivals == sorted(arrivals)

    def check_patience(self) -> None:
        """Without priorities nothing newer leaves while something older has waited its delay."""
        plan, start_s = self.plan, self.served.start_s if self.served else 0.0
        if plan.batches and (plan.levels or self.delays):
            return
        arrived = [client.arrives_ticks for client in plan.clients]
        begun = [(begun_s, number) for begun_s, numbers in self.begun for number in numbers]
        for leaves_s, numbers in self.begun:
            oldest = min(arrived[number] for number in numbers)
            for begun_s, number in begun:
                ripe_s = start_s + (arrived[number] + plan.delay_ticks) * TICK_S
                overtaken = arrived[number] < oldest and begun_s > leaves_s > ripe_s
                assert not overtaken

    @property
    def strict(self) -> bool:
        return self.plan.ordered and not self.plan.levels

    @property
    def delays(self) -> bool:
        return self.plan.delays and not self.strict and self.plan.timeout_ticks > 0


async def scenario(plan: Plan) -> None:
    observer = Observer(plan)
    async with (
        trio.open_nursery() as nursery,
        serving(config_of(plan), seconds=observer.seconds) as served,
    ):
        observer.served = served
        for number, client in enumerate(plan.clients):
            nursery.start_soon(observer.act, number, client)
        await trio.sleep(10_000 * TICK_S)
    assert sorted(observer.outcomes) == list(range(len(plan.clients)))
    executed = [number for _, numbers in observer.begun for number in numbers]
    assert len(executed) == len(set(executed))
    for _, numbers in observer.begun:
        assert sum(plan.clients[number].rows for number in numbers) <= ROWS_MAX
        assert plan.batches or len(numbers) == 1
        assert plan.ragged or len({plan.clients[number].width for number in numbers}) == 1
    observer.check_order()
    observer.check_patience()
    if not ((plan.timeout_ticks and plan.batches) or plan.queue_size):
        assert "refused" not in observer.outcomes.values()
    batcher: Any = served.model._scheduler
    assert len(batcher._policy) == 0
    assert batcher._policy._queue.rows == 0
    assert served.version.statistics.pending_count == 0


@settings(
    max_examples=500,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(plan=PLANS, schedule=st.random_module())
def test_whatever_comes_is_answered_once_in_order_and_within_every_limit(
    plan: Plan, schedule: object
) -> None:
    run_virtually(lambda: scenario(plan))
