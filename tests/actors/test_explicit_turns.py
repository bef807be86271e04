"""Loads and unloads at the same time: their order, callers that leave, and a stop meanwhile."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.actors.test_ensemble_loading import ensemble_of
from tests.support.controlling import (
    IDENTITY,
    add_model,
    answer,
    ask,
    configure,
    controlled,
    index,
    touch,
)
from tests.support.fake_device import FakeDevices
from tests.support.http_client import infer_body, request_bytes
from tests.support.memory_server import memory_server, write_models
from tritrio.actors import http_generate
from tritrio.actors._repository_scan import find_model
from tritrio.actors.http_api import OFFLOAD_BYTES_MIN
from tritrio.actors.repository_control import OPERATIONS_MAX
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.generate_codec import decode_generate
from tritrio.protocol.requests import InferRequest

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WAIT_S = 20.0


async def test_models_that_have_nothing_to_do_with_each_other_load_side_by_side(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        add_model(tmp_path, name)
    devices = FakeDevices(other_s=3.0)
    async with controlled(tmp_path, device_factory=devices, loads_max=2) as core:
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(core.control.load, name)
            await trio.sleep(4)
            assert len(core.router.table.ready_versions()) == 2
        assert trio.current_time() - start_s == 6.0


async def test_models_that_are_related_change_one_after_the_other(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        add_model(tmp_path, name)
    add_model(tmp_path, "e", ensemble_of("a", "b"))
    devices = FakeDevices(other_s=3.0)
    async with controlled(tmp_path, device_factory=devices) as core:
        start_s = trio.current_time()
        ended: list[tuple[str, float]] = []

        async def change(name: str, *, load: bool) -> None:
            await (core.control.load if load else core.control.unload)(name)
            ended.append((name, trio.current_time() - start_s))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: change("e", load=True))
            await trio.sleep(1)
            nursery.start_soon(lambda: change("a", load=False))
            await trio.sleep(1)
            nursery.start_soon(lambda: change("b", load=True))
        assert ended == [("e", 3.0), ("a", 3.0), ("b", 3.0)]
        await trio.sleep(4)
        assert [line.split(" ", 1)[1].partition(",")[0] for line in index(core)] == [
            "UNAVAILABLE unloaded",
            "READY",
            "UNAVAILABLE unloaded",
        ]


async def test_a_load_goes_on_when_its_caller_leaves(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path, device_factory=FakeDevices(other_s=5.0)) as core:
        with trio.move_on_after(1) as left:
            await core.control.load("a")
        assert left.cancelled_caught
        assert index(core) == ["a/1 LOADING"]
        await trio.sleep(5)
        assert index(core) == ["a/1 READY"]


async def test_a_stop_does_not_wait_for_loads(autojump_clock: MockClock, tmp_path: Path) -> None:
    for name in ("a", "b"):
        add_model(tmp_path, name)
    loading: set[str] = set()

    async def in_thread(job: object, /, *args: object) -> object:
        """Let everything about model `b` hang."""
        await trio.lowlevel.checkpoint()
        if any("b" == getattr(arg, "name", arg) for arg in args):
            loading.add("b")
            await trio.sleep_forever()
        return job(*args)  # type: ignore[operator]

    devices = FakeDevices(4.0, other_s=0.0)
    options = {"device_factory": devices, "run_in_thread": in_thread, "startup_models": ("a",)}
    async with controlled(tmp_path, **options) as core:
        replies = [ask(core, "a")]
        configure(tmp_path, "a")
        await core.control.load("a")
        replies.append(ask(core, "a"))
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:

            async def load(name: str) -> None:
                with pytest.raises(RequestError, match="the server is exiting") as refused:
                    await core.control.load(name)
                assert refused.value.code is ErrorCode.UNAVAILABLE

            nursery.start_soon(load, "b")
            await wait_all_tasks_blocked()
            nursery.start_soon(load, "a")
            await wait_all_tasks_blocked()
            assert loading == {"b"}
            start_s = trio.current_time()
            core.begin_shutdown()
        assert trio.current_time() == start_s
        assert await core.stop()
        assert trio.current_time() - start_s == 3.0
        assert [(await reply.receive()).error for reply in replies] == [None, None]
        with pytest.raises(RequestError, match="because the server is exiting"):
            await core.control.load("a")


async def test_files_that_cannot_be_looked_at_do_not_hold_up_other_models_for_ever(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        add_model(tmp_path, name)

    async def in_thread(job: object, /, *args: object) -> object:
        await trio.lowlevel.checkpoint()
        if job is find_model and "b" in args:
            await trio.sleep_forever()
        return job(*args)  # type: ignore[operator]

    async with controlled(tmp_path, run_in_thread=in_thread) as core:
        with pytest.raises(RequestError, match="could not be looked at within 60 s"):
            await core.control.load("b")
        await core.control.load("a")
        assert index(core) == ["a/1 READY", "b/- UNKNOWN"]


async def test_versions_that_were_replaced_are_cut_off_at_the_exit_timeout(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a")
    options = {"device_factory": FakeDevices(100.0), "exit_timeout_s": 8.0}
    async with controlled(tmp_path, startup_models=("a",), **options) as core:
        reply = ask(core, "a")
        configure(tmp_path, "a")
        await core.control.load("a")
        start_s = trio.current_time()
        assert not await core.stop()
        assert trio.current_time() - start_s == 9.0  # patience for the hanging job included
        assert (await reply.receive()).error is not None


async def test_too_many_requests_are_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    add_model(tmp_path, "a")
    async with controlled(tmp_path, device_factory=FakeDevices(other_s=1.0)) as core:
        refused: list[str] = []

        async def load() -> None:
            try:
                await core.control.load("a")
            except RequestError as error:
                refused.append(error.message)

        async with trio.open_nursery() as nursery:
            for _ in range(OPERATIONS_MAX + 1):
                nursery.start_soon(load)
        assert len(refused) == 1
        assert "requests to load or unload wait already" in refused[0]
        assert index(core) == ["a/1 READY"]


async def test_a_load_that_fails_is_tried_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    add_model(tmp_path, "a", "version_policy { all {} }" + IDENTITY, ("1", "2"))
    failures = 0
    tried: list[str] = []

    async def in_thread(job: object, /, *args: object) -> object:
        nonlocal failures
        await trio.lowlevel.checkpoint()
        if getattr(job, "__name__", "") == "prepare_model":
            tried.append(str(sorted(args[2])))  # type: ignore[call-overload]
            if failures:
                failures -= 1
                raise RequestError(ErrorCode.INTERNAL, "the disk is away")
        return job(*args)  # type: ignore[operator]

    async with controlled(tmp_path, run_in_thread=in_thread, load_retries=2) as core:
        failures = 2
        await core.control.load("a")
        assert tried == ["[]"] * 3
        assert (await answer(core, "a")).error is None
        failures = 3
        configure(tmp_path, "a")
        with pytest.raises(RequestError, match="model 'a' failed to load: Internal: the disk"):
            await core.control.load("a")
        assert (await answer(core, "a")).error is None


async def test_a_large_request_goes_to_the_model_there_is_once_it_is_decoded(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"model_control": "explicit", "startup_models": ("plain",)}
    async with memory_server(write_models(tmp_path), **options) as server:
        client = server.http()
        old = server.core.router.table.find("plain")
        packed = gzip.compress(infer_body([[1]]) + b" " * 40_000_000)
        headers = ["Content-Encoding: gzip"]
        client.send(request_bytes("/v2/models/plain/infer", packed, headers=headers))
        await wait_all_tasks_blocked()  # on the thread that decodes
        touch(tmp_path / "plain" / "config.pbtxt")
        await server.core.control.load("plain")
        assert (await client.response()).rows == [[1]]
        assert old.statistics.success.count == 0
        assert server.core.router.table.find("plain").statistics.success.count == 1


async def test_a_large_generate_request_goes_to_the_model_there_is_once_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = threading.Event()

    def decode(*args: Any, **more: Any) -> InferRequest:
        assert loaded.wait(WAIT_S)
        return decode_generate(*args, **more)

    monkeypatch.setattr(http_generate, "decode_generate", decode)
    options: dict[str, Any] = {"model_control": "explicit", "startup_models": ("plain",)}
    async with memory_server(write_models(tmp_path), **options) as server:
        client = server.http()
        old = server.core.router.table.find("plain")
        body = b'{"INPUT0":[1]}' + b" " * OFFLOAD_BYTES_MIN
        client.send(request_bytes("/v2/models/plain/generate", body))
        await wait_all_tasks_blocked()  # on the thread that decodes
        touch(tmp_path / "plain" / "config.pbtxt")
        await server.core.control.load("plain")
        loaded.set()
        assert (await client.response()).json["OUTPUT0"] == 1
        assert old.statistics.success.count == 0
        assert server.core.router.table.find("plain").statistics.success.count == 1
