"""Python models with many responses, and with calls that go wrong, in both modes."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from tests.backends.processes import children_of
from tests.support.calling import ECHO, REPEAT, CallingCore, calling_core, eventually, write_caller

from .faulty_models import MODES

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

IN_BOTH_MODES = pytest.mark.parametrize("mode", MODES)


def in_mode(
    repository: Path, mode: str, *, in_time: bool = True, exit_timeout_s: float = 30.0
) -> AbstractAsyncContextManager[CallingCore]:
    settings = {"python": {"execution-mode": mode}}
    return calling_core(
        repository, in_time=in_time, exit_timeout_s=exit_timeout_s, backend_settings=settings
    )


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth_of() -> Callable[[], int]:
    """How much larger this process and its children become, in bytes."""
    gc.collect()
    before = {pid: rss_bytes(pid) for pid in [os.getpid(), *children_of(os.getpid())]}

    def growth() -> int:
        gc.collect()
        return sum(rss_bytes(pid) - size for pid, size in before.items())

    return growth


RESPONSES = 50_000
GROWTH_MAX_BYTES = 8 * 1024**2
"""170 bytes for each of them: whatever is kept of a response is larger."""


@IN_BOTH_MODES
async def test_many_small_responses_leave_nothing_in_memory(tmp_path: Path, mode: str) -> None:
    write_caller(tmp_path, "m", REPEAT, decoupled=True)

    async def count(number: int) -> None:
        reply = core.submit("m", str(number))
        for received in range(number):
            response = await reply.receive()
            assert response.outputs[0].array[0] == str(received).encode()
        assert (await reply.receive()).final

    async with in_mode(tmp_path, mode) as core:
        await count(2_000)
        growth = growth_of()
        with trio.fail_after(120):
            await count(RESPONSES)
        assert growth() < GROWTH_MAX_BYTES


@IN_BOTH_MODES
async def test_a_model_that_raises_what_its_calls_say_leaves_nothing_in_memory(
    tmp_path: Path, mode: str
) -> None:
    raises = """
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError("x" * 2000)
    """
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            responses = [call("b").exec() for _ in range(3)]
            for response in call("b").exec(decoupled=True):
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", raises)
    async with in_mode(tmp_path, mode) as core:

        async def ask(times: int) -> None:
            for _ in range(times):
                text = await core.ask("a")
                assert text is not None
                assert "execute raised ValueError: xxx" in text

        await ask(100)
        growth = growth_of()
        await ask(1_000)
        assert growth() < GROWTH_MAX_BYTES
        assert sum(core.version("b").statistics.failures.values()) == 4_400
        assert core.version("b").statistics.pending_count == 0


RELAY = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(text_of(call({callee!r}, asked(request)).exec())) for request in requests]
"""


async def test_two_processes_that_call_each_other_are_told_the_chain(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="b"))
    write_caller(tmp_path, "b", RELAY.format(callee="a"))
    async with in_mode(tmp_path, "process") as core:
        answers: list[str | None] = []

        async def ask(name: str) -> None:
            answers.append(await core.ask(name))

        async with trio.open_nursery() as nursery:
            for name in "abab":
                nursery.start_soon(ask, name)
        assert len(answers) == 4
        assert all("would wait for itself" in (text or "") for text in answers)


async def test_a_model_in_a_process_may_call_from_initialize_and_from_threads(
    tmp_path: Path,
) -> None:
    code = """
    import time

    class TritonPythonModel:
        def initialize(self, args):
            self.own = text_of(call("a").exec())
            while not pb_utils.is_model_ready("b"):
                time.sleep(0.001)
            self.late = text_of(call("b", "hello").exec())

        def execute(self, requests):
            texts = [self.own, self.late]
            threads = [
                threading.Thread(target=lambda: texts.append(text_of(call("b", "again").exec())))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return [answer(json.dumps(texts))]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO)
    async with in_mode(tmp_path, "process") as core:
        text = await core.ask("a")
        assert text is not None
        assert text.startswith("[\"NOT_FOUND: model 'a' is not ready: ")
        assert text.endswith('", "hello"' + ', "again"' * 8 + "]")


async def test_a_hundred_calls_at_once_of_a_process_are_all_answered(tmp_path: Path) -> None:
    code = """
    import asyncio

    class TritonPythonModel:
        async def execute(self, requests):
            calls = [call("b", str(number)).async_exec() for number in range(100)]
            return [answer(" ".join(text_of(r) for r in await asyncio.gather(*calls)))]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO)
    async with in_mode(tmp_path, "process") as core:
        assert await core.ask("a") == " ".join(map(str, range(100)))


@IN_BOTH_MODES
async def test_a_model_that_raises_or_leaves_in_the_middle_of_responses_cancels_its_call(
    tmp_path: Path, mode: str
) -> None:
    endless = """
    import time

    class TritonPythonModel:
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            while not sender.is_cancelled():
                sender.send(answer("more"))
                time.sleep(0.001)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    code = """
    class TritonPythonModel:
        async def execute(self, requests):
            async for response in await call("b").async_exec(decoupled=True):
                if asked(requests[0]) == "raise":
                    raise ValueError("enough")
                break
            return [answer("left")]
    """
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "c", "import asyncio\n" + code.replace("    ", "", 1))
    write_caller(tmp_path, "b", endless, decoupled=True)
    async with in_mode(tmp_path, mode) as core:
        for name in ("a", "c"):
            assert await core.ask(name, "leave") == "left"
            text = await core.ask(name, "raise")
            assert text is not None
            assert "execute raised ValueError: enough" in text
        failures = core.version("b").statistics.failures
        await eventually(lambda: sum(failures.values()) == 4)
