"""The directory of a model whose files came with a load request."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tritrio.actors._override_files import OverrideFiles
from tritrio.protocol.errors import RequestError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_last_holder_removes_the_directory(place: Path) -> None:
    files = OverrideFiles("m", {"1/a/b": b"x", "1/c": b""})
    directory = files.write()
    assert directory.name == "m"
    assert (directory / "1" / "a" / "b").read_bytes() == b"x"
    files.hold()
    files.release()
    assert directory.exists()
    files.release()
    assert list(place.iterdir()) == []


def test_nothing_is_left_if_the_last_holder_leaves_while_it_is_written(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OverrideFiles("m", {"1/a": b"x"})
    write_bytes = Path.write_bytes

    def leave(path: Path, content: bytes) -> int:
        files.release()
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", leave)
    files.write()
    assert list(place.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "nowhere"))
    files = OverrideFiles("m", {"1/a": b"x"})
    with pytest.raises(RequestError, match="the files of model 'm' cannot be written"):
        files.write()
    files.release()
