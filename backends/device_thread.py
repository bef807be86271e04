"""The worker thread of one model instance; the only place where threads start.

Jobs go in by a queue, and results come back by `notify`, which has the signature of trio's
`TrioToken.run_sync_soon`: the thread itself knows no event loop. Job, arguments and callback
travel as one tuple, so that a batch costs neither a closure nor a future.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar, TypeVarTuple, final

import outcome

from .device_context import DeviceContext

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_Job: TypeAlias = tuple[Callable[..., object], Callable[..., Any], tuple[Any, ...]]


class Notify(Protocol):
    """Has `callback(*args)` called where results are waited for, such as on an event loop."""

    def __call__(self, callback: Callable[..., object], /, *args: Any) -> object:
        """Arrange the call and return at once; callable from any thread."""


class Attended(Protocol):
    """Something outside of the process that a device thread also waits for between its jobs."""

    def attend(self, until_fd: int, timeout_s: float | None = None) -> bool:
        """Handle whatever happens until `until_fd` is readable or the time is over.

        Called on the thread. Returns whether there is more to attend to; if not, it may return
        earlier.
        """


class _Here(threading.local):
    """The device thread that runs the caller, if any."""

    thread: DeviceThread | None = None


_here = _Here()


def attend_between_jobs(attended: Attended) -> None:
    """Have the calling device thread also attend to something; on other threads, nothing happens.

    It takes the place of what the thread attended to before.
    """
    if _here.thread is not None:
        _here.thread.attend_to(attended)


def wait_attending(event: threading.Event, timeout_s: float) -> bool:
    """Wait for an event in a job, and attend to what the thread attends to between jobs.

    Returns whether the event is set.
    """
    thread = _here.thread
    if thread is None or thread.attended is None:
        return event.wait(timeout_s)
    waited_s = 0.0
    while not event.is_set() and waited_s < timeout_s and thread.attend_once(_ATTENDING_S):
        waited_s += _ATTENDING_S
    return event.is_set()


_ATTENDING_S = 1 / 64
"""How often an attending job looks at its event, in seconds."""


@final
class DeviceThread:
    """Runs jobs one at a time, in the order they came, on a thread of its own.

    The thread is a daemon: a model that hangs cannot keep the process from exiting.

    Args:
      name: The thread's name, such as "identity_0_0".
      context: Entered on the thread before the first job and left after the last. If entering
        fails, every job has that exception as its outcome.
      notify: Called on the thread with (done, outcome, *args) after each job. A RuntimeError
        from it means that nobody waits any more (trio's RunFinishedError); the thread ends.
    """

    def __init__(self, name: str, context: DeviceContext, notify: Notify) -> None:
        self.name = name
        self.context = context
        self._notify = notify
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._stopped = False
        self.attended: Attended | None = None
        self._wake_fd = -1  # there only while there is something to attend to
        self._wake_lock = threading.Lock()
        self._thread = threading.Thread(  # noqa: TID251 - the one place that starts threads
            target=self._run, name=name, daemon=True
        )

    def __repr__(self) -> str:
        state = "running" if self._thread.is_alive() else "not running"
        return f"<DeviceThread {self.name} {state}, {self._jobs.qsize()} queued>"

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def submit(
        self,
        done: Callable[[outcome.Outcome[T], *Ts], object],
        job: Callable[[*Ts], T],
        *args: *Ts,
    ) -> None:
        """Queue `job(*args)`; afterwards `notify(done, outcome, *args)` is called on the thread.

        Whatever the job raises, SystemExit and KeyboardInterrupt included, is its outcome; the
        thread lives on. Callable from any thread, not after `stop`.
        """
        assert not self._stopped, "submit() after stop()"
        self._jobs.put((done, job, args))
        if self._wake_fd >= 0:
            self._wake()

    def stop(self) -> None:
        """Let the thread end after the jobs queued so far; idempotent, does not wait."""
        if not self._stopped:
            self._stopped = True
            self._jobs.put(None)
            if self._wake_fd >= 0:
                self._wake()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False if it still runs after `timeout_s` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def attend_to(self, attended: Attended) -> None:
        """Attend to something between jobs; only for the thread itself."""
        self.attended = attended
        if self._wake_fd < 0:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def attend_once(self, timeout_s: float | None) -> bool:
        """Attend until there is a job or the time is over; False if there is nothing any more."""
        attended = self.attended
        if attended is not None and not attended.attend(self._wake_fd, timeout_s):
            self.attended = None
        return self.attended is not None

    def _wake(self) -> None:
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _next(self) -> _Job | None:
        """Wait for a job, and attend to what there is to attend to meanwhile."""
        while self.attended is not None:
            with suppress(Empty):
                return self._jobs.get_nowait()
            self.attend_once(None)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)
        return self._jobs.get()

    def _run(self) -> None:
        _here.thread = self
        try:
            self._run_in_context()
        finally:
            with self._wake_lock:
                wake_fd, self._wake_fd = self._wake_fd, -1
            if wake_fd >= 0:
                os.close(wake_fd)

    def _run_in_context(self) -> None:
        try:
            self.context.__enter__()
        except BaseException as error:  # noqa: BLE001 - it becomes the outcome of every job
            failure = error
            self._serve(lambda *_: outcome.Error(failure))
        else:
            try:
                self._serve(outcome.capture)
            finally:
                self.context.__exit__(None, None, None)

    def _serve(self, run_job: Callable[..., outcome.Outcome[Any]]) -> None:
        get, notify = self._next, self._notify
        while (item := get()) is not None:
            done, job, args = item
            result = run_job(job, *args)
            try:
                notify(done, result, *args)
            except RuntimeError:
                return  # nobody is left to tell: the event loop is gone, and so are all clients
            del item, done, job, args, result  # an idle thread keeps no batch in memory
