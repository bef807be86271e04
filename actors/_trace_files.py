"""Traces in files: kept until they are due, and written by a thread of their own."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

import trio

from ..protocol.trace import Trace
from ..protocol.trace_context import TraceContext
from ..protocol.trace_file import trace_objects
from ..protocol.trace_settings import TraceSetting
from ._trace_buffer import TENSOR_BYTES_HELD_MAX, TRACES_HELD_MAX, TraceBuffer, Write
from ._wakeup import Wakeup
from ._worker_threads import RunInThread

TRACES_QUEUED_MAX: Final = 2 * TRACES_HELD_MAX
"""Traces that wait for the disk. More are dropped, since a disk so slow would take the memory."""

TENSOR_BYTES_QUEUED_MAX: Final = 4 * TENSOR_BYTES_HELD_MAX
"""Likewise for the tensors in them, which take longer to be made text of."""

LAST_WRITES_S: Final = 5.0
"""How long the end of the server waits for the last files, in seconds."""

_log = logging.getLogger("tritrio.tracing")


@final
class TraceFiles:
    """Takes traces and writes them in the format of Triton's trace files.

    A file fault is logged and costs the traces it concerns, nothing else. A file of all traces is
    begun anew by each server, and complete JSON after each write.

    Args:
      file: The file of all traces; files of some have a number behind its name.
      run_in_thread: Writes.
    """

    def __init__(self, file: str, run_in_thread: RunInThread) -> None:
        self._buffer = TraceBuffer(file)
        self._writes: deque[Write] = deque()
        self._queued = 0
        self._queued_bytes = 0
        self._news = Wakeup()
        self._idle = trio.Event()
        self._idle.set()
        self._begun = False  # whether the file of all traces has some of this server
        self._run_in_thread = run_in_thread

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is due until cancelled."""
        task_status.started()
        while True:
            while self._writes:
                write = self._writes.popleft()
                await self._run_in_thread(self._write, write)
                self._queued -= len(write.traces)
                self._queued_bytes -= write.tensor_bytes
            self._idle.set()
            await self._news.wait()

    async def stop(self) -> None:
        """Write everything, within `LAST_WRITES_S`."""
        self._add(self._buffer.rest())
        with trio.move_on_after(LAST_WRITES_S) as scope:
            await self._idle.wait()
        if scope.cancelled_caught:
            _log.error("%d traces could not be written in time", self._queued)

    def new_context(self, caller: TraceContext | None) -> None:
        """Return no context: there are no spans."""

    def begun(self, setting: TraceSetting) -> None:
        """Note that a trace was begun."""
        self._buffer.begun(setting)

    def ended(self, trace: Trace) -> None:
        """Take a trace that has ended."""
        write = self._buffer.ended(trace)
        if write is not None:
            self._add([write])

    def replaced(self, settings: Iterable[TraceSetting]) -> None:
        """Write the traces of settings that are not in force any more."""
        self._add(self._buffer.replaced(settings))

    def _add(self, writes: Iterable[Write]) -> None:
        for write in writes:
            count = len(write.traces)
            if self._queued and (
                self._queued + count > TRACES_QUEUED_MAX
                or self._queued_bytes + write.tensor_bytes > TENSOR_BYTES_QUEUED_MAX
            ):
                _log.error("the disk is too slow for the traces: %d are dropped", count)
                continue
            self._queued += count
            self._queued_bytes += write.tensor_bytes
            self._writes.append(write)
            self._idle = trio.Event()
            self._news.set()

    def _write(self, write: Write) -> None:
        """Write on a thread, one file at a time."""
        objects = trace_objects(write.traces)
        path = Path(write.path)
        try:
            if not write.whole and self._begun and _has_content(path):
                _append(path, objects)
            else:
                path.write_bytes(b"[" + objects + b"]")
        except OSError as error:
            _log.error("a trace file cannot be written: %s", error)
        else:
            self._begun = self._begun or not write.whole


def _has_content(path: Path) -> bool:
    """Return whether there is a file to go on with; one that was emptied is begun anew."""
    return path.exists() and path.stat().st_size > 0


def _append(path: Path, objects: bytes) -> None:
    """Add objects to an array.

    Raises:
      OSError: they cannot be written; the array is as it was.
    """
    with path.open("r+b", buffering=0) as file:
        end = file.seek(-1, os.SEEK_END)  # on the bracket
        left = memoryview(b"," + objects + b"]")
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(end)  # which gives the room back
            file.seek(end)
            file.write(b"]")
            raise
