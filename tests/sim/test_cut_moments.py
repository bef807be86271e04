"""What clients read when the exit timeout passes just when their answers come."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.support.http_client import HttpClient, request_bytes
from tests.support.llm_clients import generate
from tests.support.memory_server import memory_server, write_models
from tests.support.openai_calls import call
from tritrio.actors.frontend import EXIT_TIMEOUT_PASSED
from tritrio.backends import registry

TURNS = 10
"""Of the event loop; so many pass at most from the end of an execution until its answer is out."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models "plain", and "letters" that generates text."""
    monkeypatch.setitem(registry.BACKENDS, "fake_llm", ("tests.support.llm", "FakeLlmBackend"))
    (tmp_path / "letters" / "1").mkdir(parents=True)
    (tmp_path / "letters" / "config.pbtxt").write_text('backend: "fake_llm"')
    return write_models(tmp_path, only=("plain",))


async def read_all(client: HttpClient) -> bytes:
    data = bytes(client.buffer)
    while more := await client.end.read():
        data += more
    return data


@pytest.mark.parametrize("turns", range(TURNS))
@pytest.mark.parametrize("steps", [1, 2])
async def test_nobody_reads_on_behind_the_reason_of_a_cut(
    autojump_clock: MockClock, repository: Path, steps: int, turns: int
) -> None:
    async with memory_server(
        repository, seconds={"plain": float(steps)}, step_seconds=lambda _: 1.0
    ) as server:
        plain, events, chunks, old = (server.http() for _ in range(4))
        plain.infer("plain", [[1]])
        generate(events, "events", max_tokens=100)
        chunks.send(call("completions", model="letters", prompt="c", stream=True, ignore_eos=True))
        body = b'{"text_input": "old", "stream": true, "ignore_eos": true}'
        request = request_bytes("/v2/models/letters/generate_stream", body)
        old.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await trio.sleep(0.5)
        server.begin_shutdown()
        await trio.sleep(steps - 0.5)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        server.parts.http.cut()
        for client in (plain, events, chunks, old):
            answer = await read_all(client)
            assert answer.count(b"HTTP/1.") == 1
            before, reason, behind = answer.partition(EXIT_TIMEOUT_PASSED.encode())
            if reason:
                assert b"data:" not in behind
                assert behind.endswith(b"0\r\n\r\n") == (b"chunked" in before)
            else:
                assert client is plain
