"""What the whole machine does: its processors and its memory, as Linux tells.

Source: Linux proc(5), `/proc/stat` and `/proc/meminfo`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

STAT: Final = Path("/proc/stat")
MEMINFO: Final = Path("/proc/meminfo")

_STATES: Final = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice already."""
_IDLE: Final = slice(3, 5)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """What all processors together have done since the start, in ticks of the kernel.

    Attributes:
      total: All of it.
      idle: Doing nothing, or waiting for a disk.
    """

    total: int
    idle: int

    def utilization_since(self, before: CpuTimes) -> float:
        """Return the busy part of the time since then, from 0 to 1; 0 if no time has passed."""
        total = self.total - before.total
        busy = total - (self.idle - before.idle)
        return min(1.0, max(0.0, busy / total)) if total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class SystemUsage:
    """One look at the machine.

    Attributes:
      cpu: What its processors have done.
      memory_total_bytes: All of its memory.
      memory_used_bytes: What could not be had by a new program.
    """

    cpu: CpuTimes
    memory_total_bytes: int
    memory_used_bytes: int


def parse_cpu_times(text: str) -> CpuTimes:
    """Return what `/proc/stat` says.

    Raises:
      ValueError: it is not what Linux writes.
    """
    fields = text.partition("\n")[0].split()
    ticks = fields[1 : 1 + _STATES]
    if fields[:1] != ["cpu"] or len(ticks) < _STATES or not all(map(str.isdigit, ticks)):
        raise ValueError(f"expected the line of all processors first in {STAT}")
    numbers = [int(text) for text in ticks]
    return CpuTimes(sum(numbers), sum(numbers[_IDLE]))


def parse_memory(text: str) -> tuple[int, int]:
    """Return the total and the used bytes that `/proc/meminfo` says.

    Raises:
      ValueError: it is not what Linux writes.
    """
    lines = (line.partition(":") for line in text.splitlines())
    sizes = {name: value.split() for name, _, value in lines}
    try:
        total, available = (int(sizes[name][0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (LookupError, ValueError):
        raise ValueError(f"expected MemTotal and MemAvailable in {MEMINFO}") from None
    return total, max(0, total - available)


def read_system_usage() -> SystemUsage:
    """Look at the machine, which takes some 50 microseconds.

    Raises:
      OSError: this is not Linux.
      ValueError: or not as it is known.
    """
    total, used = parse_memory(MEMINFO.read_text("ascii"))
    return SystemUsage(parse_cpu_times(STAT.read_text("ascii")), total, used)
