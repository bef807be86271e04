from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from tritrio.memory.cpu_quota import (
    parse_cfs_quota,
    parse_cgroup_paths,
    parse_cpu_max,
    smallest_quota,
    threads_per_instance,
    usable_cpus,
)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("max 100000\n", None),
        ("150000 100000\n", 1.5),
        ("5000 100000", 0.05),
        ("", None),
        ("100000", None),
        ("100000 0", None),
        ("many 100000", None),
        ("٣ 100000", None),
    ],
)
def test_cpu_max_is_a_share_or_no_limit(text: str, cpus: float | None) -> None:
    assert parse_cpu_max(text) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [("-1\n", "100000\n", None), ("200000\n", "100000\n", 2.0), ("", "", None)],
)
def test_cfs_quota_is_a_share_or_no_limit(quota: str, period: str, cpus: float | None) -> None:
    assert parse_cfs_quota(quota, period) == cpus


def test_each_controller_has_its_path() -> None:
    text = "4:memory:/a\n1:cpu,cpuacct:/pod:1/box\n0::/slice\nrubbish\n"
    assert parse_cgroup_paths(text) == {
        "memory": PurePosixPath("/a"),
        "cpu": PurePosixPath("/pod:1/box"),
        "cpuacct": PurePosixPath("/pod:1/box"),
        "": PurePosixPath("/slice"),
    }


def cgroup_files(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_the_tightest_quota_of_all_cgroups_above_counts(tmp_path: Path) -> None:
    root = cgroup_files(
        tmp_path,
        {
            "self": "0::/slice/box\n",
            "cpu.max": "max 100000",
            "slice/cpu.max": "150000 100000",
            "slice/box/cpu.max": "800000 100000",
        },
    )
    assert smallest_quota(root, root / "self") == 1.5


def test_version_1_files_count_too_and_a_path_of_the_host_is_harmless(tmp_path: Path) -> None:
    root = cgroup_files(
        tmp_path,
        {
            "self": "1:cpu:/docker/0123\n0::/\n",
            "cpu/cpu.cfs_quota_us": "300000",
            "cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert smallest_quota(root, root / "self") == 3.0


@pytest.mark.parametrize("text", ["", "0::/../../outside\n"])
def test_no_readable_file_means_no_quota(tmp_path: Path, text: str) -> None:
    root = cgroup_files(tmp_path, {"self": text})
    assert smallest_quota(root, root / "self") is None
    assert smallest_quota(root, root / "missing") is None


def test_this_process_may_use_some_cpu_and_no_more_than_its_affinity_allows() -> None:
    assert 0 < usable_cpus() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "instances", "threads"), [(8, 2, 4), (7.9, 2, 3), (1.5, 1, 1), (0.2, 3, 1), (4, 9, 1)]
)
def test_threads_of_all_instances_fit_the_quota_but_each_has_one(
    quota: float, instances: int, threads: int
) -> None:
    assert threads_per_instance(quota, instances) == threads
