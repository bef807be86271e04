"""The worker thread of one model instance; the only place where threads start.

Jobs go in by a queue, and results come back by `notify`, which has the signature of trio's
`TrioToken.run_sync_soon`: the thread itself knows no event loop. Job, arguments and callback
travel as one tuple, so that a batch costs neither a closure nor a future.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
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

    def stop(self) -> None:
        """Let the thread end after the jobs queued so far; idempotent, does not wait."""
        if not self._stopped:
            self._stopped = True
            self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False if it still runs after `timeout_s` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
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
        get, notify = self._jobs.get, self._notify
        while (item := get()) is not None:
            done, job, args = item
            result = run_job(job, *args)
            try:
                notify(done, result, *args)
            except RuntimeError:
                return  # nobody is left to tell: the event loop is gone, and so are all clients
            del item, done, job, args, result  # an idle thread keeps no batch in memory
