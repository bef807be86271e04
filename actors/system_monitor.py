"""The system monitor actor: one per server with metrics. It has no inbox; scrapes read what it saw.

Source: Triton's `nv_cpu_*` metric families, over `--metrics-interval-ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

import trio

from ..memory.system_usage import SystemUsage, read_system_usage

_logger = logging.getLogger(__name__)


@final
class SystemMonitor:
    """Looks at the machine in equal intervals.

    Lifetime: `run` goes on until it is cancelled, or until the machine cannot be looked at.

    Args:
      interval_s: Seconds between two looks.
      read: Looks once; it takes far less than a millisecond, and may raise OSError or ValueError.

    Attributes:
      usage: What the last look saw; None before the first one, and if there can be none.
      cpu_utilization: The busy part of all processors over the last interval, from 0 to 1.
    """

    def __init__(
        self, *, interval_s: float, read: Callable[[], SystemUsage] = read_system_usage
    ) -> None:
        self._interval_s = interval_s
        self._read = read
        self.usage: SystemUsage | None = None
        self.cpu_utilization = 0.0

    def __repr__(self) -> str:
        return f"<SystemMonitor every {self._interval_s:g} s: {self.usage}>"

    async def run(self) -> None:
        """Look now and then."""
        try:
            while True:
                self._look()
                await trio.sleep(self._interval_s)
        except (OSError, ValueError) as fault:
            self.usage = None
            _logger.warning("there are no metrics of processor and memory: %s", fault)

    def _look(self) -> None:
        before, self.usage = self.usage, self._read()
        if before is not None:
            self.cpu_utilization = self.usage.cpu.utilization_since(before.cpu)
