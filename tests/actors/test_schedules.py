"""A thousand random schedules: whatever happens, every request is answered once, with its rows."""

from __future__ import annotations

from dataclasses import dataclass

import trio
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.builders import Served, model_config, serving
from tests.support.limits import TICK_S
from tests.support.schedules import run_virtually
from tritrio.actors.batcher import Batcher
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.pb import inference as pb

ROWS_MAX = 4


@dataclass(frozen=True)
class Client:
    """One request: when it comes, what it brings, and when its client goes away (None: never)."""

    arrives_ticks: int
    rows: int
    width: int
    timeout_ticks: int
    priority: int
    leaves_ticks: int | None


@dataclass(frozen=True)
class Plan:
    """A model, its instances, and its clients."""

    clients: list[Client]
    instance_ticks: list[int]
    delay_ticks: int
    timeout_ticks: int
    queue_size: int
    preferred: list[int]
    ordered: bool
    delays: bool
    stop_ticks: int
    drain_ticks: int
    deadly: bool


TICKS = st.integers(0, 64)
CLIENTS = st.builds(
    Client,
    arrives_ticks=TICKS,
    rows=st.integers(1, ROWS_MAX),
    width=st.integers(1, 2),
    timeout_ticks=st.just(0) | TICKS,
    priority=st.integers(0, 3),
    leaves_ticks=st.none() | st.none() | TICKS,
)
PLANS = st.builds(
    Plan,
    clients=st.lists(CLIENTS, min_size=1, max_size=16),
    instance_ticks=st.lists(TICKS, min_size=1, max_size=3),
    delay_ticks=st.just(0) | TICKS,
    timeout_ticks=st.just(0) | TICKS,
    queue_size=st.just(0) | st.integers(1, 4),
    preferred=st.lists(st.integers(1, ROWS_MAX), max_size=2),
    ordered=st.booleans(),
    delays=st.booleans(),
    stop_ticks=st.integers(0, 256),
    drain_ticks=st.integers(0, 64),
    deadly=st.integers(0, 7).map(lambda chance: chance == 0),
)


def config_of(plan: Plan) -> pb.ModelConfig:
    action = pb.ModelQueuePolicyTimeoutAction
    batching = pb.ModelDynamicBatching(
        preferred_batch_size=plan.preferred,
        max_queue_delay_microseconds=microseconds(plan.delay_ticks),
        preserve_ordering=plan.ordered,
        priority_levels=0 if plan.ordered else 2,
        default_priority_level=0 if plan.ordered else 2,
        default_queue_policy=pb.ModelQueuePolicy(
            timeout_action=action.DELAY if plan.delays and not plan.ordered else action.REJECT,
            default_timeout_microseconds=microseconds(plan.timeout_ticks),
            allow_timeout_override=True,
            max_queue_size=plan.queue_size,
        ),
    )
    return model_config(
        max_batch_size=ROWS_MAX, instances=len(plan.instance_ticks), batching=batching
    )


def microseconds(ticks: int) -> int:
    return ticks * 15625 // 16


async def act(client: Client, number: int, served: Served, outcomes: dict[int, str]) -> None:
    """Be one client, and note how its request ended."""
    await trio.sleep(client.arrives_ticks * TICK_S)
    try:
        reply = served.submit(
            number,
            rows=client.rows,
            shape=(client.width,),
            timeout_us=microseconds(client.timeout_ticks),
            priority=client.priority,
        )
    except RequestError as error:
        outcomes[number] = error.reason.value
        return
    patience_s = trio.current_time()
    patience_s += 10_000 if client.leaves_ticks is None else client.leaves_ticks * TICK_S
    with trio.move_on_at(patience_s) as patience:
        response = await reply.receive()
    assert number not in outcomes
    if patience.cancelled_caught:
        reply.close()
        outcomes[number] = "left"
        return
    assert response.final
    assert response.id == str(number)
    assert reply.done
    assert not reply._responses, "one response a request"
    if response.error is None:
        assert response.outputs[0].array.tolist() == [[number] * client.width] * client.rows
        outcomes[number] = "success"
    else:
        outcomes[number] = response.error.reason.value
        assert response.error.code in {ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL}
    reply.close()


async def scenario(plan: Plan) -> None:
    outcomes: dict[int, str] = {}
    ticks = {f"model_{index}": ticks for index, ticks in enumerate(plan.instance_ticks)}
    async with (
        trio.open_nursery() as nursery,
        serving(
            config_of(plan),
            seconds=lambda place, _: ticks[place.name] * TICK_S,
            drain_s=plan.drain_ticks * TICK_S,
        ) as served,
    ):
        if plan.deadly:
            served.devices.deadly.add("0")
        for number, client in enumerate(plan.clients):
            nursery.start_soon(act, client, number, served, outcomes)
        await trio.sleep(plan.stop_ticks * TICK_S)
    check(plan, served, outcomes)


def check(plan: Plan, served: Served, outcomes: dict[int, str]) -> None:
    """Every request ended once, is counted once, and nothing is left."""
    count = len(plan.clients)
    assert sorted(outcomes) == list(range(count))
    executed = [number for ids in served.backend.batches for number in ids]
    assert len(executed) == len(set(executed))
    assert all(rows <= ROWS_MAX for rows in served.backend.rows)
    for ids in served.backend.batches:
        assert len({plan.clients[int(number)].width for number in ids}) == 1
    statistics = served.version.statistics
    ended = list(outcomes.values())
    left = ended.count("left")
    assert statistics.pending_count == 0
    assert statistics.success.count + statistics.fail.count == count
    # A client may leave in the very turn in which its response is sent.
    assert ended.count("success") <= statistics.success.count <= ended.count("success") + left
    rejected = statistics.failures[FailureReason.REJECTED]
    assert ended.count("REJECTED") <= rejected <= ended.count("REJECTED") + left
    if not plan.deadly:
        assert statistics.failures[FailureReason.BACKEND] == 0
    batcher = served.model._scheduler
    assert isinstance(batcher, Batcher)
    assert len(batcher._policy) == 0
    order = batcher._completion._order
    assert order is None or len(order) == 0
    assert all(device.stopped for device in served.devices.made)


async def cancelled_scenario(checkpoints: int, count: int) -> None:
    with trio.CancelScope() as scope:
        batching = pb.ModelDynamicBatching()
        config = model_config(max_batch_size=2, instances=2, batching=batching)
        async with serving(config) as served:
            replies = [served.submit(number) for number in range(count)]
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    for reply in replies:
        assert (await reply.receive()).final
    assert served.version.statistics.pending_count == 0
    assert all(device.stopped for device in served.devices.made)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(checkpoints=st.integers(0, 8), count=st.integers(1, 6), schedule=st.random_module())
def test_a_cancellation_at_any_point_leaves_no_request_without_an_answer(
    checkpoints: int, count: int, schedule: object
) -> None:
    run_virtually(lambda: cancelled_scenario(checkpoints, count))


@settings(
    max_examples=1000,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(plan=PLANS, schedule=st.random_module())
def test_every_request_is_answered_once_with_its_own_rows(plan: Plan, schedule: object) -> None:
    run_virtually(lambda: scenario(plan))
