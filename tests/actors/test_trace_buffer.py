"""Which traces are written when, and to which file."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.traces import SPEC, Traces, request, setting, tensor
from tritrio.actors import _trace_buffer as module
from tritrio.actors._trace_buffer import TENSOR_OVERHEAD_BYTES, TraceBuffer, Write
from tritrio.protocol.trace import Trace
from tritrio.protocol.trace_settings import TraceSetting


class Buffered:
    """A buffer, and traces of one setting for it."""

    def __init__(self, under: TraceSetting, buffer: TraceBuffer | None = None) -> None:
        self.setting = under
        self.buffer = TraceBuffer("f") if buffer is None else buffer
        self.traces = Traces(under)

    def begin(self, parent: Trace | None = None) -> Trace:
        if parent is None:
            assert self.setting.sample(forced=False)
        self.buffer.begun(self.setting)
        return self.traces.new(parent)

    def end(self, trace: Trace | None = None) -> Write | None:
        return self.buffer.ended(self.begin() if trace is None else trace)

    def replace(self) -> list[Write]:
        return self.buffer.replaced([self.setting])


def numbers(write: Write | None) -> tuple[str, bool, list[int]]:
    assert write is not None
    return write.path, write.whole, [trace.number for trace in write.traces]


def test_all_traces_are_written_at_the_end() -> None:
    some = Buffered(setting())
    assert [some.end(), some.end()] == [None, None]
    assert list(map(numbers, some.buffer.rest())) == [("f", False, [1, 2])]


def test_every_so_many_requests_are_a_file() -> None:
    some = Buffered(setting("triton,log-frequency=2"))
    writes = [some.end() for _ in range(5)]
    assert [write and numbers(write) for write in writes] == [
        None,
        ("f.0", True, [1, 2]),
        None,
        ("f.1", True, [3, 4]),
        None,
    ]
    assert list(map(numbers, some.buffer.rest())) == [("f.2", True, [5])]


def test_children_are_in_the_file_and_do_not_count() -> None:
    some = Buffered(setting("triton,log-frequency=1"))
    parent = some.begin()
    children = [some.begin(parent) for _ in range(2)]
    assert [some.end(child) for child in children] == [None, None]
    assert numbers(some.end(parent)) == ("f.0", True, [2, 3, 1])


def test_the_last_of_a_count_closes_the_file_once_all_have_ended() -> None:
    some = Buffered(setting("count=2"))
    first, second = some.begin(), some.begin()
    assert some.end(second) is None
    assert numbers(some.end(first)) == ("f.0", True, [2, 1])
    assert some.buffer.rest() == []


def test_a_replaced_setting_is_written_at_once_and_what_runs_when_it_ends() -> None:
    some = Buffered(setting())
    running = some.begin()
    assert some.end() is None
    assert list(map(numbers, some.replace())) == [("f", False, [2])]
    assert numbers(some.end(running)) == ("f", False, [1])
    assert some.replace() == []


def test_settings_do_not_share_files_of_some_but_the_numbers() -> None:
    one = Buffered(setting("triton,log-frequency=2"))
    other = Buffered(setting("triton,log-frequency=1"), one.buffer)
    assert one.end() is None
    assert numbers(other.end())[0] == "f.0"
    assert numbers(one.end())[0] == "f.1"


def test_too_many_traces_are_written_though_their_time_has_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TRACES_HELD_MAX", 2)
    some = Buffered(setting("triton,log-frequency=9"))
    assert some.end() is None
    assert numbers(some.end()) == ("f", False, [1, 2])
    assert len(some.buffer) == 0


def test_too_many_bytes_of_tensors_are_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENSOR_BYTES_HELD_MAX", 16 + 2 * TENSOR_OVERHEAD_BYTES)
    some = Buffered(setting("level=TENSORS"))
    writes = []
    for _ in range(3):
        trace = some.begin()
        trace.begin(request(X=tensor("X", np.zeros(2, np.int32))), SPEC, 1)
        writes.append(some.end(trace))
    assert [write is None for write in writes] == [True, False, True]
    assert writes[1] is not None
    assert writes[1].tensor_bytes == 16 + 2 * TENSOR_OVERHEAD_BYTES
