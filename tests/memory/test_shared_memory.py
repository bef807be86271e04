"""Registered regions, on real shared memory objects."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.protocol.infer_specs import Refused
from tests.support.shared_memory import PAGE, read_at, shared_object, write_at
from tritrio.memory import shared_memory
from tritrio.memory.shared_memory import SharedMemoryRegions
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.shared_tensors import RegionSlice


@pytest.fixture
def item() -> Iterator[Path]:
    """An object of two pages."""
    with shared_object(2 * PAGE) as path:
        yield path


@pytest.fixture
def regions() -> SharedMemoryRegions:
    return SharedMemoryRegions()


def registered(regions: SharedMemoryRegions) -> list[tuple[str, str, int, int]]:
    return [(r.name, r.key, r.offset, r.byte_size) for r in regions.system_regions()]


def open_files() -> int:
    gc.collect()  # regions of other tests
    return len(os.listdir("/proc/self/fd"))


def test_a_region_is_read_and_written_at_its_offset(
    regions: SharedMemoryRegions, item: Path
) -> None:
    write_at(item, b"0123456789", PAGE)
    regions.register_system("r", f"/{item.name}", PAGE, PAGE)
    region = regions.find(RegionSlice("r", 2, 4))
    assert region.read(2, 4) == b"2345"
    region.write(3, b"xy")
    assert read_at(item, 10, PAGE) == b"012xy56789"
    assert region.read(0, 0) == b""


def test_regions_are_listed_by_name_with_what_was_given(
    regions: SharedMemoryRegions, item: Path
) -> None:
    regions.register_system("b", item.name, 0, 1)
    regions.register_system("a", f"///{item.name}", PAGE, PAGE)
    assert registered(regions) == [
        ("a", f"///{item.name}", PAGE, PAGE),
        ("b", item.name, 0, 1),
    ]
    assert [region.name for region in regions.system_regions("b")] == ["b"]


def test_a_region_outlives_the_name_of_its_object(regions: SharedMemoryRegions, item: Path) -> None:
    write_at(item, b"kept")
    regions.register_system("r", item.name, 0, PAGE)
    item.unlink()
    assert regions.find(RegionSlice("r", 0, 4)).read(0, 4) == b"kept"


def test_a_name_is_registered_once_and_an_object_often(
    regions: SharedMemoryRegions, item: Path
) -> None:
    regions.register_system("r", item.name, 0, PAGE)
    with Refused("'r'", code=ErrorCode.ALREADY_EXISTS):
        regions.register_system("r", "no object of this name", 0, PAGE)
    regions.register_system("s", item.name, 0, PAGE)
    assert [name for name, *_ in registered(regions)] == ["r", "s"]


@pytest.mark.parametrize(
    "key",
    ["", "/", "///", "/../x", "..", ".", "a/b", "a\0b", "\ud800", "x" * 256, "/" * 5000 + "x"],
)
def test_a_key_names_one_object(regions: SharedMemoryRegions, key: str) -> None:
    with Refused("'r'", "key"):
        regions.register_system("r", key, 0, PAGE)


def test_objects_of_the_reserved_prefix_are_refused_whether_there_are_any_or_not(
    regions: SharedMemoryRegions,
) -> None:
    name = f"triton_python_backend_shm_region_{os.getpid()}"
    with shared_object(PAGE, name=name):
        for key in (name, f"//{name}", f"{name}_none"):
            with Refused("'r'", "reserved", "'triton_python_backend_shm_region_'"):
                regions.register_system("r", key, 0, PAGE)


def test_an_object_that_is_not_there_cannot_be_opened(regions: SharedMemoryRegions) -> None:
    with Refused("'/nothing_of_this_name'", "No such file", code=ErrorCode.INTERNAL):
        regions.register_system("r", "/nothing_of_this_name", 0, PAGE)


def test_pipes_directories_and_links_are_no_shared_memory(
    regions: SharedMemoryRegions, item: Path
) -> None:
    odd = item.with_name(f"{item.name}_odd")
    before = open_files()
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink(item, path)):
        make(odd)
        try:
            with Refused("'r'", f"'{odd.name}'", "must be a shared memory object"):
                regions.register_system("r", odd.name, 0, PAGE)
        finally:
            odd.rmdir() if odd.is_dir() and not odd.is_symlink() else odd.unlink()
    assert open_files() == before


@pytest.mark.parametrize(
    ("offset", "byte_size", "facts"),
    [
        (0, 2 * PAGE + 1, (str(2 * PAGE + 1), f"object of {2 * PAGE} bytes")),
        (2 * PAGE, 1, ("not within",)),
        (2**64 - PAGE, PAGE, ("not within",)),
        (0, 0, ("above 0",)),
        (64, 64, ("page size", "got byte 64")),
    ],
)
def test_a_region_is_a_part_of_its_object_from_a_page_on(
    regions: SharedMemoryRegions,
    item: Path,
    *,
    offset: int,
    byte_size: int,
    facts: tuple[str, ...],
) -> None:
    before = open_files()
    with Refused("'r'", *facts):
        regions.register_system("r", item.name, offset, byte_size)
    assert registered(regions) == []
    assert open_files() == before


def test_names_of_regions_are_bounded(regions: SharedMemoryRegions, item: Path) -> None:
    with Refused("name", "none"):
        regions.register_system("", item.name, 0, PAGE)
    with Refused("1024 characters", "1025"):
        regions.register_system("n" * 1025, item.name, 0, PAGE)


def test_the_number_of_regions_is_bounded(
    regions: SharedMemoryRegions, item: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "REGIONS_MAX", 2)
    regions.register_system("a", item.name, 0, PAGE)
    regions.register_system("b", item.name, 0, PAGE)
    with Refused("'c'", "2 regions", code=ErrorCode.UNAVAILABLE):
        regions.register_system("c", item.name, 0, PAGE)
    regions.unregister_system("a")
    regions.register_system("c", item.name, 0, PAGE)


def test_regions_leave_half_of_the_files_of_the_process_to_connections(
    regions: SharedMemoryRegions, item: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        for number in range(200):
            regions.register_system(f"r{number}", item.name, 0, PAGE)
        with Refused("'more'", "200 regions", code=ErrorCode.UNAVAILABLE):
            regions.register_system("more", item.name, 0, PAGE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        regions.unregister_system()


@pytest.mark.parametrize(
    ("offset", "byte_size", "facts"),
    [
        (PAGE, 0, ("'shared_memory_offset'", f"{PAGE} bytes")),
        (PAGE + 1, 1, ("'shared_memory_offset'",)),
        (PAGE - 1, 2, ("not within", f"{PAGE} bytes")),
        (8, 2**64 - 1, ("8", str(2**64 - 1), "exceed the maximum")),
    ],
)
def test_a_slice_lies_in_its_region(
    regions: SharedMemoryRegions,
    item: Path,
    *,
    offset: int,
    byte_size: int,
    facts: tuple[str, ...],
) -> None:
    regions.register_system("r", item.name, 0, PAGE)
    with Refused("'r'", *facts):
        regions.find(RegionSlice("r", offset, byte_size))


def test_an_unknown_region_is_not_found(regions: SharedMemoryRegions, item: Path) -> None:
    regions.register_system("r", item.name, 0, PAGE)
    with Refused("'x'", code=ErrorCode.NOT_FOUND):
        regions.find(RegionSlice("x", 0, 1))
    with Refused("system", "'x'", code=ErrorCode.NOT_FOUND):
        regions.system_regions("x")
    with Refused("CUDA", "'x'", code=ErrorCode.NOT_FOUND):
        regions.check_cuda_region("x")
    with Refused("'r'", "system", "CUDA", code=ErrorCode.NOT_FOUND):
        regions.check_cuda_region("r")
    regions.check_cuda_region("")


def test_unregistering_what_nobody_knows_does_nothing(
    regions: SharedMemoryRegions, item: Path
) -> None:
    regions.register_system("r", item.name, 0, PAGE)
    regions.unregister_system("x")
    regions.unregister_cuda()
    assert len(registered(regions)) == 1
    regions.unregister_system()
    assert registered(regions) == []


def test_a_region_in_use_goes_with_its_last_user(regions: SharedMemoryRegions, item: Path) -> None:
    write_at(item, b"data")
    regions.register_system("r", item.name, 0, PAGE)
    before = open_files()
    region = regions.find(RegionSlice("r", 0, 4))
    regions.hold([region, region])
    regions.unregister_system("r")
    assert len(registered(regions)) == 1
    with Refused("'r'", code=ErrorCode.NOT_FOUND):
        regions.find(RegionSlice("r", 0, 4))
    with Refused("'r'", code=ErrorCode.ALREADY_EXISTS):
        regions.register_system("r", item.name, 0, PAGE)
    regions.let_go([region])
    assert region.read(0, 4) == b"data"
    regions.let_go([region])
    assert registered(regions) == []
    assert open_files() == before - 1
    regions.register_system("r", item.name, 0, PAGE)


def test_a_region_that_was_used_stays_until_it_is_unregistered(
    regions: SharedMemoryRegions, item: Path
) -> None:
    regions.register_system("r", item.name, 0, PAGE)
    region = regions.find(RegionSlice("r", 0, 4))
    regions.hold([region])
    regions.let_go([region])
    assert len(registered(regions)) == 1


def test_what_is_left_registered_is_closed_with_its_server(item: Path) -> None:
    before = open_files()
    regions = SharedMemoryRegions()
    regions.register_system("r", item.name, 0, PAGE)
    assert open_files() == before + 1
    del regions
    assert open_files() == before


def test_an_object_that_has_become_shorter_is_reported_and_not_made_longer(
    regions: SharedMemoryRegions, item: Path
) -> None:
    regions.register_system("r", item.name, PAGE, PAGE)
    region = regions.find(RegionSlice("r", 0, 8))
    os.truncate(item, PAGE + 6)
    assert region.read(0, 6) == bytes(6)
    with Refused("'r'", "shorter", f"has {PAGE + 6}"):
        region.read(0, 8)
    with Refused("'r'", "shorter", f"has {PAGE + 6}"):
        region.write(0, b"too long")
    assert item.stat().st_size == PAGE + 6
    region.write(0, b"enough")
    assert read_at(item, 6, PAGE) == b"enough"


def test_registering_can_be_switched_off(item: Path) -> None:
    regions = SharedMemoryRegions(allowed=False)
    calls: list[Callable[[], None]] = [
        lambda: regions.register_system("r", item.name, 0, PAGE),
        lambda: regions.register_cuda("r", bytes(64)),
        regions.unregister_system,
        regions.unregister_cuda,
    ]
    for call in calls:
        with Refused("--allow-client-shm", code=ErrorCode.UNSUPPORTED):
            call()
    assert registered(regions) == []


def test_cuda_regions_are_refused_after_a_look_at_the_handle(regions: SharedMemoryRegions) -> None:
    with Refused("'c'", "'raw_handle'", "64 bytes", "63 bytes"):
        regions.register_cuda("c", bytes(63))
    with Refused("'c'", "no GPU support"):
        regions.register_cuda("c", bytes(64))
    with Refused("name", "none"):
        regions.register_cuda("", bytes(64))
