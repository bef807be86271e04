"""The machine is looked at in equal intervals, or not at all."""

from __future__ import annotations

import logging

import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock, wait_all_tasks_blocked

from tritrio.actors.metrics_collector import ModelCollector, render
from tritrio.actors.system_monitor import SystemMonitor
from tritrio.memory.system_usage import CpuTimes, SystemUsage

CPU_FAMILIES = {"nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"}


def shown(system: SystemMonitor) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ModelCollector(list, system=system))
    text = render(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {
        name: family.samples[0].value for name, family in families.items() if name in CPU_FAMILIES
    }


async def test_utilization_is_that_of_the_last_interval(autojump_clock: MockClock) -> None:
    idle = iter([100, 100, 105, 115])
    looks: list[float] = []

    def read() -> SystemUsage:
        looks.append(trio.current_time())
        total = 1000 + 10 * len(looks)
        return SystemUsage(CpuTimes(total, next(idle)), 4096, 1024 * len(looks))

    system = SystemMonitor(interval_s=0.5, read=read)
    assert shown(system) == {}
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(system.run)
            seen: list[dict[str, float]] = []
            for at_s in (0.25, 0.75, 1.25, 1.75):
                await trio.sleep_until(at_s)
                seen.append(shown(system))
            scope.cancel()
    assert looks == [0.0, 0.5, 1.0, 1.5]
    assert [sample["nv_cpu_utilization"] for sample in seen] == [0.0, 1.0, 0.5, 0.0]
    assert [sample["nv_cpu_memory_used_bytes"] for sample in seen] == [1024, 2048, 3072, 4096]
    assert {sample["nv_cpu_memory_total_bytes"] for sample in seen} == {4096}


async def test_a_machine_that_cannot_be_looked_at_has_no_such_metrics(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def read() -> SystemUsage:
        raise FileNotFoundError("no /proc")

    system = SystemMonitor(interval_s=0.5, read=read)
    with caplog.at_level(logging.WARNING):
        await system.run()
    assert [record.message for record in caplog.records] == [
        "there are no metrics of processor and memory: no /proc"
    ]
    await wait_all_tasks_blocked()
    assert shown(system) == {}
