"""Whatever clients do: no wrong answer, none too few or too many, and every one counted once."""

from __future__ import annotations

from dataclasses import dataclass

import trio
from hypothesis import given, settings, strategies as st

from tests.support.builders import model_config
from tests.support.caching import Front, NetworkCache, VirtualThreads, access_to, caching_front
from tests.support.fake_device import EchoBackend
from tests.support.limits import TICK_S
from tests.support.schedules import run_virtually
from tritrio.backends.base import Batch
from tritrio.memory.response_cache import Entry, LocalCache
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferResponse


@dataclass(frozen=True)
class Client:
    """What one client does.

    Attributes:
      at: When it asks, in ticks.
      number: What it asks.
      patience: After how many ticks it leaves; None for never.
      fails: Whether its request fails if it is executed.
      priority: Its priority.
    """

    at: int
    number: int
    patience: int | None
    fails: bool
    priority: int


@dataclass(frozen=True)
class Setting:
    """What the clients meet; times are ticks.

    Attributes:
      execution: What a batch takes.
      network: What a call of the cache takes; None for a local cache.
      size_bytes: Room of a local cache.
      shares: Whether executions are shared.
      ordered: Whether answers are released in order.
    """

    execution: int
    network: int | None
    size_bytes: int
    shares: bool
    ordered: bool


SETTINGS = st.builds(
    Setting,
    execution=st.sampled_from([0, 3]),
    network=st.none() | st.integers(0, 5),
    size_bytes=st.sampled_from([1, 900, 2**20]),
    shares=st.booleans(),
    ordered=st.booleans(),
)
CLIENTS = st.lists(
    st.builds(
        Client,
        at=st.integers(0, 20),
        number=st.integers(1, 3),
        patience=st.none() | st.integers(0, 12),
        fails=st.sampled_from([False, False, False, True]),
        priority=st.sampled_from([0, 0, 1]),
    ),
    max_size=16,
)


async def play(front: Front, index: int, client: Client, answers: dict[int, InferResponse]) -> None:
    await trio.sleep(client.at * TICK_S)
    kind = "bad" if client.fails else "good"
    reply = front.submit(client.number, f"{kind}{index}", priority=client.priority)
    patience = 10**6 if client.patience is None else client.patience
    with trio.move_on_after(patience * TICK_S):
        answers[index] = await reply.receive()
    reply.close()
    assert not reply.has_response


def fail_bad(batch: Batch) -> bool:
    """Execute as ever, but fail each bad request by itself."""
    for position, request in enumerate(batch.requests):
        if request.id.startswith("bad"):
            error = RequestError(ErrorCode.INTERNAL, "bad")
            batch.respond(position, InferResponse("model", "1", request.id, error=error))
        else:
            tensor = request.inputs["INPUT0"]
            outputs = Entry.of(InferResponse("", "", outputs=[tensor])).response("model", "1", "")
            outputs.outputs[0].name = "OUTPUT0"
            outputs.id = request.id
            batch.respond(position, outputs)
    return True


@settings(max_examples=150, deadline=None)
@given(clients=CLIENTS, setting=SETTINGS, seed=st.random_module())
def test_every_client_gets_its_own_answer_and_is_counted_once(
    clients: list[Client], setting: Setting, seed: object
) -> None:
    async def scenario() -> None:
        backend = EchoBackend()
        backend.before = fail_bad
        local = setting.network is None
        cache = LocalCache(setting.size_bytes) if local else NetworkCache()
        access = access_to(cache, calls=VirtualThreads((setting.network or 0) * TICK_S))
        batching = pb.ModelDynamicBatching(preserve_ordering=setting.ordered)
        if not setting.ordered:
            batching.priority_levels = batching.default_priority_level = 2
        config = model_config(batching=batching, max_batch_size=2, instances=2)
        answers: dict[int, InferResponse] = {}
        async with (
            caching_front(
                config,
                access=access,
                shares_executions=setting.shares,
                backend=backend,
                seconds=setting.execution * TICK_S,
            ) as front,
            trio.open_nursery() as nursery,
        ):
            for index, client in enumerate(clients):
                nursery.start_soon(play, front, index, client, answers)
        statistics = front.statistics
        for index, answer in answers.items():
            client = clients[index]
            assert answer.id == f"{'bad' if client.fails else 'good'}{index}"
            if answer.error is None:
                assert set(answer.outputs[0].array.ravel().tolist()) == {client.number}
            else:
                assert client.fails or any(  # it inherited the execution of one that left
                    other.fails and other.patience is not None and other.number == client.number
                    for other in clients
                )
        for index, client in enumerate(clients):
            assert index in answers or client.patience is not None
        assert statistics.success.count + statistics.fail.count == len(clients)
        assert statistics.success.count == statistics.queue.count
        assert statistics.compute_infer.count == (
            statistics.success.count - statistics.cache_hit.count
        )
        assert statistics.inference_count == statistics.compute_infer.count
        assert statistics.cache_hit.count + statistics.cache_miss.count <= len(clients)
        if all(client.patience is None for client in clients):
            counted = statistics.cache_hit.count + statistics.cache_miss.count
            assert counted == len(clients)
        if isinstance(cache, LocalCache):
            assert cache.used_bytes <= setting.size_bytes

    run_virtually(scenario)
