"""Calls of models by models, on virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.limits import TICK_S
from tests.support.programs import Programs, programs
from tritrio.actors._doorbell import current_doorbell
from tritrio.actors.bls import Calls
from tritrio.protocol.errors import ErrorCode, FailureReason
from tritrio.protocol.requests import InferRequest, InferResponse


def errors(served: Programs) -> list[tuple[str, str]]:
    """Callee and message of each call that failed."""
    return [(name, r.error.message) for name, r, _, _ in served.answers if r.error is not None]


async def test_a_call_takes_as_long_as_its_callee(autojump_clock: MockClock) -> None:
    async with programs(a=1, b=1) as served:
        start_s = trio.current_time()
        await served.submit("a", (1, (("b", (2,)),), 4)).receive()
        assert trio.current_time() - start_s == 7 * TICK_S
        assert errors(served) == []


async def test_calls_that_are_made_at_once_run_side_by_side(autojump_clock: MockClock) -> None:
    async with programs(a=1, b=2) as served:
        start_s = trio.current_time()
        await served.submit("a", ((("b", (2,)), ("b", (3,)), ("b", (4,))),)).receive()
        assert [time_s - start_s for *_, time_s in served.answers] == [
            2 * TICK_S,
            3 * TICK_S,
            6 * TICK_S,
        ]


async def test_a_call_waits_for_an_instance_that_will_be_free(autojump_clock: MockClock) -> None:
    async with programs(a=2, b=1) as served:
        start_s = trio.current_time()
        replies = [served.submit("a", (8,)), served.submit("a", ((("b", ((("a", (1,)),),)),),))]
        for reply in replies:
            await reply.receive()
        assert errors(served) == []
        times = [(name, time_s - start_s) for name, _, _, time_s in served.answers]
        assert times == [("a", 9 * TICK_S), ("b", 9 * TICK_S)]


async def test_of_two_callers_that_take_all_instances_the_second_is_refused_only(
    autojump_clock: MockClock,
) -> None:
    async with programs(a=2) as served:
        program = (1, (("a", (1,)),))
        replies = [served.submit("a", program) for _ in range(2)]
        faults = [(await reply.receive()).parameters["faults"] for reply in replies]
        assert sorted(faults) == [0, 1]


async def test_callers_in_each_others_queues_are_untangled(autojump_clock: MockClock) -> None:
    async with programs(a=1, b=1) as served:
        replies = [
            served.submit("a", (1, (("b", (1,)),))),
            served.submit("b", (1, (("a", (1,)),))),
        ]
        faults = [(await reply.receive()).parameters["faults"] for reply in replies]
        assert sorted(faults) == [0, 1]
        ((_, message),) = errors(served)
        links = ["instance 'a_0' waits for model 'b'", "instance 'b_0' waits for model 'a'"]
        assert ", ".join(links) in message or ", ".join(links[::-1]) in message


async def test_a_client_that_leaves_ends_the_whole_chain_at_once(autojump_clock: MockClock) -> None:
    async with programs(a=1, b=1, c=1) as served:
        start_s = trio.current_time()
        reply = served.submit("a", ((("b", ((("c", (1024,)),),)),),))
        await trio.sleep(TICK_S)
        reply.close()
        await wait_all_tasks_blocked()
        assert served.executing == {"a": 0, "b": 0, "c": 0}
        assert trio.current_time() - start_s == TICK_S
        for name in "abc":
            failures = served.find(name, "").statistics.failures
            assert failures[FailureReason.CANCELED] == 1
            assert sum(failures.values()) == 1


async def test_a_call_that_is_queued_when_its_client_leaves_is_not_executed(
    autojump_clock: MockClock,
) -> None:
    async with programs(a=1, b=1) as served:
        busy = served.submit("b", (8,))
        await wait_all_tasks_blocked()
        reply = served.submit("a", ((("b", (1,)),),))
        await trio.sleep(TICK_S)
        assert served.find("b", "").statistics.pending_count == 1
        reply.close()
        await wait_all_tasks_blocked()
        assert served.find("b", "").statistics.pending_count == 0
        await busy.receive()
        assert served.find("b", "").statistics.execution_count == 1


async def test_a_request_whose_call_is_over_hears_of_its_cancellation_as_before(
    autojump_clock: MockClock,
) -> None:
    async with programs(a=1, b=1) as served:
        reply = served.submit("a", ((("b", (1,)),), 8))
        before = reply.on_close
        await trio.sleep(TICK_S / 2)
        assert reply.on_close != before
        await trio.sleep(TICK_S)
        reply.close()
        await wait_all_tasks_blocked()
        assert served.executing["a"] == 0
        assert served.find("a", "").statistics.failures[FailureReason.CANCELED] == 1


async def test_an_execution_that_waits_for_its_calls_does_not_hang(
    autojump_clock: MockClock,
) -> None:
    async with programs(a=1, b=1, hang_s=4 * TICK_S) as served:
        for _ in range(3):
            served.submit("b", (3,))
        start_s = trio.current_time()
        response = await served.submit("a", ((("b", (3,)),), 3)).receive()
        assert response.error is None
        assert trio.current_time() - start_s == 15 * TICK_S
        start_s = trio.current_time()
        response = await served.submit("a", ((("b", ()),), 1024)).receive()
        assert response.error is not None
        assert "did not finish within" in response.error.message
        assert trio.current_time() - start_s == 8 * TICK_S  # it had waited for a call at 4


async def test_a_model_that_is_stopped_refuses_calls(autojump_clock: MockClock) -> None:
    async with programs(a=1, b=1) as served:
        del served._versions["b"]
        await served.submit("a", ((("b", ()),),)).receive()
        ((name, message),) = errors(served)
        assert name == "b"
        assert message.startswith("model 'b' is not ready: ")


@pytest.mark.parametrize("closed_first", [True, False])
async def test_after_the_end_every_call_is_answered(
    autojump_clock: MockClock, closed_first: bool
) -> None:
    responses: list[InferResponse] = []
    calls = Calls(lambda *_: pytest.fail("nobody looks for a model"))
    assert calls.ring is current_doorbell()
    if closed_first:
        calls.close()
    call = calls.infer(InferRequest("b"), responses.append, caller=None, decoupled=False)
    calls.close()
    call.cancel()
    await wait_all_tasks_blocked()
    (response,) = responses
    assert response.error is not None
    assert response.error.code is ErrorCode.UNAVAILABLE
    assert response.error.message == "the server stops, and takes no more calls"
