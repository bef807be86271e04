"""What lies in a repository and should not: it is refused or ignored, and said so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.actors.test_core import IDENTITY, add_model, reasons, running, states
from tests.support.controlling import controlled
from tritrio.actors._model_preparation import LABELS_BYTES_MAX
from tritrio.actors._repository_scan import (
    ScanSettings,
    check_repository,
    find_model,
    scan_repository,
)
from tritrio.actors.model import REASON_MAX_CHARS
from tritrio.actors.routing_table import ModelState
from tritrio.protocol.config_text import CONFIG_MAX_BYTES
from tritrio.protocol.errors import RequestError


def test_a_directory_whose_name_is_not_utf8_is_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(tmp_path, "good")
    add_model(tmp_path, os.fsdecode(b"caf\xe9"))
    assert [files.name for files in scan_repository(tmp_path)] == ["good"]
    assert "caf\\udce9' is ignored: the name of a model must be UTF-8 text" in caplog.text
    scan_repository(tmp_path)
    assert caplog.text.count("is ignored") == 1  # it is told of once, and not at every look


def test_a_link_that_cannot_be_followed_is_one_model_at_fault_and_not_the_repository(
    tmp_path: Path,
) -> None:
    add_model(tmp_path, "good")
    (tmp_path / "bad").symlink_to("x" * 300)  # no file has so long a name: not even looked for
    settings = ScanSettings(fingerprints=True)
    bad, good = scan_repository(tmp_path, settings)
    assert (bad.name, good.name, good.fault) == ("bad", "good", None)
    assert bad.fault is not None
    assert bad.fault.message.startswith("model 'bad' cannot be read: File name too long")
    [found] = find_model([tmp_path], "bad", settings)
    assert found.fault is not None
    assert found.fault.message == bad.fault.message


def test_in_a_repository_that_cannot_be_searched_each_model_is_at_fault(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to("x" * 300)
    [files] = find_model([tmp_path / "models"], "a")
    assert files.fault is not None
    assert files.fault.message.startswith("model 'a' cannot be read: File name too long")


async def test_a_repository_that_cannot_be_searched_takes_no_server_down_when_a_model_goes(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path / "models", "a")
    add_model(tmp_path / "models", "b")
    async with controlled(tmp_path / "models", startup_models=("a", "b")) as core:
        (tmp_path / "models").rename(tmp_path / "away")
        (tmp_path / "models").symlink_to("x" * 300)
        await core.control.unload("a")
        await trio.testing.wait_all_tasks_blocked()
        assert states(core) == {"a/1": ModelState.UNAVAILABLE, "b/1": ModelState.READY}
        with pytest.raises(RequestError, match="model 'a' cannot be read: File name too long"):
            await core.control.load("a")


def oversized(path: Path, size_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(size_bytes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "expected a regular file, got one of mode prw"),
        (Path.mkdir, "expected a regular file, got one of mode drwx"),
        (lambda path: path.symlink_to(os.devnull), "expected a regular file, got one of mode crw"),
        (
            lambda path: oversized(path, CONFIG_MAX_BYTES + 1),
            f"expected a file of at most {CONFIG_MAX_BYTES} bytes, got {CONFIG_MAX_BYTES + 1}",
        ),
    ],
)
def test_only_a_regular_file_of_bounded_size_is_a_configuration(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    path = add_model(tmp_path, "odd", None) / "config.pbtxt"
    make(path)
    [files] = scan_repository(tmp_path)
    assert files.fault is not None
    assert files.fault.message.startswith(f"model 'odd': {words}")
    assert files.fault.message.endswith(f": {path}")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "expected a regular file"),
        (lambda path: oversized(path, LABELS_BYTES_MAX + 1), "expected a file of at most"),
        (lambda path: path.write_bytes(b"\xff"), "cannot be read"),
    ],
)
async def test_only_a_regular_text_file_of_bounded_size_has_labels(
    autojump_clock: MockClock, tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    config = IDENTITY.replace('"OUTPUT0"', '"OUTPUT0" label_filename: "labels.txt"')
    make(add_model(tmp_path, "odd", config) / "labels.txt")
    async with running(tmp_path) as core:
        assert "label_filename 'labels.txt' of output 'OUTPUT0'" in reasons(core)["odd"]
        assert words in reasons(core)["odd"]


async def test_a_repository_is_one_however_it_is_spelt(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    repository, link = tmp_path / "models", tmp_path / "link"
    add_model(repository, "model")
    link.symlink_to(repository)
    async with running(repository, repository / ".." / "models", link) as core:
        assert states(core) == {"model/1": ModelState.READY}


def test_what_has_the_name_of_a_version_and_is_no_directory_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = add_model(tmp_path, "model")
    (directory / "2").write_text("a file")
    (directory / "3").symlink_to(tmp_path / "missing")
    (directory / "labels.txt").write_text("a label")
    [files] = scan_repository(tmp_path)
    assert list(files.versions) == [1]
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"'{directory / name}' is ignored: a version must be a directory" for name in ("2", "3")
    ]


def test_only_canonical_numbers_are_versions_and_the_rest_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = add_model(tmp_path, "model", versions=("0", "10"))
    (directory / "7").symlink_to(directory / "10")
    ignored = ["01", "-1", "1_backup", "1 ", "9" * 29, ".ipynb_checkpoints", "latest"]
    for name in ignored:
        (directory / name).mkdir()
    for name in ("configs", "initial_state", "warmup"):
        (directory / name).mkdir()
    [files] = scan_repository(tmp_path)
    assert list(files.versions) == [0, 7, 10]
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"'{directory / name}' is ignored: its name is no version number" for name in ignored
    )


def test_ten_thousand_versions_are_found(tmp_path: Path) -> None:
    add_model(tmp_path, "model", versions=tuple(map(str, range(10_000))))
    [files] = scan_repository(tmp_path)
    assert list(files.versions) == list(range(10_000))


async def test_a_reason_quotes_only_the_beginning_of_a_long_name(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "long", f'name: "{"x" * 200_000}"' + IDENTITY)
    async with running(tmp_path) as core:
        assert len(reasons(core)["long"]) <= REASON_MAX_CHARS + 1
        assert reasons(core)["long"].startswith("Invalid argument: ")


async def test_a_model_that_fails_is_logged_by_whoever_shows_the_index(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(tmp_path, "typo", "max_batch_size: oops")
    add_model(tmp_path, "no_dims", IDENTITY.replace("dims: [ -1 ]", ""))
    async with running(tmp_path) as core:
        assert set(states(core).values()) == {ModelState.UNAVAILABLE}
    assert caplog.records == []


def lay_out(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")
    return root


@pytest.mark.parametrize(
    "files", [("config.pbtxt", "1/model.py"), ("1/model.onnx", "2/model.onnx"), ("config.pbtxt",)]
)
async def test_a_model_in_place_of_its_repository_is_refused_and_its_parent_named(
    autojump_clock: MockClock, tmp_path: Path, files: tuple[str, ...]
) -> None:
    lay_out(tmp_path / "adds", *files)
    with pytest.RaisesGroup(
        pytest.RaisesExc(
            RequestError,
            match=f"got '{tmp_path}/adds', which looks like a model itself; expected its parent "
            f"directory '{tmp_path}'$",
        )
    ):
        async with running(tmp_path / "adds"):
            pass


@pytest.mark.parametrize("file", ["model.py", "model.json"])
def test_a_version_in_place_of_its_repository_is_refused(tmp_path: Path, file: str) -> None:
    lay_out(tmp_path, f"adds/1/{file}", "adds/1/assets/a.json")
    message = (
        f"expected a directory of models as model repository, got '{tmp_path}/adds/1', which looks "
        f"like a version of the model 'adds'; expected '{tmp_path}'"
    )
    with pytest.raises(RequestError) as refused:
        check_repository(tmp_path / "adds" / "1")
    assert refused.value.message == message


def test_a_repository_may_have_a_number_as_its_name(tmp_path: Path) -> None:
    check_repository(lay_out(tmp_path / "1", "README.md"))
    check_repository(lay_out(tmp_path / "2", "model.txt", "adds/1/model.py"))


@pytest.mark.parametrize(
    "files",
    [
        ("config.pbtxt", "adds/1/model.py"),
        ("1/1/model.onnx", "2/config.pbtxt"),
        ("1/1/model.onnx", "2/model.onnx"),
        ("1/nested/file",),
        ("README.md",),
    ],
)
def test_what_may_be_a_repository_is_none_the_less_taken_for_one(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    check_repository(lay_out(tmp_path, *files))


def test_a_repository_that_is_not_there_is_for_others_to_refuse(tmp_path: Path) -> None:
    check_repository(tmp_path / "missing")
