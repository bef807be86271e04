"""What Linux says about processors and memory."""

from __future__ import annotations

import os

import pytest

from tritrio.memory.system_usage import (
    CpuTimes,
    parse_cpu_times,
    parse_memory,
    read_system_usage,
)

STAT = """\
cpu  100 20 30 400 50 6 7 8 90 10
cpu0 1 1 1 1 1 1 1 1 1 1
ctxt 5
"""
MEMINFO = """\
MemTotal:       24731708 kB
MemFree:        23362088 kB
MemAvailable:   23931428 kB
HugePages_Total:       0
"""


def test_guests_are_not_counted_twice_and_waiting_is_idle() -> None:
    assert parse_cpu_times(STAT) == CpuTimes(total=621, idle=450)


@pytest.mark.parametrize(
    ("total", "idle", "expected"),
    [(0, 0, 0.0), (100, 100, 0.0), (100, 25, 0.75), (100, 0, 1.0), (100, -1, 1.0), (10, 20, 0.0)],
)
def test_utilization_is_the_busy_part_and_stays_in_its_bounds(
    total: int, idle: int, expected: float
) -> None:
    before = CpuTimes(1000, 500)
    assert CpuTimes(1000 + total, 500 + idle).utilization_since(before) == expected


def test_used_memory_is_what_a_program_could_not_have() -> None:
    assert parse_memory(MEMINFO) == (24731708 * 1024, (24731708 - 23931428) * 1024)


@pytest.mark.parametrize("text", ["", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"])
def test_other_processor_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected the line of all processors first"):
        parse_cpu_times(text)


@pytest.mark.parametrize("text", ["", "MemTotal: 1 kB", "MemTotal: \nMemAvailable: 1 kB"])
def test_other_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected MemTotal and MemAvailable"):
        parse_memory(text)


def test_this_machine_can_be_looked_at() -> None:
    usage = read_system_usage()
    assert usage.memory_total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < usage.memory_used_bytes < usage.memory_total_bytes
    assert 0 < usage.cpu.idle < usage.cpu.total
