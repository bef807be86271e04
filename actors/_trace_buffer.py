"""Which traces are written when, and to which file.  Pure: no trio, no clock, no I/O.

Source: the trace files of Triton's trace extension.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, final

from ..protocol.trace import TensorSeen, Trace
from ..protocol.trace_settings import TraceSetting

TRACES_HELD_MAX: Final = 10_000
"""Traces that wait for a file to be complete; at about 4 KiB each. Then they are written to the
file of all traces, though the setting is still in force."""

TENSOR_BYTES_HELD_MAX: Final = 64 * 1024 * 1024
"""Likewise for the tensors in them."""

TENSOR_OVERHEAD_BYTES: Final = 512
"""What a tensor takes beside its content. Streams have thousands of tensors of a few bytes."""


class Write(NamedTuple):
    """Traces for one file.

    Attributes:
      path: The file.
      whole: Whether they are all of the file; else they are added to it.
      traces: In the order in which they ended; at least one.
      tensor_bytes: What their tensors hold.
    """

    path: str
    whole: bool
    traces: list[Trace]
    tensor_bytes: int


class _Held:
    """The traces that were sampled by one setting.

    Attributes:
      traces: Those that have ended and are not written.
      requests: How many of them are of clients.
      tensor_bytes: What their tensors hold.
      open: How many have not ended.
      replaced: Whether the setting is not in force any more.
    """

    __slots__ = ("open", "replaced", "requests", "tensor_bytes", "traces")

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.requests = 0
        self.tensor_bytes = 0
        self.open = 0
        self.replaced = False


@final
class TraceBuffer:
    """Keeps traces until they are due.

    Args:
      file: The file of all traces; files of some have a number behind its name.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._files = 0
        self._held: dict[TraceSetting, _Held] = {}

    def __len__(self) -> int:
        return sum(len(held.traces) for held in self._held.values())

    def begun(self, setting: TraceSetting) -> None:
        """Note that a trace was begun."""
        self._held.setdefault(setting, _Held()).open += 1

    def ended(self, trace: Trace) -> Write | None:
        """Take a trace that has ended; returns what is due by that."""
        setting = trace.setting
        held = self._held[setting]
        held.open -= 1
        held.traces.append(trace)
        held.requests += trace.parent is None
        held.tensor_bytes += sum(
            event.tensor.byte_size + TENSOR_OVERHEAD_BYTES
            for event in trace.events
            if isinstance(event, TensorSeen)
        )
        if held.replaced and not held.open:
            del self._held[setting]
            return self._rest(setting, held)
        over = not held.open and setting.count_left == 0
        if over or (setting.log_frequency and held.requests >= setting.log_frequency):
            return self._numbered(held)
        if len(held.traces) >= TRACES_HELD_MAX or held.tensor_bytes >= TENSOR_BYTES_HELD_MAX:
            return self._added(held)
        return None

    def replaced(self, settings: Iterable[TraceSetting]) -> list[Write]:
        """Note that settings are not in force any more; returns what is due by that."""
        writes: list[Write] = []
        for setting in settings:
            held = self._held.get(setting)
            if held is None:
                continue
            held.replaced = True
            if held.traces:
                writes.append(self._rest(setting, held))
            if not held.open:
                del self._held[setting]
        return writes

    def rest(self) -> list[Write]:
        """Return everything that has ended, at the end of the server."""
        return [self._rest(setting, held) for setting, held in self._held.items() if held.traces]

    def _rest(self, setting: TraceSetting, held: _Held) -> Write:
        return self._numbered(held) if setting.log_frequency else self._added(held)

    def _numbered(self, held: _Held) -> Write:
        path = f"{self._file}.{self._files}"
        self._files += 1
        return self._taken(path, True, held)

    def _added(self, held: _Held) -> Write:
        return self._taken(self._file, False, held)

    @staticmethod
    def _taken(path: str, whole: bool, held: _Held) -> Write:
        write = Write(path, whole, held.traces, held.tensor_bytes)
        held.traces = []
        held.requests = held.tensor_bytes = 0
        return write
