"""What a device thread looks after between its jobs, and in a job that waits."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from tritrio.backends.device_context import HostContext
from tritrio.backends.device_thread import DeviceThread, attend_between_jobs, wait_attending

WAIT_S = 30.0


class Bell:
    """Something to attend to: counts how often it rang, up to a last time."""

    def __init__(self, last: int = 1000) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.rung = 0
        self.threads: set[str] = set()
        self.heard = threading.Event()
        self._last = last

    def ring(self) -> None:
        self.heard.clear()
        os.eventfd_write(self.fd, 1)

    def attend(self, until_fd: int, timeout_s: float | None = None) -> bool:
        poll = select.poll()
        for fd in (self.fd, until_fd):
            poll.register(fd, select.POLLIN)
        ready = dict(poll.poll(None if timeout_s is None else timeout_s * 1000))
        if self.fd in ready:
            os.eventfd_read(self.fd)
            self.threads.add(threading.current_thread().name)
            self.rung += 1
            self.heard.set()
        return self.rung < self._last


class Thread:
    def __init__(self) -> None:
        self.results: SimpleQueue[Any] = SimpleQueue()
        self.thread = DeviceThread("m_0_0", HostContext(), self._notify)
        self.thread.start()

    def _notify(self, _: object, /, *args: Any) -> None:
        self.results.put(args[0])

    def run(self, job: Any, *args: Any) -> Any:
        self.thread.submit(print, job, *args)
        return self.results.get(timeout=WAIT_S).unwrap()


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    os.close(made.fd)


@pytest.fixture
def thread(bell: Bell) -> Iterator[Thread]:
    before = len(os.listdir("/proc/self/fd"))
    made = Thread()
    yield made
    made.thread.stop()
    assert made.thread.join(WAIT_S)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_thread_attends_between_jobs_and_still_takes_jobs(bell: Bell) -> None:
    thread = Thread()
    thread.run(attend_between_jobs, bell)
    for number in range(1, 50):
        bell.ring()
        assert bell.heard.wait(WAIT_S)
        assert bell.rung == number
        assert thread.run(pow, number, 2) == number * number
    assert bell.threads == {"m_0_0"}
    thread.thread.stop()
    assert thread.thread.join(WAIT_S)


def test_a_thread_with_nothing_more_to_attend_to_goes_on(thread: Thread) -> None:
    bell = Bell(last=1)
    thread.run(attend_between_jobs, bell)
    bell.ring()
    assert bell.heard.wait(WAIT_S)
    assert thread.run(pow, 2, 2) == 4
    assert thread.thread.attended is None
    os.close(bell.fd)


def test_a_job_that_waits_attends_meanwhile(thread: Thread, bell: Bell) -> None:
    thread.run(attend_between_jobs, bell)
    bell.ring()
    assert thread.run(wait_attending, bell.heard, WAIT_S)
    assert not thread.run(wait_attending, threading.Event(), 0.05)


def test_elsewhere_waiting_is_only_waiting(thread: Thread) -> None:
    event = threading.Event()
    assert not wait_attending(event, 0.0)
    event.set()
    assert wait_attending(event, WAIT_S)
    assert thread.run(wait_attending, event, WAIT_S)
