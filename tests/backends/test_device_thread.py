from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import outcome
import pytest
import trio

from tritrio.backends.device_context import HostContext
from tritrio.backends.device_thread import DeviceThread

WAIT_S = 30.0


class Inbox:
    """Collects what a thread notifies; called on that thread."""

    def __init__(self) -> None:
        self.results: SimpleQueue[tuple[Any, ...]] = SimpleQueue()

    def notify(self, callback: Callable[..., object], *args: Any) -> None:
        self.results.put((callback, *args))

    def get(self) -> tuple[Any, ...]:
        return self.results.get(timeout=WAIT_S)


def done(*_: object) -> None:
    """Stands for a callback; the inbox does not call it."""


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def started(inbox: Inbox, context: Any = None) -> DeviceThread:
    thread = DeviceThread("m_0_0", context or HostContext(), inbox.notify)
    thread.start()
    return thread


def test_the_outcome_comes_back_with_callback_and_arguments(inbox: Inbox) -> None:
    thread = started(inbox)
    thread.submit(done, pow, 2, 5)
    assert inbox.get() == (done, outcome.Value(32), 2, 5)
    thread.stop()
    assert thread.join(WAIT_S)
    assert repr(thread) == "<DeviceThread m_0_0 not running, 0 queued>"


def test_jobs_run_in_order_on_one_daemon_thread_of_that_name(inbox: Inbox) -> None:
    thread = started(inbox)
    for _ in range(3):
        thread.submit(done, threading.current_thread)
    threads = [inbox.get()[1].unwrap() for _ in range(3)]
    assert len(set(threads)) == 1
    assert (threads[0].name, threads[0].daemon) == ("m_0_0", True)
    thread.stop()


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_whatever_a_job_raises_is_its_outcome_and_the_thread_lives_on(
    inbox: Inbox, kind: type[BaseException]
) -> None:
    def fails() -> None:
        raise kind("reason")

    thread = started(inbox)
    thread.submit(done, fails)
    with pytest.raises(kind, match="reason"):
        inbox.get()[1].unwrap()
    thread.submit(done, int)
    assert inbox.get() == (done, outcome.Value(0))
    thread.stop()


def test_jobs_queued_before_stop_still_run(inbox: Inbox) -> None:
    thread = started(inbox)
    gate = threading.Event()
    thread.submit(done, gate.wait, WAIT_S)
    thread.submit(done, int)
    thread.stop()
    thread.stop()
    assert not thread.join(0)
    gate.set()
    assert thread.join(WAIT_S)
    assert [inbox.get()[1].unwrap() for _ in range(2)] == [True, 0]


def test_submit_after_stop_is_a_programmer_error(inbox: Inbox) -> None:
    thread = started(inbox)
    thread.stop()
    with pytest.raises(AssertionError, match=r"after stop\(\)"):
        thread.submit(done, int)


def test_a_stop_that_does_not_wait_for_a_hanging_job(inbox: Inbox) -> None:
    gate = threading.Event()
    thread = started(inbox)
    thread.submit(done, gate.wait, WAIT_S)
    thread.stop()
    assert thread.join(0.0) is False
    gate.set()
    assert thread.join(WAIT_S)


class RecordingContext(HostContext):
    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.entered: list[str] = []
        self.left: list[str] = []
        self.error = error

    def __enter__(self) -> None:
        self.entered.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error

    def __exit__(self, *exc_info: object) -> None:
        self.left.append(threading.current_thread().name)


def test_the_context_is_entered_and_left_on_the_thread(inbox: Inbox) -> None:
    context = RecordingContext()
    thread = started(inbox, context)
    thread.submit(done, int)
    inbox.get()
    assert (context.entered, context.left) == (["m_0_0"], [])
    thread.stop()
    assert thread.join(WAIT_S)
    assert context.left == ["m_0_0"]


def test_a_device_that_cannot_be_entered_fails_every_job(inbox: Inbox) -> None:
    context = RecordingContext(OSError("no such device"))
    thread = started(inbox, context)
    for _ in range(2):
        thread.submit(done, int)
        with pytest.raises(OSError, match="no such device"):
            inbox.get()[1].unwrap()
    thread.stop()
    assert thread.join(WAIT_S)
    assert context.left == []


def test_the_thread_ends_when_nobody_is_left_to_tell() -> None:
    def notify(callback: Callable[..., object], *args: Any) -> None:
        raise trio.RunFinishedError

    context = RecordingContext()
    thread = DeviceThread("m_0_0", context, notify)
    thread.start()
    thread.submit(done, int)
    thread.submit(done, int)
    assert thread.join(WAIT_S)
    assert context.left == ["m_0_0"]


class Thing:
    """Something a test can hold a weak reference to."""


def test_an_idle_thread_keeps_no_batch_in_memory(inbox: Inbox) -> None:
    thread = started(inbox)
    thing = Thing()
    gone = threading.Event()
    weakref.finalize(thing, gone.set)
    thread.submit(done, repr, thing)
    del thing
    inbox.get()
    assert gone.wait(WAIT_S)
    thread.stop()


async def test_results_hop_onto_a_trio_loop_by_its_token() -> None:
    token = trio.lowlevel.current_trio_token()
    thread = DeviceThread("m_0_0", HostContext(), token.run_sync_soon)
    thread.start()
    arrived = trio.Event()
    results: list[tuple[object, ...]] = []

    def take(result: outcome.Outcome[int], *args: int) -> None:
        results.append((result.unwrap(), *args))
        arrived.set()

    thread.submit(take, pow, 3, 2)
    await arrived.wait()
    assert results == [(9, 3, 2)]
    thread.stop()
