"""Python models that call each other, on real threads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from tests.support.calling import (
    ECHO,
    NOTES,
    PATIENCE_S,
    calling_core,
    eventually,
    text_of,
    text_request,
    write_caller,
    write_ensemble,
)
from tritrio.actors.inference import submit
from tritrio.memory.cache_config import LocalConfig
from tritrio.protocol.errors import FailureReason

RELAY = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(text_of(call({callee!r}, asked(request)).exec())) for request in requests]
"""
COUNTDOWN = """
class TritonPythonModel:
    def execute(self, requests):
        left = int(asked(requests[0]))
        if not left:
            return [answer("done")]
        return [answer(text_of(call("a", str(left - 1)).exec()))]
"""
UNTIL_CANCELLED = """
import time

class TritonPythonModel:
    def execute(self, requests):
        NOTES.append("started")
        while not requests[0].is_cancelled():
            time.sleep(0.001)
        NOTES.append("cancelled")
        return [answer("too late")]
"""


@pytest.fixture(autouse=True)
def notes() -> None:
    NOTES.clear()


async def test_a_model_answers_with_what_another_says(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="b"))
    write_caller(tmp_path, "b", ECHO)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "hello") == "hello"
        statistics = core.version("b").statistics
        assert (statistics.success.count, statistics.execution_count) == (1, 1)


async def test_a_model_that_calls_itself_with_one_instance_is_told_so(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", COUNTDOWN)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "1") == (
            "UNAVAILABLE: this call of model 'a' would wait for itself: instance 'a_0_0' waits for "
            "model 'a'; one more in its instance_group could take the call"
        )
        failures = core.version("a").statistics.failures
        assert (failures[FailureReason.REJECTED], failures[FailureReason.OTHER]) == (1, 0)


async def test_a_model_may_call_itself_as_deep_as_it_has_instances(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", COUNTDOWN, instances=3)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "2") == "done"
        error = await core.ask("a", "3")
        assert error is not None
        assert error.endswith(
            "waits for model 'a', and so do the others of its 3 instances; one more in its "
            "instance_group could take the call"
        )
        assert await core.ask("a", "2") == "done"


async def test_a_call_does_not_wait_for_an_equal_one_that_waits_for_it(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(text_of(call("a", asked(requests[0])).exec()))]
"""
    write_caller(tmp_path, "a", code, instances=3, more="response_cache { enable: true }")
    async with calling_core(tmp_path, cache=LocalConfig(1_000_000)) as core:
        answer = await core.ask("a", "again")
        assert answer is not None
        assert "this call of model 'a' would wait for itself" in answer


async def test_a_sequence_cannot_call_its_own_model_within_itself(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    def execute(self, requests):
        if asked(requests[0]) == "inner":
            return [answer("inner")]
        request = call("a", "inner", correlation_id=int(asked(requests[0])), flags=1)
        return [answer(text_of(request.exec()))]
"""
    write_caller(tmp_path, "a", code, instances=2, more="sequence_batching { oldest { } }")
    async with calling_core(tmp_path) as core:
        for callee, expected in (
            ("6", "inner"),
            (
                "5",
                (
                    "UNAVAILABLE: this call of model 'a' would wait for itself: instance "
                    "'a_0_X' waits for model 'a', which has the sequence"
                ),
            ),
        ):
            request = text_request(callee)
            request.sequence_id, request.sequence_start, request.sequence_end = 5, True, True
            reply = submit(core.version("a"), request, trio.current_time())
            with trio.fail_after(PATIENCE_S):
                text = text_of(await reply.receive())
            assert text is not None
            assert re.sub("a_0_[01]", "a_0_X", text) == expected


async def test_two_models_that_call_each_other_are_told_the_chain(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="b"))
    write_caller(tmp_path, "b", RELAY.format(callee="a"))
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == (
            "UNAVAILABLE: this call of model 'a' would wait for itself: instance 'a_0_0' waits for "
            "model 'b', instance 'b_0_0' waits for model 'a'; one more in its instance_group could "
            "take the call"
        )


async def test_many_clients_of_a_model_that_calls_itself_all_get_an_answer(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", COUNTDOWN, instances=3)
    async with calling_core(tmp_path) as core:
        answers: list[str | None] = []

        async def ask() -> None:
            answers.append(await core.ask("a", "2"))

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(ask)
        assert len(answers) == 30
        assert all(a == "done" or (a and "would wait for itself" in a) for a in answers)
        assert core.version("a").statistics.pending_count == 0


async def test_a_circle_through_an_ensemble_is_found(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="e"))
    write_ensemble(tmp_path, "a")
    async with calling_core(tmp_path) as core:
        answer = await core.ask("a")
        assert answer is not None
        assert "this call of model 'a' would wait for itself: instance 'a_0_0' waits for" in answer
        assert "ensemble 'e'" in answer


async def test_a_call_ends_when_nobody_waits_for_the_execution_that_made_it(
    tmp_path: Path,
) -> None:
    code = """
class TritonPythonModel:
    def execute(self, requests):
        NOTES.append(text_of(call("b").exec()))
        return [answer("")]
"""
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", UNTIL_CANCELLED)
    async with calling_core(tmp_path) as core:
        reply = core.submit("a")
        await eventually(lambda: "started" in NOTES)
        reply.close()
        await eventually(lambda: len(NOTES) == 3)
        assert set(NOTES) == {
            "started",
            "cancelled",
            "CANCELLED: the call was cancelled before it was answered",
        }
        for name in "ab":
            statistics = core.version(name).statistics
            await eventually(lambda statistics=statistics: statistics.fail.count == 1)
            failures = core.version(name).statistics.failures
            assert failures[FailureReason.CANCELED] == 1
            assert sum(failures.values()) == 1


async def test_errors_come_back_as_responses(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="b"))
    write_caller(
        tmp_path,
        "b",
        """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("no such row", pb_utils.TritonError.NOT_FOUND)
        return [pb_utils.InferenceResponse(error=error)]
""",
    )
    write_caller(tmp_path, "c", RELAY.format(callee="nobody"))
    write_caller(tmp_path, "d", RELAY.format(callee="many"))
    write_caller(tmp_path, "many", ECHO, decoupled=True)
    write_caller(
        tmp_path,
        "e",
        """
class TritonPythonModel:
    def execute(self, requests):
        tensor = pb_utils.Tensor("WRONG", np.zeros(2))
        wrong = pb_utils.InferenceRequest(inputs=[tensor], model_name="b")
        return [answer(text_of(wrong.exec()))]
""",
    )
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == "NOT_FOUND: no such row"
        assert await core.ask("c") == (
            "NOT_FOUND: model 'nobody' is not ready: expected the name of a known model, got "
            "'nobody'"
        )
        assert await core.ask("d") == (
            "UNSUPPORTED: model 'many' is decoupled, so that it may give any number of responses; "
            "call it with decoupled=True"
        )
        answer = await core.ask("e")
        assert answer is not None
        assert answer.startswith("INVALID_ARG: ")
        assert "'WRONG'" in answer


async def test_a_model_may_call_from_initialize_once_the_other_is_ready(tmp_path: Path) -> None:
    code = """
import time

class TritonPythonModel:
    def initialize(self, args):
        self.early = text_of(call("a").exec())
        while not pb_utils.is_model_ready("b"):
            time.sleep(0.001)
        self.late = text_of(call("b", "hello").exec())

    def execute(self, requests):
        return [answer(json.dumps([self.early, self.late, pb_utils.is_model_ready("b", "7")]))]
"""
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == (
            "[\"NOT_FOUND: model 'a' is not ready: no version of model 'a' is available; the "
            'repository index says why", "hello", false]'
        )


@pytest.mark.parametrize(
    "target", ["request.exec", "lambda: NOTES.append(text_of(request.exec()))"]
)
async def test_threads_of_a_model_may_call(tmp_path: Path, target: str) -> None:
    code = f"""
class TritonPythonModel:
    def execute(self, requests):
        request = call("b", "hello")
        thread = threading.Thread(target={target})
        thread.start()
        thread.join()
        return [answer("")]
"""
    write_caller(tmp_path, "a", code)
    write_caller(tmp_path, "b", ECHO)
    async with calling_core(tmp_path) as core:
        await core.ask("a")
        assert core.version("b").statistics.success.count == 1
        assert NOTES == (["hello"] if "NOTES" in target else [])


async def test_a_call_that_no_execution_waits_for_is_never_refused(tmp_path: Path) -> None:
    code = """
import time

def later():
    sent.set()
    NOTES.append(text_of(call("a", "inner").exec()))

sent = threading.Event()

class TritonPythonModel:
    def execute(self, requests):
        if asked(requests[0]) == "outer":
            threading.Thread(target=later).start()
            sent.wait()
            time.sleep(0.05)
        return [answer(asked(requests[0]))]
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a", "outer") == "outer"
        await eventually(lambda: NOTES == ["inner"])


async def test_a_step_of_an_ensemble_that_is_done_is_waited_for_no_more(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    def execute(self, requests):
        text = asked(requests[0])
        if text == "outer":
            text = text_of(call("e", "inner").exec())
        return [answer(text)]
"""
    last = """
import time

class TritonPythonModel:
    def execute(self, requests):
        NOTES.append("last")
        while "go" not in NOTES:
            time.sleep(0.001)
        return [answer(asked(requests[0]))]
"""
    write_caller(tmp_path, "a", code, instances=2)
    write_caller(tmp_path, "b", last)
    write_ensemble(tmp_path, "a", "b")
    async with calling_core(tmp_path) as core:
        replies = [core.submit("a", "outer")]
        await eventually(lambda: NOTES == ["last"])  # its step "a" was the other instance's work
        replies.append(core.submit("a", "outer"))
        await eventually(lambda: core.version("a").statistics.pending_count == 1)
        NOTES.append("go")
        assert [text_of(await reply.receive()) for reply in replies] == ["inner", "inner"]


async def test_the_model_knows_its_directory_and_what_the_server_cannot_do(tmp_path: Path) -> None:
    code = """
class TritonPythonModel:
    def execute(self, requests):
        said = [pb_utils.get_model_dir()]
        for ask in (pb_utils.load_model, pb_utils.unload_model):
            try:
                ask("b")
            except pb_utils.TritonModelException as error:
                said.append(str(error))
        return [answer("|".join(said))]
"""
    write_caller(tmp_path, "a", code)
    async with calling_core(tmp_path) as core:
        assert await core.ask("a") == "|".join(
            [
                str(tmp_path / "a" / "1"),
                "loading model 'b' on request needs the explicit model control mode",
                "unloading model 'b' on request needs the explicit model control mode",
            ]
        )


async def test_a_stop_cuts_off_a_call_and_the_execution_that_made_it(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", RELAY.format(callee="b"))
    write_caller(
        tmp_path, "b", UNTIL_CANCELLED.replace("not requests[0].is_cancelled()", "not NOTES[1:]")
    )
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            async with calling_core(tmp_path, exit_timeout_s=0.25, in_time=False) as core:
                reply = core.submit("a")
                await eventually(lambda: "started" in NOTES)
            NOTES.append("go")
            assert text_of(await reply.receive()) == (
                "UNAVAILABLE: the model was stopped before it answered the request"
            )
            nursery.cancel_scope.cancel()
