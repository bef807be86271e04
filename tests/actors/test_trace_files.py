"""Trace files when the disk is slow, and modes that need what is not installed."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.traces import SPEC, request, setting
from tritrio.actors import _trace_files as module
from tritrio.actors._trace_buffer import TENSOR_OVERHEAD_BYTES
from tritrio.actors._trace_files import LAST_WRITES_S, TraceFiles
from tritrio.actors.tracing import Tracing
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.trace import Trace
from tritrio.protocol.trace_config import parse_trace_config
from tritrio.protocol.trace_settings import TraceSetting
from tritrio.testing.fake_device import at_once

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def hang(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
    """A disk that never answers."""
    await trio.sleep_forever()


class Ended:
    """Makes traces that have ended for some files."""

    def __init__(self, files: TraceFiles, under: TraceSetting) -> None:
        self._files = files
        self._setting = under

    def child(self, parent: Trace) -> Trace:
        raise AssertionError(parent)

    def begun(self, trace: Trace) -> None:
        self._files.begun(trace.setting)

    def finished(self, trace: Trace) -> None:
        self._files.ended(trace)

    def add(self, number: int) -> None:
        trace = Trace(self, number, self._setting)
        trace.begin(request(), SPEC, 1)
        trace.release()
        trace.abandon(2)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.name == "tritrio.tracing"]


async def test_the_end_does_not_wait_for_a_disk_that_hangs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    files = TraceFiles("f", hang)
    async with trio.open_nursery() as nursery:
        await nursery.start(files.run)
        Ended(files, setting()).add(1)
        start_s = trio.current_time()
        await files.stop()
        assert trio.current_time() - start_s == LAST_WRITES_S
        nursery.cancel_scope.cancel()
    assert messages(caplog) == ["1 traces could not be written in time"]


async def test_traces_are_dropped_where_too_many_wait_for_the_disk(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRACES_QUEUED_MAX", 2)
    files = TraceFiles("f", hang)
    async with trio.open_nursery() as nursery:
        await nursery.start(files.run)
        ended = Ended(files, setting("triton,log-frequency=1"))
        for number in range(4):
            ended.add(number)
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert messages(caplog) == ["the disk is too slow for the traces: 1 are dropped"] * 2


async def test_tensors_are_dropped_where_too_many_bytes_of_them_wait_for_the_disk(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TENSOR_BYTES_QUEUED_MAX", 2 * (8 + TENSOR_OVERHEAD_BYTES))
    files = TraceFiles("f", hang)
    async with trio.open_nursery() as nursery:
        await nursery.start(files.run)
        ended = Ended(files, setting("level=TENSORS", "triton,log-frequency=1"))
        for number in range(4):
            ended.add(number)
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert messages(caplog) == ["the disk is too slow for the traces: 1 are dropped"] * 2


@pytest.mark.parametrize("how", [Path.unlink, lambda path: os.truncate(path, 0)])
async def test_a_file_that_went_away_or_was_emptied_is_begun_anew(
    autojump_clock: MockClock, tmp_path: Path, how: Callable[[Path], None]
) -> None:
    path = tmp_path / "f"
    files = TraceFiles(str(path), at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(files.run)
        first, second = setting(), setting()
        Ended(files, first).add(1)
        files.replaced([first])
        await wait_all_tasks_blocked()
        how(path)
        Ended(files, second).add(2)
        await files.stop()
        nursery.cancel_scope.cancel()
    assert path.read_text().startswith('[{"id":2,')


async def test_what_a_full_disk_does_not_take_leaves_the_file_as_it_was(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "f"
    files = TraceFiles(str(path), at_once)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def write(number: int) -> None:
        under = setting()
        Ended(files, under).add(number)
        files.replaced([under])
        await wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        await nursery.start(files.run)
        await write(1)
        before = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
        try:
            await write(2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        await write(3)
        nursery.cancel_scope.cancel()
    [message] = messages(caplog)
    assert message.startswith("a trace file cannot be written: ")
    numbers = [each["id"] for each in json.loads(path.read_bytes()) if "model_name" in each]
    assert numbers == [1, 3]


async def test_spans_need_an_extra_that_the_error_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tritrio.actors._trace_spans", None)
    config = parse_trace_config(["mode=opentelemetry"], {})
    with pytest.raises(RequestError, match=r"needs the extra 'tracing'") as caught:
        Tracing(config, at_once)
    assert caught.value.code is ErrorCode.UNSUPPORTED
