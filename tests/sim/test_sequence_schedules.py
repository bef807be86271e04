"""Random schedules of sequences: whatever happens, no sequence sees anything of another one."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import trio
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.limits import TICK_S
from tests.support.remembering import answered, direct, oldest, sequence_config
from tests.support.schedules import run_virtually
from tests.support.sequences import Sequences, sequences
from tritrio.actors.reply import Reply
from tritrio.backends.base import Batch
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.pb import inference as pb

IDS = (1, 2, "one", "two")


@dataclass(frozen=True)
class Step:
    """One request: how long after the one before it comes, and when its client goes away."""

    ticks: int
    answered_before: bool
    flags: str
    timeout_ticks: int
    leaves_ticks: int | None


@dataclass(frozen=True)
class Client:
    """Who sends the requests of one sequence, in order; several may use one id."""

    sequence_id: int | str
    width: int
    steps: list[Step]


@dataclass(frozen=True)
class Plan:
    """A model, its instances, and its clients."""

    clients: list[Client]
    direct: bool
    instance_ticks: list[int]
    max_batch_size: int
    candidates: int
    delay_ticks: int
    utilization: float
    preferred: list[int]
    ordered: bool
    idle_ticks: int
    iterative: bool
    implicit: bool
    decoupled: bool
    again: list[int]
    faulty: int
    deadly: int
    stop_ticks: int
    drain_ticks: int


TICKS = st.integers(0, 64)
STEPS = st.builds(
    Step,
    ticks=st.just(0) | TICKS,
    answered_before=st.booleans(),
    flags=st.sampled_from(["", "", "", ">", ".", ">."]),
    timeout_ticks=st.just(0) | TICKS,
    leaves_ticks=st.none() | st.none() | st.none() | TICKS,
)
CLIENTS = st.builds(
    Client,
    sequence_id=st.sampled_from(IDS),
    width=st.integers(1, 2),
    steps=st.lists(STEPS, min_size=1, max_size=5),
)
RARELY = st.just(0) | st.just(0) | st.integers(0, 16)
PLANS = st.builds(
    Plan,
    clients=st.lists(CLIENTS, min_size=1, max_size=8),
    direct=st.booleans(),
    instance_ticks=st.lists(TICKS, min_size=1, max_size=3),
    max_batch_size=st.integers(0, 3),
    candidates=st.integers(0, 4),
    delay_ticks=st.just(0) | TICKS,
    utilization=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    preferred=st.lists(st.integers(1, 3), max_size=2),
    ordered=st.booleans(),
    idle_ticks=st.integers(1, 128),
    iterative=st.integers(0, 3).map(lambda chance: chance == 0),
    implicit=st.booleans(),
    decoupled=st.booleans(),
    again=st.lists(st.integers(0, 3), max_size=8),
    faulty=RARELY,
    deadly=RARELY,
    stop_ticks=st.integers(0, 512),
    drain_ticks=st.just(100_000) | TICKS,
)


def config_of(plan: Plan) -> pb.ModelConfig:
    batching = (
        direct(plan.delay_ticks, plan.utilization)
        if plan.direct
        else oldest(
            plan.candidates,
            delay_ticks=plan.delay_ticks,
            preferred=tuple(plan.preferred),
            preserve_ordering=plan.ordered,
        )
    )
    return sequence_config(
        batching,
        max_batch_size=plan.max_batch_size,
        count=len(plan.instance_ticks),
        idle_ticks=plan.idle_ticks,
        iterative=plan.iterative,
        dims=(-1,),
        # What is answered again and again leaves no state, so there the model has to remember.
        implicit=plan.implicit and not plan.iterative,
        decoupled=plan.decoupled,
    )


class Log:
    """What the clients saw.

    Attributes:
      sent: Request number -> (sequence id, flags), in the order they were sent.
      histories: Request number -> what the model answered, as numbers.
      errors: Request number -> the code of its error.
      left: Numbers of the requests whose clients did not wait for the answer.
    """

    def __init__(self) -> None:
        self.sent: dict[int, tuple[int | str, str]] = {}
        self.histories: dict[int, list[int]] = {}
        self.errors: dict[int, ErrorCode] = {}
        self.left: set[int] = set()


async def act(
    client: Client, iterative: bool, served: Sequences, log: Log, nursery: trio.Nursery
) -> None:
    """Be one client."""
    before: trio.Event | None = None
    for position, step in enumerate(client.steps):
        await trio.sleep(step.ticks * TICK_S)
        if step.answered_before and before is not None:
            await before.wait()
        number = len(log.sent) + 1
        flags = step.flags or ">" * (position == 0)
        try:
            reply = served.submit(
                number,
                client.sequence_id if ">" in flags or not iterative else 0,
                flags,
                width=client.width,
                timeout_us=step.timeout_ticks * 15625 // 16,
            )
        except trio.BrokenResourceError:
            return
        log.sent[number] = (client.sequence_id, flags)
        before = trio.Event()
        nursery.start_soon(wait, number, reply, step.leaves_ticks, log, before)


async def wait(
    number: int, reply: Reply, leaves_ticks: int | None, log: Log, event: trio.Event
) -> None:
    patience_s = float("inf") if leaves_ticks is None else leaves_ticks * TICK_S
    with trio.move_on_after(patience_s) as patience:
        response = await reply.receive()
    if patience.cancelled_caught:
        reply.close()
        log.left.add(number)
    else:
        assert response.final
        assert response.id == str(number)
        assert reply.done
        assert not reply._responses, "one response a request"
        if response.error is None:
            log.histories[number] = answered(response)
        else:
            log.errors[number] = response.error.code
    event.set()


async def scenario(plan: Plan) -> None:
    log = Log()
    ticks = plan.instance_ticks
    async with (
        trio.open_nursery() as nursery,
        sequences(
            config_of(plan),
            seconds=lambda place, _: ticks[int(place.name[-1])] * TICK_S,
            drain_s=plan.drain_ticks * TICK_S,
        ) as served,
    ):
        served.devices.deadly.add(str(plan.deadly))
        served.model.again = dict(enumerate(plan.again, 1)) if plan.iterative else {}

        def fail(batch: Batch) -> None:
            if any(request.id == str(plan.faulty) for request in batch.requests):
                raise ValueError("a fault of the model")

        served.model.before = fail
        for client in plan.clients:
            nursery.start_soon(act, client, plan.iterative, served, log, nursery)
        await trio.sleep(plan.stop_ticks * TICK_S)
    check_answers(plan, log)
    check_histories(plan, log)
    check_batches(plan, served, log)
    check_rest(plan, served, log)


def check_answers(plan: Plan, log: Log) -> None:
    """Every request ended once, and no error came out of nothing."""
    ended = [*log.histories, *log.errors, *log.left]
    assert sorted(ended) == sorted(log.sent)
    if not (plan.faulty or plan.deadly):
        assert ErrorCode.INTERNAL not in log.errors.values()
    if not log.left:
        assert ErrorCode.CANCELLED not in log.errors.values()
    for number, (_, flags) in log.sent.items():
        if ">" in flags or plan.iterative:
            assert log.errors.get(number) is not ErrorCode.INVALID_ARG


def check_histories(plan: Plan, log: Log) -> None:
    """Each answer is made of the requests of one sequence, from its START, in the order sent."""
    longest: dict[int, list[int]] = {}
    for number, numbers in log.histories.items():
        assert numbers[-1] == number
        if plan.iterative:
            assert numbers == [number] * (1 + dict(enumerate(plan.again, 1)).get(number, 0))
            continue
        assert numbers == sorted(set(numbers))
        assert {log.sent[each][0] for each in numbers} == {log.sent[number][0]}
        assert plan.faulty or ">" in log.sent[numbers[0]][1]
        assert all(">" not in log.sent[each][1] for each in numbers[1:])
        assert all("." not in log.sent[each][1] for each in numbers[:-1])
        best = longest.setdefault(numbers[0], numbers)
        shorter, longer = sorted((best, numbers), key=len)
        assert longer[: len(shorter)] == shorter
        longest[numbers[0]] = longer
        if not (plan.faulty or log.left):  # then no request of the sequence is missing
            same = [
                each
                for each, (sequence_id, flags) in log.sent.items()
                if sequence_id == log.sent[number][0]
                and numbers[0] <= each <= number
                and not (each in log.errors and ">" in flags)  # it began nothing
                and log.errors.get(each) is not ErrorCode.INVALID_ARG
            ]
            assert numbers == same


def check_batches(plan: Plan, served: Sequences, log: Log) -> None:
    """Batches are no larger than allowed, and a sequence stays where it is."""
    place: dict[int, tuple[int, int]] = {}
    count: Counter[int] = Counter()
    for _, instance, rows in served.model.executed:
        assert len(rows) <= max(1, plan.max_batch_size)
        assert rows[-1] != "-"
        assert plan.direct or "-" not in rows
        for row, text in enumerate(rows):
            if text != "-":
                number = int(text.strip(">."))
                place[number] = (instance, row if plan.direct else 0)
                count[number] += 1
                _, flags = log.sent[number]
                if not plan.iterative:
                    assert re.sub(r"\d", "", text) == flags
    for number, times in count.items():
        again = dict(enumerate(plan.again, 1)).get(number, 0) if plan.iterative else 0
        assert times <= 1 + again
    for numbers in log.histories.values():
        assert len({place[number] for number in numbers}) == 1


def check_rest(plan: Plan, served: Sequences, log: Log) -> None:
    """Nothing is left, and the model heard of every end once."""
    order = served.completion._order
    assert order is None or len(order) == 0
    statistics = served.statistics
    assert statistics.success.count + statistics.fail.count == len(log.sent)
    graceful = plan.drain_ticks > 1000
    if graceful:
        assert served.policy.snapshot().slots_used == 0
        for forming in served.policy._forming:
            assert not getattr(forming, "_offered", None)
            assert not getattr(forming, "_ready", None)
    if graceful and not plan.deadly:
        assert all(not ends for ends in served.policy._ends)
        assert all(not instance.memory for instance in served.model.instances)
        starts = sum(">" in row for rows in served.model.batches for row in rows)
        ends = len(served.model.ends)
        assert ends == starts if not log.left else ends >= starts


@settings(
    max_examples=1000,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(plan=PLANS, schedule=st.random_module())
def test_every_request_is_answered_once_from_its_own_sequence(plan: Plan, schedule: object) -> None:
    run_virtually(lambda: scenario(plan))


async def cancelled_scenario(checkpoints: int, count: int, strategy: bool) -> None:
    with trio.CancelScope() as scope:
        config = sequence_config(direct() if strategy else oldest(), max_batch_size=2, count=2)
        async with sequences(config) as served:
            replies = [served.submit(n, n % 2 + 1, ">" * (n < 3)) for n in range(1, count + 1)]
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            scope.cancel()
            await trio.lowlevel.checkpoint()
    for reply in replies:
        assert (await reply.receive()).final
    assert served.statistics.pending_count == 0


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    checkpoints=st.integers(0, 8),
    count=st.integers(1, 6),
    strategy=st.booleans(),
    schedule=st.random_module(),
)
def test_a_cancellation_at_any_point_leaves_no_request_without_an_answer(
    checkpoints: int, count: int, strategy: bool, schedule: object
) -> None:
    run_virtually(lambda: cancelled_scenario(checkpoints, count, strategy))
