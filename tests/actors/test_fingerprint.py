"""Whether the files of a model have changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.controlling import touch
from tritrio.actors import _fingerprint
from tritrio.actors._fingerprint import take_fingerprint
from tritrio.protocol.errors import RequestError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    for version in ("1", "2"):
        (directory / version / "deep").mkdir(parents=True)
        (directory / version / "deep" / "weights").write_text("some")
    (directory / "config.pbtxt").write_text("")
    (directory / "outside").symlink_to(tmp_path / "linked")
    (tmp_path / "linked").write_text("x")
    return directory


def replace_file(path: Path) -> None:
    """Replace a file by one of the same size and time."""
    times = path.stat()
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    new.replace(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: touch(model / "2" / "deep" / "weights"),
        lambda model: replace_file(model / "2" / "deep" / "weights"),
        lambda model: (model / "2" / "deep" / "weights").rename(model / "2" / "weights"),
        lambda model: (model / "2" / "empty").mkdir(),
        lambda model: (model / "2" / "dangling").symlink_to("nowhere"),
    ],
)
def test_a_change_in_a_version_changes_that_version_alone(
    model: Path, change: Callable[[Path], None]
) -> None:
    before = take_fingerprint(model)
    assert take_fingerprint(model) == before
    change(model)
    after = take_fingerprint(model)
    assert after.shared == before.shared
    assert after.versions[1] == before.versions[1]
    assert after.versions[2] != before.versions[2]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: touch(model / "outside"),  # where it leads
        lambda model: (model / "labels.txt").write_text(""),
        lambda model: (model / "3").write_text("no version, since it is a file"),
    ],
)
def test_a_change_beside_the_versions_changes_what_they_share(
    model: Path, change: Callable[[Path], None]
) -> None:
    before = take_fingerprint(model)
    change(model)
    after = take_fingerprint(model)
    assert after.versions == before.versions
    assert after.shared != before.shared
    assert after.config == before.config


def test_a_change_of_a_configuration_changes_nothing_else(model: Path) -> None:
    before = take_fingerprint(model)
    touch(model / "config.pbtxt")
    touched = take_fingerprint(model)
    (model / "configs").mkdir()
    (model / "configs" / "big.pbtxt").write_text("")
    added = take_fingerprint(model)
    assert len({before.config, touched.config, added.config}) == 3
    for after in (touched, added):
        assert (after.shared, after.versions) == (before.shared, before.versions)


def test_versions_that_come_and_go_leave_the_others_alone(model: Path) -> None:
    before = take_fingerprint(model)
    (model / "3").mkdir()
    after = take_fingerprint(model)
    assert after.shared == before.shared
    assert sorted(after.versions) == [1, 2, 3]
    assert {number: after.versions[number] for number in (1, 2)} == before.versions


@pytest.mark.parametrize("contents", [False, True])
def test_what_python_caches_and_editors_keep_is_no_change(model: Path, *, contents: bool) -> None:
    before = take_fingerprint(model, contents=contents)
    (model / "1" / "__pycache__").mkdir()
    (model / "1" / "__pycache__" / "model.pyc").write_text("")
    for name in (".model.py.swp", "model.py~", "model.py.swp", ".weights.Xy31"):
        (model / "1" / name).write_text("")
        (model / name).write_text("")
    (model / ".git").mkdir()
    assert take_fingerprint(model, contents=contents) == before


def rewrite(path: Path, text: str) -> None:
    """Write a file anew and set its time back."""
    times = path.stat()
    path.write_text(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("bytes_max", [0, 4])
def test_a_file_whose_time_was_set_back_has_changed(
    model: Path, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fingerprint, "CONTENT_MAX_BYTES", bytes_max)
    weights = model / "2" / "deep" / "weights"
    touch(weights)
    before = take_fingerprint(model, contents=True)
    rewrite(weights, "same")
    after = take_fingerprint(model, contents=True)
    assert after.shared == before.shared
    assert after.versions[1] == before.versions[1]
    assert after.versions[2] != before.versions[2]


def test_small_files_may_count_by_what_they_hold_and_large_ones_never_do(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fingerprint, "CONTENT_MAX_BYTES", 4)
    monkeypatch.setattr(_fingerprint, "CONTENTS_MAX_BYTES", 10)
    small, large = model / "1" / "deep" / "weights", model / "1" / "large"
    large.write_text("five!")
    before = take_fingerprint(model, contents=True)
    replace_file(small)
    touch(small)
    assert take_fingerprint(model, contents=True) == before
    touch(large)
    after = take_fingerprint(model, contents=True)
    assert after.versions[1] != before.versions[1]
    for name in ("a", "b"):  # read first, and then there is no more to read
        (model / "1" / "deep" / name).write_text("four")
    before = take_fingerprint(model, contents=True)
    touch(model / "1" / "deep" / "a")
    assert take_fingerprint(model, contents=True) == before
    touch(small)
    assert take_fingerprint(model, contents=True) != before


def test_links_that_lead_in_circles_end(model: Path) -> None:
    (model / "1" / "self").symlink_to(model / "1")
    (model / "1" / "up").symlink_to(model)
    (model / "round").symlink_to("round")
    before = take_fingerprint(model)
    touch(model / "2" / "deep" / "weights")
    assert take_fingerprint(model) != before


def test_too_many_files_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fingerprint, "ENTRIES_MAX", 7)
    with pytest.raises(RequestError, match="expected at most 7 files"):
        take_fingerprint(model)
