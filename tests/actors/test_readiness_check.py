"""A model may say that it is not ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import outcome
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.calling import NOTES, calling_core, eventually, write_caller
from tritrio.actors._readiness_check import READY_ANSWER_MAX_S, ReadinessCheck
from tritrio.protocol.errors import ErrorCode, RequestError


class LateDevice:
    """A device that is told when its jobs are done."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[], bool], Callable[[outcome.Outcome[bool]], object]]] = []

    def ask(self, job: Callable[[], bool], done: Callable[[outcome.Outcome[bool]], object]) -> None:
        self.asked.append((job, done))

    def answer(self) -> None:
        job, done = self.asked.pop(0)
        done(outcome.capture(job))


class Model:
    says_ready = True

    def __init__(self, answer: bool | Exception = True) -> None:
        self.answer = answer

    def is_ready(self) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_a_model_that_says_nothing_for_five_seconds_is_not_ready(
    autojump_clock: MockClock,
) -> None:
    check, device, model = ReadinessCheck("m_0"), LateDevice(), Model()
    start_s = trio.current_time()
    assert not await check.ask(device, model)  # type: ignore[arg-type]
    assert trio.current_time() - start_s == READY_ANSWER_MAX_S == 5.0
    assert not await check.ask(device, model)  # type: ignore[arg-type]
    assert len(device.asked) == 1  # the first question is still open
    device.answer()
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await check.ask(device, model))  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert len(device.asked) == 1  # shared by all who ask
        device.answer()
    assert answers == [True] * 3


async def test_a_model_that_raises_is_not_ready(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    check, device = ReadinessCheck("m_0"), LateDevice()
    for answer, expected in (
        (RequestError(ErrorCode.INTERNAL, "is_ready raised ValueError: no"), False),
        (True, True),
        (False, False),
    ):
        async with trio.open_nursery() as nursery:

            async def ask(answer: bool | Exception = answer, expected: bool = expected) -> None:
                assert await check.ask(device, Model(answer)) is expected  # type: ignore[arg-type]

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            device.answer()
        assert check.last is expected
    assert "instance 'm_0' is not ready: is_ready raised ValueError: no" in caplog.text


SAYING = """
class TritonPythonModel:
    def execute(self, requests):
        NOTES.append(asked(requests[0]))
        while asked(requests[0]) == "wait" and "go" not in NOTES:
            pass
        return [answer("") for request in requests]

    {kind} is_ready(self):
        text = {says}
        if text == "raise":
            raise ValueError("no")
        return {{"yes": True, "no": False}}.get(text, text)
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_readiness_of_a_version_is_what_its_model_says(tmp_path: Path, kind: str) -> None:
    NOTES.clear()
    write_caller(tmp_path, "a", SAYING.format(kind=kind, says='NOTES[-1] if NOTES else "yes"'))
    async with calling_core(tmp_path) as core:
        check = core.version("a").check_ready
        assert check is not None
        assert await check()
        for text, expected in (("no", False), ("yes", True), ("raise", False), ("odd", False)):
            await core.ask("a", text)
            assert await check() is expected
        await core.ask("a", "yes")
        assert await check()
        reply = core.submit("a", "wait")
        await eventually(lambda: "wait" in NOTES)
        assert await check()  # as it said before it began to execute
        NOTES.append("go")
        await reply.receive()


async def test_a_model_without_a_say_is_not_asked(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", "class TritonPythonModel:\n    def execute(self, requests): ...")
    async with calling_core(tmp_path) as core:
        assert core.version("a").check_ready is None


async def test_a_model_that_is_gone_is_not_ready(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", SAYING.format(kind="def", says='"yes"'))
    async with calling_core(tmp_path) as core:
        check = core.version("a").check_ready
        assert check is not None
        assert await check()
    assert not await check()
