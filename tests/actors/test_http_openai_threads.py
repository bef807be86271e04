"""Large bodies of OpenAI's API, which are read on threads: what may happen meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.memory_server import MemoryServer, memory_server
from tritrio.actors._worker_threads import RunInThread
from tritrio.actors.http_openai import INLINE_BYTES_MAX, OpenAiContext, OpenAiMethods
from tritrio.protocol.http_request import HTTP_1_1, HttpRequest
from tritrio.protocol.http_response import HttpResponse
from tritrio.protocol.http_routes import Route, RouteName

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PROMPT = "a" * INLINE_BYTES_MAX


async def slowly(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
    """Do what takes a second on a thread, and is not cut short."""
    with trio.CancelScope(shield=True):
        await trio.sleep(1)
    return job(*args)


async def ask(server: MemoryServer, run_in_thread: RunInThread) -> HttpResponse:
    """Ask for a completion of a large prompt."""
    context = OpenAiContext(
        router=server.core.router,
        tracing=server.core.tracing,
        now_s=lambda: 0.0,
        run_in_thread=run_in_thread,
    )
    body = orjson.dumps({"model": "talk", "prompt": PROMPT})
    target = b"/v1/completions"
    request = HttpRequest(b"POST", target, target, HTTP_1_1, {}, [], len(body), True, False, body)
    complete: Any = OpenAiMethods(context).mapping()[RouteName.OPENAI_COMPLETIONS]
    answer = await complete(request, Route(RouteName.OPENAI_COMPLETIONS, [b"POST"]))
    assert isinstance(answer, HttpResponse)
    return answer


async def test_a_model_that_is_replaced_as_its_prompt_is_made_answers_with_the_new_one(
    autojump_clock: MockClock, talking: Path
) -> None:
    async with memory_server(talking, model_control="explicit", startup_models=("talk",)) as server:
        jobs = 0

        async def replacing(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
            nonlocal jobs
            result = job(*args)
            jobs += 1
            if jobs == 2:
                await server.core.control.unload("talk")
                await wait_all_tasks_blocked()
                await server.core.control.load("talk")
            return result

        answer = await ask(server, replacing)
        assert jobs == 2
        assert answer.status == 200, answer.body
        assert isinstance(answer.body, bytes)
        assert orjson.loads(answer.body)["choices"][0]["text"] == PROMPT


@pytest.mark.parametrize("left_s", [0.5, 1.5])
async def test_a_client_that_leaves_as_its_body_is_read_asks_nothing_of_the_model(
    autojump_clock: MockClock, talking: Path, left_s: float
) -> None:
    async with memory_server(talking) as server:
        with trio.move_on_after(left_s) as scope:
            await ask(server, slowly)
        await wait_all_tasks_blocked()
        assert scope.cancelled_caught
        assert server.executions == []
        assert server.counts("talk") == (0, 0, 0)
