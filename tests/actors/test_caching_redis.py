"""Servers that share a real redis: hits across them, a restart, one that hangs. In real time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio

pytest.importorskip("redis", reason="the package redis is not installed")

import redis

from tests.actors.test_caching import value_of
from tests.support.caching import Front, caching_front
from tests.support.redis_process import RedisProcess, missing_redis, running_redis
from tests.support.server_process import HOST
from tritrio.actors import _cache_access
from tritrio.actors._cache_access import open_cache
from tritrio.memory.cache_config import RedisConfig
from tritrio.memory.redis_cache import UNLIMITED_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    if reason := missing_redis():
        pytest.skip(reason)
    with running_redis(tmp_path) as running:
        yield running


@asynccontextmanager
async def front_of(server: RedisProcess, password: str | None = None) -> AsyncIterator[Front]:
    access = open_cache(RedisConfig(host=HOST, port=server.port, password=password))
    async with caching_front(access=access) as front:
        yield front
        await front.landed()
    access.cache.close()


async def test_a_hit_across_two_servers(server: RedisProcess) -> None:
    async with front_of(server) as front:
        assert value_of(await front.ask(7, "a")) == 7
    async with front_of(server) as front:
        response = await front.ask(7, "b")
        assert (value_of(response), response.id) == (7, "b")
        assert value_of(await front.ask(8, "c")) == 8
        assert front.served.backend.batches == [["c"]]
        assert (front.counts()["hit"], front.counts()["miss"]) == (1, 1)
        assert front.statistics.cache_hit.ns > 0


async def test_a_restart_of_redis_costs_misses_and_no_failures(
    server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cache_access, "REST_S", 0.0)
    async with front_of(server) as front:
        await front.ask(7, "a")
        server.stop()
        for index in range(10):
            assert value_of(await front.ask(index, str(index))) == index
        server.start()
        await front.ask(7, "b")
        await front.landed()
        assert value_of(await front.ask(7, "c")) == 7
        counts = front.counts()
        assert "fail" not in counts
        assert (counts["hit"], counts["miss"]) == (1, 12)


async def test_a_redis_that_hangs_holds_no_request(server: RedisProcess) -> None:
    async with front_of(server) as front:
        await front.ask(7, "a")
        await front.landed()
        server.freeze()
        start_s = trio.current_time()
        assert value_of(await front.ask(7, "b")) == 7
        assert trio.current_time() - start_s < UNLIMITED_S
        leaver = front.submit(8, "c")
        leaver.close()
        server.thaw()
        assert (front.counts()["miss"], front.counts()["executions"]) == (2, 2)


async def test_a_wrong_password_costs_misses_only(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(redis.Redis(host=HOST, port=server.port)) as client:
        client.config_set("requirepass", "correct")
    async with front_of(server, password="mistaken") as front:
        for index in range(3):
            assert value_of(await front.ask(index, str(index))) == index
        assert front.counts()["miss"] == 3
    (line,) = [record.getMessage() for record in caplog.records if "cache" in record.getMessage()]
    assert f"redis at {HOST}:{server.port}: " in line
    assert "mistaken" not in line
