"""Random clients of generated text that leave, over HTTP and gRPC: nobody else notices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings, strategies as st

from tests.support.grpc_client import DEADLINE_EXCEEDED, OK
from tests.support.llm import STEP_S, alone, seconds_of_step
from tests.support.llm_clients import all_events, generate, held, stream_message, text_of
from tests.support.memory_server import MemoryServer, memory_server
from tests.support.schedules import run_virtually
from tritrio.backends import registry

TICK_S = STEP_S / 2

PROMPTS = ("a", "the same beginning of", "the same beginning of another")


@dataclass(frozen=True)
class Client:
    """One client.

    Attributes:
      kind: "events" or "whole" over HTTP, or "grpc".
      at: Ticks before it asks.
      leave: Ticks after which it leaves, and a half, and how; None if it stays.
      deadline: Ticks that its call may take; None for any number. Of gRPC.
    """

    kind: str
    prompt: str
    max_tokens: int
    at: int
    leave: tuple[int, str] | None
    deadline: int | None


CLIENTS = st.builds(
    Client,
    kind=st.sampled_from(["events", "whole", "grpc"]),
    prompt=st.sampled_from(PROMPTS),
    max_tokens=st.integers(1, 40),
    at=st.integers(0, 40),
    leave=st.none() | st.tuples(st.integers(0, 80), st.sampled_from(["close", "reset", "cancel"])),
    deadline=st.none() | st.integers(1, 60),
)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("letters")
    (repository / "letters" / "1").mkdir(parents=True)
    (repository / "letters" / "config.pbtxt").write_text('backend: "fake_llm"')
    return repository


async def over_http(server: MemoryServer, planned: Client) -> None:
    client = server.http()
    await trio.sleep(planned.at * TICK_S)
    stream = planned.kind == "events"
    generate(client, planned.prompt, stream=stream, max_tokens=planned.max_tokens)
    if planned.leave is not None:
        await trio.sleep((planned.leave[0] + 0.5) * TICK_S)
        client.end.close() if planned.leave[1] == "close" else client.end.reset()
        return
    if stream:
        text = await all_events(client)
    else:
        text = (await client.response()).json["text_output"]
    assert text == alone(planned.prompt, planned.max_tokens)


async def over_grpc(server: MemoryServer, planned: Client) -> None:
    client = server.grpc()
    await trio.sleep(planned.at * TICK_S)
    deadline_us = None if planned.deadline is None else round(planned.deadline * TICK_S * 1e6)
    call = client.stream(timeout="" if deadline_us is None else f"{deadline_us}u")
    call.send(stream_message(planned.prompt, max_tokens=planned.max_tokens), end=True)
    whole = alone(planned.prompt, planned.max_tokens)
    if planned.leave is not None:
        with trio.move_on_after((planned.leave[0] + 0.5) * TICK_S) as scope:
            await call.done()
        if scope.cancelled_caught:
            {"close": client.end.close, "reset": client.end.reset, "cancel": call.cancel}[
                planned.leave[1]
            ]()
            return
    status = await call.done()
    text = "".join(map(text_of, call.messages))
    if status == DEADLINE_EXCEEDED:
        assert planned.deadline is not None
        assert whole.startswith(text)
    else:
        assert (status, text) == (OK, whole)


async def scenario(repository: Path, clients: list[Client]) -> None:
    async with memory_server(repository, step_seconds=seconds_of_step) as server:
        async with trio.open_nursery() as nursery:
            for client in clients:
                serve = over_grpc if client.kind == "grpc" else over_http
                nursery.start_soon(serve, server, client)
        await trio.sleep(0.5 * TICK_S)
        success, failure, pending = server.counts("letters")
        assert (success + failure, pending) == (len(clients), 0)
        assert held(server) == (0, 0, 0)
        assert server.used_bytes == 0


@pytest.mark.slow
@settings(max_examples=100, derandomize=True, deadline=None)
@given(clients=st.lists(CLIENTS, min_size=1, max_size=8), random=st.random_module())
def test_random_clients(letters: Path, clients: list[Client], random: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BACKENDS, "fake_llm", ("tests.support.llm", "FakeLlmBackend"))
        run_virtually(partial(scenario, letters, clients))
