"""What Python models do wrong with their response senders, in both modes, seen by clients."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from tests.backends.processes import children_of
from tests.support.calling import eventually, text_of, write_caller

from .test_python_edge_cases import IN_BOTH_MODES, in_mode

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLOSED = "the response sender is closed: the request has had its final response"
ONLY_ONE = "only one response is allowed, since the model is not decoupled"
DECOUPLED_LIST = (
    "execute must return None, since the model is decoupled, got an object of type list"
)
DROPPED = "INTERNAL: the model dropped the response sender before the final flag was sent"

RAISED = (
    "INTERNAL: model instance 'm_0_0': execute raised ValueError: no third one "
    "(at 1/model.py:{line} in execute, 1/model.py:{line} in raise_after_two)"
)

MISUSES = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        result = None
        for request in requests:
            misuse, _, text = asked(request).partition(" ")
            result = getattr(self, misuse)(request.get_response_sender(), answer(text))
        return result

    def behave(self, sender, response):
        sender.send(response)
        sender.send(flags=FINAL)

    def send_after_final(self, sender, response):
        sender.send(response, FINAL)
        sender.send(response)

    def end_twice(self, sender, response):
        sender.send(response)
        sender.send(flags=FINAL)
        sender.send(flags=FINAL)

    def return_a_list(self, sender, response):
        sender.send(response)
        return [response]

    def raise_after_two(self, sender, response):
        sender.send(response)
        sender.send(response)
        raise ValueError("no third one")

    def lose(self, sender, response):
        sender.send(response)

    def keep(self, sender, response):
        self.kept = sender
        sender.send(response)

    def send_several(self, sender, response):
        sender.send(response)
        sender.send(response)
        return [None]

    def send_after_only(self, sender, response):
        sender.send(response, FINAL)
        sender.send(response)
        return [None]

    def end_only_twice(self, sender, response):
        sender.send(response, FINAL)
        sender.send(flags=FINAL)
        return [None]

    def send_and_return(self, sender, response):
        sender.send(response)
        return [response]

    def behave_once(self, sender, response):
        return [response]
"""


@IN_BOTH_MODES
@pytest.mark.parametrize(
    ("misuse", "answers"),
    [
        ("send_after_final", ["x"]),
        ("end_twice", ["x", None]),
        ("return_a_list", ["x", f"INTERNAL: model instance 'm_0_0': {DECOUPLED_LIST}"]),
        ("raise_after_two", ["x", "x", RAISED]),
        ("lose", ["x", DROPPED]),
    ],
)
async def test_misuse_of_a_sender_by_a_decoupled_model_ends_its_own_request_only(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    misuse: str,
    answers: list[str | None],
) -> None:
    write_caller(tmp_path, "m", MISUSES, decoupled=True)
    received: dict[int, list[str | None]] = {}

    async def ask(number: int) -> None:
        way = "behave" if number % 2 else misuse
        received[number] = await core.ask_all("m", f"{way} {number}")

    async with in_mode(tmp_path, mode) as core:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
        await core.ask_all("m", "behave last")
    for number in range(10):
        wanted = ["x", None] if number % 2 else answers
        seen = ["x" if text == str(number) else without_lines(text) for text in received[number]]
        assert seen == wanted
    assert (CLOSED in caplog.text) is (misuse in {"send_after_final", "end_twice"})


def without_lines(text: str | None) -> str | None:
    """The text of an error, but for where in the model's code it was."""
    if text is None:
        return None
    head, *places = text.split("1/model.py:")
    return head + "".join("1/model.py:{line}" + place.lstrip("0123456789") for place in places)


@IN_BOTH_MODES
@pytest.mark.parametrize(
    ("misuse", "fault"),
    [
        ("send_several", ONLY_ONE),
        ("send_after_only", CLOSED),
        ("end_only_twice", CLOSED),
        ("send_and_return", ""),
    ],
)
async def test_a_client_of_a_model_that_is_not_decoupled_gets_one_response_however_many_are_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, misuse: str, fault: str
) -> None:
    write_caller(tmp_path, "m", MISUSES)
    received: dict[int, list[str | None]] = {}

    async def ask(number: int) -> None:
        way = "behave_once" if number % 2 else misuse
        received[number] = await core.ask_all("m", f"{way} {number}")

    async with in_mode(tmp_path, mode) as core, trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(ask, number)
    assert received == {number: [str(number)] for number in range(10)}
    assert fault in caplog.text


@IN_BOTH_MODES
async def test_a_request_whose_sender_is_kept_for_ever_ends_when_its_client_leaves(
    tmp_path: Path, mode: str
) -> None:
    code = """
    class TritonPythonModel:
        kept = []

        def execute(self, requests):
            for request in requests:
                if asked(request) == "cancelled":
                    sender = request.get_response_sender()
                    gone = [kept.is_cancelled() for kept in self.kept]
                    sender.send(answer(str(gone)), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                else:
                    self.kept.append(request.get_response_sender())
    """
    write_caller(tmp_path, "m", code, decoupled=True)
    async with in_mode(tmp_path, mode) as core:
        reply = core.submit("m", "keep")
        assert await core.ask("m", "cancelled") == "[False]"
        reply.close()
        with trio.fail_after(30):
            while await core.ask("m", "cancelled") != "[True]":
                pass


@IN_BOTH_MODES
async def test_a_request_whose_sender_is_kept_for_ever_ends_with_the_server(
    tmp_path: Path, mode: str
) -> None:
    write_caller(tmp_path, "m", MISUSES, decoupled=True)
    async with in_mode(tmp_path, mode, in_time=False, exit_timeout_s=0.5) as core:
        reply = core.submit("m", "keep 1")
        assert not (await reply.receive()).final
    last = await reply.receive()
    assert last.final
    assert last.error is not None


LATE = """
import pathlib
import time


class TritonPythonModel:
    def initialize(self, args):
        self.place = pathlib.Path(args["model_repository"])
        self.over, self.sent = threading.Event(), threading.Event()

    def execute(self, requests):
        sender = requests[0].get_response_sender()
        threading.Thread(target=self.later, args=(sender,), daemon=True).start()

    def later(self, sender):
        sender.send(answer("early"))
        self.over.wait()
        sender.send(answer("late"))
        self.sent.set()
        while not (self.place / "unloaded").exists():
            time.sleep(0.001)
        try:
            sender.send(answer("too late"))
        except pb_utils.TritonModelException as error:
            (self.place / "told").write_text(str(error))

    def finalize(self):
        self.over.set()
        assert self.sent.wait(2)
"""


@IN_BOTH_MODES
async def test_a_thread_that_sends_after_the_unload_is_told_so_or_has_ended_with_its_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    write_caller(tmp_path, "m", LATE, decoupled=True)
    async with in_mode(tmp_path, mode, in_time=False, exit_timeout_s=0.5) as core:
        reply = core.submit("m")
        assert text_of(await reply.receive()) == "early"
    last = await reply.receive()
    assert last.final
    assert last.error is not None
    assert children_of(os.getpid()) == []
    assert "finalize" not in caplog.text
    if mode == "thread":
        (tmp_path / "m" / "unloaded").touch()
        told = tmp_path / "m" / "told"
        await eventually(lambda: told.exists() and told.read_text())
        assert told.read_text() == "the model was unloaded, which has ended its requests"
