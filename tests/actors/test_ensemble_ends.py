"""How requests of ensembles end that do not succeed: errors, cancellation, a stop."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.ensembles import (
    CHAIN,
    DIAMOND,
    FUNCTIONS,
    Arrays,
    arrays_of,
    double,
    model,
    served,
    total,
)
from tritrio.actors import ensemble as ensemble_module
from tritrio.actors.messages import Stop
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.requests import InferRequest


def broken(inputs: Arrays, request: InferRequest) -> Arrays:
    raise RequestError(ErrorCode.UNSUPPORTED, f"cannot do {inputs['IN'].tolist()} of {request.id}")


async def test_an_error_names_ensemble_step_and_model_and_keeps_its_kind(
    autojump_clock: MockClock,
) -> None:
    async with served(CHAIN, {"double": double, "add": broken}) as world:
        error = await world.ask("e", {"X": [1]})
        assert isinstance(error, RequestError)
        assert error.code is ErrorCode.UNSUPPORTED
        assert error.message == "ensemble 'e': step 1 (model 'add'): cannot do [2] of r"
        assert error.reason is FailureReason.BACKEND
        statistics = world.versions["e"].statistics
        assert (statistics.success.count, statistics.execution_count) == (0, 0)
        assert statistics.failures[FailureReason.BACKEND] == statistics.fail.count == 1


async def test_when_to_try_a_step_again_is_when_to_try_its_ensemble_again(
    autojump_clock: MockClock,
) -> None:
    def busy(inputs: Arrays, _: InferRequest) -> Arrays:
        raise RequestError(ErrorCode.UNAVAILABLE, "busy", retry_after_s=float(inputs["IN"][0]))

    async with served(CHAIN, {"double": double, "add": busy}) as world:
        error = await world.ask("e", {"X": [4]})
        assert isinstance(error, RequestError)
        assert error.retry_after_s == 8.0


async def test_the_first_error_ends_all_that_runs_for_the_request(
    autojump_clock: MockClock,
) -> None:
    functions = {"double": double, "add": broken, "sum": total}
    async with served(DIAMOND, functions, seconds={"double": 9.0, "add": 2.0}) as world:
        error = await world.ask("e", {"X": [1]})
        assert isinstance(error, RequestError)
        assert world.elapsed_s() == 2.0
        await trio.sleep(10.0)
        assert "sum" not in world.backend.ran()
        assert world.versions["double"].statistics.failures[FailureReason.CANCELED] == 1


async def test_a_request_that_does_not_fit_a_step_is_an_error_of_the_step(
    autojump_clock: MockClock,
) -> None:
    configs = [
        model("double", None, {"OUT": [-1]}),
        model("add", {"IN": [2]}, {"OUT": [-1]}),
        CHAIN[2],
    ]
    async with served(configs, FUNCTIONS) as world:
        error = await world.ask("e", {"X": [1, 2, 3]})
        assert isinstance(error, RequestError)
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message.startswith("ensemble 'e': step 1 (model 'add'): input 'IN' of model")
        assert world.versions["add"].statistics.failures[FailureReason.OTHER] == 1


async def test_a_step_whose_model_is_gone_is_unavailable(autojump_clock: MockClock) -> None:
    async with served(CHAIN, FUNCTIONS) as world:
        gone = world.versions.pop("add")
        error = await world.ask("e", {"X": [1]})
        assert isinstance(error, RequestError)
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.message == "ensemble 'e': step 1 (model 'add'): model 'add' is not there"
        assert gone.statistics.success.count == 0


async def test_a_cancelled_request_starts_no_later_step(autojump_clock: MockClock) -> None:
    async with served(CHAIN, FUNCTIONS, seconds={"double": 2.0}) as world:
        reply = world.submit("e", {"X": [1]})
        await trio.sleep(1.0)
        reply.close()
        for name in ("e", "double"):
            failures = world.versions[name].statistics.failures
            assert failures[FailureReason.CANCELED] == (name == "e")  # the other still executes
        await trio.sleep(5.0)
        assert "add" not in world.backend.ran()
        assert world.versions["double"].statistics.failures[FailureReason.CANCELED] == 1
        assert world.versions["add"].statistics.fail.count == 0


async def test_a_request_cancelled_before_it_is_taken_starts_no_step(
    autojump_clock: MockClock,
) -> None:
    async with served(CHAIN, FUNCTIONS) as world:
        world.submit("e", {"X": [1]}).close()
        await wait_all_tasks_blocked()
        assert world.backend.ran() == []
        assert world.versions["e"].statistics.failures[FailureReason.CANCELED] == 1


async def test_a_request_cancelled_as_it_is_taken_starts_no_step(
    autojump_clock: MockClock,
) -> None:
    async with served(CHAIN, FUNCTIONS) as world:
        statistics = world.versions["e"].statistics
        for number in range(20):  # since which of two tasks runs first is chance
            reply = world.submit("e", {"X": [number]})
            while statistics.pending_count:
                await trio.lowlevel.checkpoint()
            reply.close()
            await wait_all_tasks_blocked()
        assert world.backend.ran() == []
        assert statistics.failures[FailureReason.CANCELED] == 20


async def test_a_stop_lets_requests_finish_and_takes_no_more(autojump_clock: MockClock) -> None:
    async with served(CHAIN, FUNCTIONS, seconds={"double": 2.0}) as world:
        running = world.submit("e", {"X": [1]})
        await trio.sleep(1.0)
        await world.ensembles["e"].send(Stop())
        error = await world.ask("e", {"X": [2]})
        assert isinstance(error, RequestError)
        assert (error.code, error.reason) == (ErrorCode.UNAVAILABLE, FailureReason.REJECTED)
        assert error.message == "ensemble 'e' takes no more requests, because it stops"
        assert arrays_of((await world.responses(running))[0]) == {"Y": [3]}
        assert world.elapsed_s() == 2.0


async def test_requests_that_are_cut_off_are_answered_and_their_steps_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with served(CHAIN, FUNCTIONS, seconds={"double": 2.0}) as world:
        reply = world.submit("e", {"X": [1]})
        await trio.sleep(1.0)
        waiting = world.submit("e", {"X": [2]})
        world.scopes["e"].cancel()
        codes = [(await reply.receive()).error, (await waiting.receive()).error]
        assert [error.code for error in codes if error] == [ErrorCode.UNAVAILABLE] * 2
        assert world.elapsed_s() == 1.0
        await trio.sleep(5.0)
        assert world.versions["double"].statistics.failures[FailureReason.CANCELED] >= 1


async def test_more_requests_than_may_run_are_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble_module, "RUNNING_MAX", 2)
    async with served(CHAIN, FUNCTIONS, seconds={"double": 2.0}) as world:
        replies = [world.submit("e", {"X": [number]}) for number in range(3)]
        error = (await replies[2].receive()).error
        assert error is not None
        assert (error.code, error.reason) == (ErrorCode.UNAVAILABLE, FailureReason.REJECTED)
        for reply in replies[:2]:
            assert (await reply.receive()).error is None
