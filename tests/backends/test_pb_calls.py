"""Requests that a model makes, against a server that a test plays."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what models use
import gc
import json
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triton_python_backend_utils
from tritrio.backends import pb_context
from tritrio.backends.base import ModelSource
from tritrio.backends.metric_store import MetricStore
from tritrio.backends.pb_context import ModelContext, enter_model
from tritrio.backends.server_link import RESPONSES_AHEAD, Arm, Respond
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Tensor

pb_utils: Any = triton_python_backend_utils


@dataclass
class SentCall:
    request: InferRequest
    respond: Respond
    caller: int | None
    decoupled: bool
    cancelled: bool = False
    room: int = RESPONSES_AHEAD

    def cancel(self) -> None:
        self.cancelled = True

    def more(self, count: int) -> None:
        self.room += count

    def answer(self, text: str = "", *, final: bool = True) -> None:
        self.room -= 1
        array = np.array([text.encode()], object)
        outputs = [Tensor("OUT", "BYTES", (1,), array=array)]
        self.respond(InferResponse("b", "1", self.request.id, outputs, final=final))


@dataclass
class PlayedServer:
    """Keeps what it is asked; `answers` are given at once."""

    answers: list[str] = field(default_factory=list)
    calls: list[SentCall] = field(default_factory=list)
    metrics: MetricStore = field(default_factory=MetricStore)
    loaded: list[tuple[Any, ...]] = field(default_factory=list)

    def infer(
        self, request: InferRequest, respond: Respond, *, caller: int | None, decoupled: bool
    ) -> SentCall:
        call = SentCall(request, respond, caller, decoupled)
        self.calls.append(call)
        for number, text in enumerate(self.answers, 1):
            call.answer(text, final=number == len(self.answers))
        return call

    def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], *, caller: int | None
    ) -> None:
        assert caller == 7
        if name == "bad":
            raise RequestError(ErrorCode.INVALID_ARG, "it is bad")
        self.loaded.append((name, config, dict(files)))

    def unload_model(self, name: str, *, unload_dependents: bool, caller: int | None) -> None:
        assert caller == 7
        self.loaded.append((name, unload_dependents))

    def is_model_ready(self, name: str, version: str) -> bool:
        return (name, version) == ("b", "")

    def sleep(self, arm: Arm) -> Awaitable[None]:
        raise AssertionError(f"nothing here runs on trio: {arm}")


@pytest.fixture
def server() -> Iterator[PlayedServer]:
    played = PlayedServer()
    enter_model(ModelContext(ModelSource("a", 1, Path("/r/a"), Path("/r/a/1")), played, 7))
    yield played
    enter_model(None)


def request(**options: Any) -> Any:
    tensor = pb_utils.Tensor("IN", np.array([["ü", b"x"]], object))
    return pb_utils.InferenceRequest(inputs=[tensor], model_name="b", **options)


def text_of(response: Any) -> str:
    text: bytes = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()[0]
    return text.decode()


def test_everything_about_a_request_is_sent(server: PlayedServer) -> None:
    server.answers = ["done"]
    made = request(
        request_id="r",
        correlation_id="s",
        requested_output_names=["OUT"],
        model_version=3,
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        timeout=250,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1),
        trace=pb_utils.InferenceTrace(),
        parameters={"k": True},
        priority=2,
    )
    assert text_of(made.exec()) == "done"
    (call,) = server.calls
    sent = call.request
    assert (call.caller, call.decoupled) == (7, False)
    assert (sent.model_name, sent.model_version, sent.id, sent.sequence_id) == ("b", "3", "r", "s")
    assert (sent.sequence_start, sent.sequence_end) == (True, False)
    assert (sent.timeout_us, sent.priority, sent.parameters) == (250, 2, {"k": True})
    assert [output.name for output in sent.outputs] == ["OUT"]
    tensor = sent.inputs["IN"]
    assert (tensor.datatype, tensor.shape, bytes(tensor.raw)) == (
        "BYTES",
        (1, 2),
        b"\x02\0\0\0\xc3\xbc\x01\0\0\0x",
    )
    assert (made.priority(), made.timeout(), made.trace().get_context()) == (2, 250, None)
    memory = made.preferred_memory()
    assert (memory.preferred_memory_type(), memory.preferred_device_id()) == (2, 1)


def test_numbers_share_their_memory_with_the_callee_who_cannot_change_them(
    server: PlayedServer,
) -> None:
    server.answers = [""]
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    pb_utils.InferenceRequest(inputs=[pb_utils.Tensor("IN", array)], model_name="b").exec()
    sent = server.calls[0].request.inputs["IN"].array
    assert np.shares_memory(sent, array)
    assert not sent.flags.writeable
    assert array.flags.writeable
    turned = pb_utils.Tensor("IN", array.T.astype(">f4"))
    pb_utils.InferenceRequest(inputs=[turned], model_name="b").exec()
    sent = server.calls[1].request.inputs["IN"].array
    assert sent.dtype == np.dtype("<f4")
    assert sent.tolist() == array.T.tolist()


def test_a_request_may_be_sent_again(server: PlayedServer) -> None:
    server.answers = ["again"]
    made = request()
    assert [text_of(made.exec()) for _ in range(2)] == ["again", "again"]
    assert server.calls[0].request is not server.calls[1].request


def test_an_error_response_says_why(server: PlayedServer) -> None:
    call = request().exec(decoupled=True)
    error = RequestError(ErrorCode.NOT_FOUND, "no such row")
    server.calls[0].respond(InferResponse("b", "1", error=error))
    (response,) = call
    assert response.has_error()
    assert (response.error().code(), response.error().message()) == (
        pb_utils.TritonError.NOT_FOUND,
        "no such row",
    )
    assert response.output_tensors() == []


def test_response_parameters_come_back(server: PlayedServer) -> None:
    responses = request().exec(decoupled=True)
    answer = InferResponse("b", "1")
    answer.parameters = {"p": 1}
    server.calls[0].respond(answer)
    assert json.loads(next(responses).parameters()) == {"p": 1}
    assert list(responses) == []


def test_responses_are_asked_for_as_they_are_taken(server: PlayedServer) -> None:
    responses = request().exec(decoupled=True)
    (call,) = server.calls
    for number in range(10 * RESPONSES_AHEAD):
        assert call.room > 0
        call.answer(str(number), final=False)
        assert text_of(next(responses)) == str(number)
    assert RESPONSES_AHEAD // 2 <= call.room <= RESPONSES_AHEAD


def test_a_lost_iterator_cancels_its_call_and_an_exhausted_one_does_not(
    server: PlayedServer,
) -> None:
    lost, exhausted = (request().exec(decoupled=True) for _ in range(2))
    server.calls[1].answer()
    assert len(list(exhausted)) == 1
    del lost, exhausted
    gc.collect()
    assert [call.cancelled for call in server.calls] == [True, False]


def test_awaitables_are_sent_at_once_and_answered_in_any_order(server: PlayedServer) -> None:
    async def main() -> list[str]:
        calls = [request(request_id=str(number)).async_exec() for number in range(3)]
        assert len(server.calls) == 3
        loop = asyncio.get_running_loop()
        for call in reversed(server.calls):
            loop.call_soon(call.answer, call.request.id)
        return [text_of(response) for response in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == ["0", "1", "2"]


def test_an_awaited_call_that_is_cancelled_is_cancelled_at_the_server(
    server: PlayedServer,
) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(request().async_exec())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await waiting
        assert [call.cancelled for call in server.calls] == [True], caught

    asyncio.run(main())
    server.calls[0].answer()  # on a loop that is closed


def test_waiting_for_the_next_response_may_be_given_up_and_begun_again(
    server: PlayedServer,
) -> None:
    async def main() -> None:
        responses = await request().async_exec(decoupled=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(responses), 0.001)
        assert not server.calls[0].cancelled
        server.calls[0].answer("late")
        assert [text_of(response) async for response in responses] == ["late"]

    asyncio.run(main())


def test_a_stream_is_read_under_asyncio(server: PlayedServer) -> None:
    server.answers = ["a", "b", "c"]

    async def main() -> list[str]:
        responses = await request().async_exec(decoupled=True)
        return [text_of(response) async for response in responses]

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert server.calls[0].decoupled


def test_models_are_managed_through_the_server(server: PlayedServer) -> None:
    pb_utils.load_model("b")
    pb_utils.load_model("b", config="{}", files={"file:1/model.py": b"x"})
    pb_utils.unload_model("b")
    pb_utils.unload_model("b", unload_dependents=True)
    assert server.loaded == [
        ("b", None, {}),
        ("b", "{}", {"1/model.py": b"x"}),
        ("b", False),
        ("b", True),
    ]
    with pytest.raises(pb_utils.TritonModelException, match=r"^it is bad$"):
        pb_utils.load_model("bad")
    assert pb_utils.is_model_ready("b")
    assert not pb_utils.is_model_ready("b", "2")
    assert pb_utils.get_model_dir() == "/r/a/1"


def test_without_a_server_there_is_nobody_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pb_context, "_loaded", {})
    with pytest.raises(pb_utils.TritonModelException) as caught:
        request().exec()
    assert str(caught.value) == "exec() is for the code of a model that a server has loaded"
    enter_model(ModelContext(ModelSource("a", 1, Path("/r/a"), Path("/r/a/1"))))
    try:
        with pytest.raises(pb_utils.TritonModelException) as caught:
            request().async_exec()
    finally:
        enter_model(None)
    assert str(caught.value) == "async_exec() needs a server, and this model runs without one"
    with pytest.raises(pb_utils.TritonModelException, match="inputs must hold Tensor objects"):
        pb_utils.InferenceRequest(inputs=[np.zeros(1)], model_name="b")
