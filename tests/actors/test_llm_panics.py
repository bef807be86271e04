"""Panics of libraries in Rust, as tokenizers are: each costs the request that met it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import MockClock

from tests.support.llm import alone, llm_request, serving_llm
from tests.support.memory_server import memory_server
from tests.support.openai_calls import FakeText, chat, teach
from tritrio.actors._llm_preparation import PROMPT_INLINE_CHARACTERS_MAX
from tritrio.actors._worker_threads import WorkerThreads
from tritrio.actors.http_openai import INLINE_BYTES_MAX
from tritrio.backends.llm.guides import Guides
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.tensors import Tensor


class LibraryPanic(BaseException):
    """What a library in Rust raises: no `Exception`."""


def panic(*_: Any, **__: Any) -> Any:
    raise LibraryPanic("index out of bounds")


@pytest.mark.parametrize("call", ["encode", "decode", "stream", "push", "token_text", "compile"])
async def test_a_library_that_panics_costs_its_request_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async with serving_llm(tokens_per_row=4096, step_tokens=4096) as served:
        owner: Any = served.llm.text
        sampling: dict[str, Any] = {"logprobs": 1}
        request = llm_request("a", sampling=sampling, logprobs=True)
        if call == "decode":  # for a prompt of tokens that is to be returned
            request = llm_request("a", stream=False, exclude_input=False)
            del request.inputs["text_input"]
            tokens = np.array([1], np.int64)
            request.inputs["input_ids"] = Tensor("input_ids", "INT64", (1,), array=tokens)
        elif call == "push":
            owner = type(owner.stream())
        elif call == "compile":
            owner = Guides
            request = llm_request("a", sampling={"guided_decoding": {"regex": "a"}})
        other = served.submit(llm_request("b"))
        await other.read_one()
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, panic)
            reader = await served.submit(request).read()
        assert reader.error is not None
        assert reader.error.code is ErrorCode.INTERNAL
        assert "LibraryPanic: index out of bounds" in reader.error.message
        if call != "push":  # which is the other one's, too
            await other.read()
            assert other.text == alone("b", 8)
        assert (await served.submit_and_read("c")).text == alone("c", 8)
        assert served.gauges == (0, 0, 0)


async def test_a_library_that_panics_on_a_thread_costs_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving_llm(text_in_thread=WorkerThreads(1), tokens_per_row=4096) as served:
        monkeypatch.setattr(served.llm.text, "encode", panic)
        big = "a" * (PROMPT_INLINE_CHARACTERS_MAX + 1)
        reader = await served.submit(llm_request(big)).read()
        assert reader.error is not None
        assert "LibraryPanic" in reader.error.message
        assert served.gauges == (0, 0, 0)


@pytest.mark.parametrize("characters", [1, INLINE_BYTES_MAX])
async def test_a_chat_template_that_panics_costs_its_call_alone(
    talking: Path, monkeypatch: pytest.MonkeyPatch, characters: int
) -> None:
    async with memory_server(talking) as server:
        teach(server)
        with monkeypatch.context() as patch:
            patch.setattr(FakeText, "render_chat", panic)
            answer = await chat(server.http(), "a" * characters)
        assert answer.status == 500
        assert (await chat(server.http(), "a")).status == 200
