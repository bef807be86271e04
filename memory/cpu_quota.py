"""How many CPUs this process may use, and how they are shared among model instances.

A container sees all CPUs of its host; what it may use is in its cgroup's bandwidth quota and in
the scheduler's affinity mask. Thread pools sized by the former starve their neighbours.
Source: Linux admin-guide/cgroup-v2.rst (`cpu.max`), scheduler/sched-bwc.rst (`cpu.cfs_*_us`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
CGROUP_OF_PROCESS: Final = Path("/proc/self/cgroup")


def parse_cpu_max(text: str) -> float | None:
    """Return the CPUs that a cgroup v2 `cpu.max` allows; None if it sets no limit.

    Args:
      text: "<quota> <period>" in microseconds, or "max <period>".
    """
    quota, _, period = text.strip().partition(" ")
    return parse_cfs_quota("-1" if quota == "max" else quota, period)


def parse_cfs_quota(quota_us: str, period_us: str) -> float | None:
    """Return the CPUs that cgroup v1 `cpu.cfs_quota_us` and `cpu.cfs_period_us` allow.

    None if they set no limit (a quota of -1) or are not the numbers the kernel writes.
    """
    quota_us, period_us = quota_us.strip(), period_us.strip()
    if not (_is_number(quota_us) and _is_number(period_us)) or int(period_us) == 0:
        return None
    return int(quota_us) / int(period_us)


def parse_cgroup_paths(text: str) -> dict[str, PurePosixPath]:
    """Return the process's cgroup of each controller from `/proc/self/cgroup`.

    The unified (v2) hierarchy has the controller "". Lines that are not "id:controllers:path"
    are skipped.
    """
    paths: dict[str, PurePosixPath] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths[controller] = PurePosixPath(parts[2])
    return paths


def smallest_quota(
    root: Path = CGROUP_ROOT, cgroup_of_process: Path = CGROUP_OF_PROCESS
) -> float | None:
    """Return the tightest CPU quota of the process's cgroup and those above it, v1 or v2."""
    paths = parse_cgroup_paths(_read(cgroup_of_process))
    quotas = [parse_cpu_max(_read(at / "cpu.max")) for at in _upwards(root, paths.get(""))]
    quotas += [
        parse_cfs_quota(_read(at / "cpu.cfs_quota_us"), _read(at / "cpu.cfs_period_us"))
        for at in _upwards(root / "cpu", paths.get("cpu"))
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def usable_cpus() -> float:
    """Return how many CPUs this process may keep busy; more than 0, not always whole."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota = smallest_quota()
    return allowed if quota is None else min(allowed, quota)


def threads_per_instance(quota: float, instances: int) -> int:
    """Return how many threads each of `instances` may run so that `quota` CPUs suffice; >= 1."""
    assert instances >= 1
    return max(1, math.floor(quota / instances))


def _upwards(hierarchy: Path, cgroup: PurePosixPath | None) -> Iterator[Path]:
    """Yield the directories of a cgroup and of all above it; inside a container they may miss."""
    if cgroup is not None and ".." not in cgroup.parts:
        for ancestor in (cgroup, *cgroup.parents):
            yield hierarchy / ancestor.relative_to(ancestor.root)
    else:
        yield hierarchy


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""  # another cgroup version, or no access: that file sets no limit


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
