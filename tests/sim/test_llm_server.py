"""Text from the whole server: over HTTP and gRPC, to clients that stay and that leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.grpc_client import DEADLINE_EXCEEDED, OK, UNAVAILABLE, GrpcClient
from tests.support.llm import LIMITS, STEP_S, TOKEN_S, alone, seconds_of_step
from tests.support.llm_clients import all_events, event, generate, held, stream_message, text_of
from tests.support.memory_server import MemoryServer, memory_server
from tests.support.openai_calls import call, chat
from tritrio.actors.frontend import EXIT_TIMEOUT_PASSED
from tritrio.backends import registry
from tritrio.progress import work_text
from tritrio.protocol.llm_statistics import CancelReason


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one model that generates text."""
    monkeypatch.setitem(registry.BACKENDS, "fake_llm", ("tests.support.llm", "FakeLlmBackend"))
    (tmp_path / "letters" / "1").mkdir(parents=True)
    (tmp_path / "letters" / "config.pbtxt").write_text('backend: "fake_llm"')
    return tmp_path


async def test_tokens_reach_clients_of_all_interfaces_as_they_come(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository, step_seconds=seconds_of_step) as server:
        whole = server.http()
        generate(whole, "whole", stream=False, max_tokens=4)
        response = await whole.response()
        assert response.json["text_output"] == alone("whole", 4)
        start_s = server.elapsed_s()
        events = server.http()
        generate(events, "events", max_tokens=4)
        assert (await events.head()).status == 200
        for step, letter in enumerate(alone("events", 4)):
            assert await event(events) == letter
            assert server.elapsed_s() - start_s == (step + 1) * STEP_S + 6 * TOKEN_S
        assert await events.chunk() == b""
        start_s = trio.current_time()
        stream = server.grpc().stream()
        stream.send(stream_message("grpc", max_tokens=4), end=True)
        assert await stream.done() == OK
        assert [text_of(message) for message in stream.messages] == [*alone("grpc", 4)]
        assert [at_s - start_s for at_s in stream.times_s] == [
            step * STEP_S + 4 * TOKEN_S for step in range(1, 5)
        ]


async def test_the_list_of_models_says_what_a_text_may_have(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository) as server:
        client = server.http()
        client.get("/v1/models")
        (model,) = (await client.response()).json["data"]
        assert model["supported_endpoints"] == ["/v1/completions"]
        assert model["max_model_len"] == LIMITS.tokens_per_row


async def test_a_chat_without_a_template_says_where_one_belongs(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository) as server:
        answer = await chat(server.http(), "a", model="letters")
        assert answer.status == 404
        assert answer.json["error"]["message"] == (
            "expected a model that has a chat template, got 'letters', which has none: "
            "chat_template.jinja, or chat_template in tokenizer_config.json, in its version "
            "directory would be one"
        )


async def test_refusals_have_the_status_of_a_bad_request(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository) as server:
        for more in ({"temperature": -1}, {"max_tokens": "many"}):
            client = server.http()
            generate(client, "abc", **more)
            assert (await client.head()).status == 400
        stream = server.grpc().stream()
        stream.send(stream_message("abc", top_p=7), end=True)
        assert await stream.done() == OK
        assert "top_p" in stream.messages[0].error_message


async def test_streams_that_a_stop_cuts_off_end_with_the_reason(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository, step_seconds=seconds_of_step) as server:
        events, chunks = server.http(), server.http()
        generate(events, "events", max_tokens=150)
        chunks.send(
            call("completions", model="letters", prompt="chunks", stream=True, ignore_eos=True)
        )
        stream = server.grpc().stream()
        stream.send(stream_message("grpc", max_tokens=150))
        await stream.received(2)
        for client in (events, chunks):
            assert (await client.head()).status == 200
        server.begin_shutdown()
        assert work_text(server.core.router.measured_models()) == (
            "0 requests are queued, 3 texts go on"
        )
        server.parts.http.cut()
        server.parts.grpc.cut()
        last, before = b"", b""
        while data := await events.chunk():
            last = data
        assert orjson.loads(last[6:]) == {"error": EXIT_TIMEOUT_PASSED}
        while data := await chunks.chunk():
            last, before = data, last
        assert b"choices" in before
        assert orjson.loads(last[6:])["error"]["message"] == EXIT_TIMEOUT_PASSED
        for client in (events, chunks):
            await client.closed()
        assert (await stream.done(), stream.text) == (UNAVAILABLE, EXIT_TIMEOUT_PASSED)
        assert held(server) == (0, 0, 0)


async def leave_by_closing(server: MemoryServer, prompt: str) -> None:
    client = server.http()
    generate(client, prompt, max_tokens=150)
    await client.head()
    await event(client)
    client.end.close()


async def leave_by_reset(server: MemoryServer, prompt: str) -> None:
    client = server.http()
    generate(client, prompt, max_tokens=150)
    await client.head()
    await event(client)
    client.end.reset()


async def leave_the_whole(server: MemoryServer, prompt: str) -> None:
    client = server.http()
    generate(client, prompt, stream=False, max_tokens=150)
    await trio.sleep(3 * STEP_S)
    client.end.close()


async def leave_by_cancelling_a_call(server: MemoryServer, prompt: str) -> None:
    client: GrpcClient = server.grpc()
    call = client.stream()
    call.send(stream_message(prompt, max_tokens=150))
    await call.received(2)
    call.cancel()


@pytest.mark.parametrize(
    "leave", [leave_by_closing, leave_by_reset, leave_the_whole, leave_by_cancelling_a_call]
)
async def test_what_a_client_held_is_free_at_once_when_it_leaves(
    autojump_clock: MockClock, repository: Path, leave: Any
) -> None:
    async with memory_server(repository, step_seconds=seconds_of_step) as server:
        neighbour = server.http()
        generate(neighbour, "neighbour", max_tokens=40)
        await wait_all_tasks_blocked()
        running_alone = held(server)
        await leave(server, "leaver")
        await wait_all_tasks_blocked()
        assert held(server)[:2] == running_alone[:2]
        assert await all_events(neighbour) == alone("neighbour", 40)
        assert held(server) == (0, 0, 0)
        llm = server.statistics("letters").llm
        assert llm is not None
        assert llm.cancelled[CancelReason.CLIENT] == 1


async def test_a_call_whose_deadline_passes_is_told_from_one_that_was_given_up(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository, step_seconds=seconds_of_step) as server:
        stream = server.grpc().stream(timeout="500m")
        stream.send(stream_message("abc", max_tokens=150))
        assert await stream.done() == DEADLINE_EXCEEDED
        assert held(server) == (0, 0, 0)
        assert "".join(map(text_of, stream.messages)) == alone("abc", len(stream.messages))
        assert 25 <= len(stream.messages) <= 32
        llm = server.statistics("letters").llm
        assert llm is not None
        assert llm.cancelled[CancelReason.DEADLINE] == 1


async def test_a_client_that_does_not_read_costs_a_bounded_number_of_responses(
    autojump_clock: MockClock, repository: Path
) -> None:
    async with memory_server(repository, step_seconds=seconds_of_step) as server:
        deaf = server.http(capacity_bytes=256)
        generate(deaf, "deaf", max_tokens=200)
        neighbour = server.http()
        generate(neighbour, "neighbour", max_tokens=200)
        assert await all_events(neighbour) == alone("neighbour", 200)
        llm = server.statistics("letters").llm
        assert llm is not None
        assert llm.totals().paused == 1
        assert llm.output_tokens < 200 + 100
        assert await all_events(deaf) == alone("deaf", 200)
