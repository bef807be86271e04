"""Load requests that bring a configuration, or a whole model, in place of the repository."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.controlling import add_model, answer, ask, controlled, index
from tests.support.fake_device import FakeDevices
from tritrio.actors._load_rules import FILES_MAX
from tritrio.actors.model_control import LoadOverride
from tritrio.protocol.errors import ErrorCode, RequestError

TENSORS = {
    "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
}


def config(**fields: Any) -> str:
    return json.dumps({"backend": "identity", "max_batch_size": 4, **TENSORS, **fields})


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; nothing may be left there."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    assert list(directory.iterdir()) == []


def entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def written(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


async def test_a_configuration_is_used_until_the_next_plain_load(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path, startup_models=("a",)) as core:
        sizes = []
        for override in (LoadOverride(config()), None, LoadOverride(config(name="a")), None, None):
            await core.control.load("a", override)
            sizes.append(core.router.table.find("a").config.max_batch_size)
        assert sizes == [4, 8, 4, 8, 8]
        version = core.router.table.find("a")
        await core.control.load("a")
        assert core.router.table.find("a") is version


async def test_files_are_a_whole_model_and_go_with_its_last_version(
    autojump_clock: MockClock, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "models").mkdir()
    devices = FakeDevices(5.0)
    files = {"1/weights": b"one", "2/deep/weights": b"two", "labels.txt": b"x"}
    text = config(version_policy={"all": {}})
    async with controlled(tmp_path / "models", device_factory=devices) as core:
        await core.control.load("a", LoadOverride(text, files))
        assert index(core) == ["a/1 READY", "a/2 READY"]
        [place] = entries(temporary)
        assert written(place / "a") == files
        reply = ask(core, "a", "1")
        await core.control.unload("a")
        await trio.sleep(4)
        assert entries(temporary) == [place]
        assert (await reply.receive()).error is None
        await wait_all_tasks_blocked()
        assert entries(temporary) == []
        assert index(core) == []
        with pytest.raises(RequestError, match="found it in none of"):
            await core.control.load("a")


async def test_files_are_replaced_by_those_of_the_repository(
    autojump_clock: MockClock, tmp_path: Path, temporary: Path
) -> None:
    add_model(tmp_path / "models", "a")
    async with controlled(tmp_path / "models", startup_models=("a",)) as core:
        await core.control.load("a", LoadOverride(config(), {"7/weights": b""}))
        assert core.router.table.versions_ready("a") == ["7"]
        await core.control.load("a")
        await wait_all_tasks_blocked()
        assert core.router.table.versions_ready("a") == ["1"]
        assert entries(temporary) == []
        assert (await answer(core, "a")).error is None


async def test_files_of_a_load_that_fails_do_not_stay(
    autojump_clock: MockClock, tmp_path: Path, temporary: Path
) -> None:
    add_model(tmp_path / "models", "a")
    async with controlled(tmp_path / "models", startup_models=("a",)) as core:
        for text in (
            config(output=[]),
            config(backend="none"),
            config(version_policy={"specific": {"versions": [3]}}),
        ):
            with pytest.raises(RequestError) as failed:
                await core.control.load("a", LoadOverride(text, {"1/weights": b""}))
            assert failed.value.code is ErrorCode.INVALID_ARG
            assert entries(temporary) == []
        assert core.router.table.versions_ready("a") == ["1"]


async def test_files_do_not_outlive_the_server(
    autojump_clock: MockClock, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "models").mkdir()
    async with controlled(tmp_path / "models", device_factory=FakeDevices(other_s=5.0)) as core:
        override = LoadOverride(config(), {"1/weights": b""})
        await core.control.load("a", override)
        async with trio.open_nursery() as nursery:

            async def load_again() -> None:
                with pytest.raises(RequestError, match="the server is exiting"):
                    await core.control.load("a", override)

            nursery.start_soon(load_again)
            await trio.sleep(1)
            assert len(entries(temporary)) == 2
            await core.stop()


STEP = {"model_name": "../../etc", "model_version": -1}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (LoadOverride(None, {"1/a": b""}), "files in place of the repository need a configuration"),
        (LoadOverride("{"), "its configuration is not valid: expected a model configuration"),
        (LoadOverride(""), "its configuration is not valid"),
        (LoadOverride('{"no_field": 1}'), "its configuration is not valid"),
        (LoadOverride(config(name="b")), "expected its name or none in its configuration"),
        (
            LoadOverride(
                json.dumps({"platform": "ensemble", "ensemble_scheduling": {"step": [STEP]}})
            ),
            "got '../../etc'",
        ),
        (LoadOverride(config(), {f"1/{n}": b"" for n in range(FILES_MAX + 1)}), "expected at most"),
        (LoadOverride(config(), {"1/a": b"", "1/a/b": b""}), "files for both"),
        (LoadOverride(config(), {"1/" + "x" * 256: b""}), "at most 255"),
        (LoadOverride(config(), {"1/\ud800": b""}), "expected a path in UTF-8"),
        (LoadOverride(config(), {"1": b"", "x/2/a": b""}), "got none among ['1', 'x/2/a']"),
        (LoadOverride(config(), {"/".join(["1"] + ["x" * 99] * 11): b""}), "at most 1024 bytes"),
        *(
            (LoadOverride(config(), {path: b""}), "expected a file inside the model's directory")
            for path in ("", "/a", "/1/a", "1/../../a", "../a", "1//a", "1/", "1/.", "1/a\0", "..")
        ),
    ],
)
async def test_what_a_request_brings_is_checked_before_anything_is_written(
    autojump_clock: MockClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    override: LoadOverride,
    words: str,
) -> None:
    add_model(tmp_path / "models", "a")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    async with controlled(tmp_path / "models", startup_models=("a",)) as core:
        version = core.router.table.find("a")
        with pytest.raises(RequestError) as refused:
            await core.control.load("a", override)
        assert refused.value.code is ErrorCode.INVALID_ARG
        assert words in refused.value.message
        assert core.router.table.find("a") is version
        assert index(core) == ["a/1 READY"]
