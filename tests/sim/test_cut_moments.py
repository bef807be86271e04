"""What clients read, and the log says, when the exit timeout passes while answers come."""

from __future__ import annotations

import logging
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
from tritrio.protocol.log_settings import LogSettings

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


async def test_the_line_of_a_stream_that_is_cut_off_says_so(
    autojump_clock: MockClock, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.calls")
    log = LogSettings(verbose_level=1)
    async with memory_server(repository, step_seconds=lambda _: 1.0, log=log) as server:
        client = server.http()
        generate(client, "events", max_tokens=100)
        await trio.sleep(1.5)
        server.begin_shutdown()
        server.parts.http.cut()
        await read_all(client)
    (line,) = [each.getMessage() for each in caplog.records if each.name == "tritrio.calls"]
    path = "HTTP POST /v2/models/letters/generate_stream"
    assert line == f"{path} 200, 1500.000 ms: {EXIT_TIMEOUT_PASSED}"
