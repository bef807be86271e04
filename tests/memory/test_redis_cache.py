"""The cache in a real redis server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason="the package redis is not installed")

import redis

from tests.memory.test_response_cache import assert_same, entry, response
from tests.support.redis_process import RedisProcess, missing_redis, running_redis
from tests.support.server_process import HOST
from tritrio.memory import redis_cache
from tritrio.memory.cache_config import RedisConfig, make_cache, parse_cache_config
from tritrio.memory.redis_cache import KEY_PREFIX, RedisCache
from tritrio.memory.response_cache import CacheBusyError, CacheFaultError, Entry, encode_entry

KEY = bytes(range(32))
NAME = KEY_PREFIX + KEY.hex().encode()
TIMEOUT_MS = 200


@pytest.fixture(scope="module")
def available() -> None:
    if reason := missing_redis():
        pytest.skip(reason)


@pytest.fixture
def server(available: None, tmp_path: Path) -> Iterator[RedisProcess]:
    with running_redis(tmp_path) as running:
        yield running


@pytest.fixture
def cache(server: RedisProcess) -> Iterator[RedisCache]:
    made = cache_of(server)
    yield made
    made.close()


def cache_of(server: RedisProcess, **settings: Any) -> RedisCache:
    return RedisCache(
        RedisConfig(host=HOST, port=server.port, socket_timeout_ms=TIMEOUT_MS, **settings)
    )


def client_of(server: RedisProcess) -> Any:
    return redis.Redis(host=HOST, port=server.port)


def test_an_entry_inserted_by_one_is_found_by_another(
    server: RedisProcess, cache: RedisCache
) -> None:
    other = cache_of(server)
    assert other.lookup(KEY) is None
    cache.insert(KEY, Entry.of(response()))
    found = other.lookup(KEY)
    other.close()
    assert found is not None
    assert_same(found.response("model", "1", "8"), "8")
    assert cache.lookup(bytes(32)) is None


def test_an_entry_that_is_there_already_stays(cache: RedisCache) -> None:
    assert_only_the_first_is_kept(cache)


@pytest.mark.parametrize(
    "rubbish", [b"x", b"tritrio\x01", encode_entry(entry())[:-1], encode_entry(entry()) + b"\0"]
)
def test_rubbish_is_a_miss_and_is_overwritten(
    server: RedisProcess, cache: RedisCache, rubbish: bytes
) -> None:
    client = client_of(server)
    client.set(NAME, rubbish)
    assert cache.lookup(KEY) is None
    assert_only_the_first_is_kept(cache)
    client.close()


def test_a_value_of_another_type_is_a_miss_and_is_overwritten(
    server: RedisProcess, cache: RedisCache
) -> None:
    client = client_of(server)
    client.hset(NAME, "field", "value")
    assert cache.lookup(KEY) is None
    assert_only_the_first_is_kept(cache)
    client.close()


def test_more_rubbish_than_is_remembered_is_overwritten_after_it_was_looked_up_again(
    server: RedisProcess, cache: RedisCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "BAD_KEYS_MAX", 2)
    client = client_of(server)
    keys = [bytes([index]) * 32 for index in range(3)]
    for key in keys:
        client.set(KEY_PREFIX + key.hex().encode(), b"x")
        assert cache.lookup(key) is None
    for key in keys:
        cache.insert(key, entry())
    assert [cache.lookup(key) is None for key in keys] == [True, True, False]
    for key in keys:
        cache.insert(key, entry())
        assert cache.lookup(key) is not None
    client.close()


def assert_only_the_first_is_kept(cache: RedisCache) -> None:
    for name in ("FIRST", "SECOND"):
        cache.insert(KEY, entry(name))
    found = cache.lookup(KEY)
    assert found is not None
    assert found.outputs[0].name == "FIRST"


def test_a_value_that_is_too_large_is_neither_stored_nor_read(
    server: RedisProcess, cache: RedisCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.insert(KEY, entry(size=5000))
    assert cache.lookup(KEY) is not None
    monkeypatch.setattr(redis_cache, "ENTRY_BYTES_MAX", 4000)
    assert cache.lookup(KEY) is None
    cache.insert(bytes(32), entry(size=5000))
    client = client_of(server)
    assert client.dbsize() == 1
    client.close()


def test_a_redis_that_restarts_is_used_again(server: RedisProcess, cache: RedisCache) -> None:
    cache.insert(KEY, entry())
    server.stop()
    with pytest.raises(CacheFaultError, match=f"redis at {HOST}:{server.port}: ConnectionError"):
        cache.lookup(KEY)
    server.start()
    assert cache.lookup(KEY) is None
    cache.insert(KEY, entry())
    assert cache.lookup(KEY) is not None


def test_a_restart_between_two_calls_is_not_noticed(
    server: RedisProcess, cache: RedisCache
) -> None:
    cache.insert(KEY, entry())
    server.stop()
    server.start()
    assert cache.lookup(KEY) is None


def test_a_redis_that_hangs_is_a_fault_after_the_timeout(
    server: RedisProcess, cache: RedisCache
) -> None:
    cache.insert(KEY, entry())
    server.freeze()
    with pytest.raises(CacheFaultError, match="TimeoutError"):
        cache.lookup(KEY)
    with pytest.raises(CacheFaultError, match="TimeoutError"):
        cache.insert(KEY, entry())
    server.thaw()
    assert cache.lookup(KEY) is not None


def test_threads_share_the_connections_there_are(server: RedisProcess) -> None:
    cache = cache_of(server, pool_size=2, wait_timeout_ms=10_000)
    client = client_of(server)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(cache.lookup, [bytes([index]) * 32 for index in range(200)])) == (
            [None] * 200
        )
        assert len(client.client_list()) <= 3  # two, and this one
    client.close()
    cache.close()


def test_without_a_free_connection_the_wait_is_bounded_and_no_fault(server: RedisProcess) -> None:
    cache = RedisCache(
        RedisConfig(host=HOST, port=server.port, socket_timeout_ms=2000, wait_timeout_ms=20)
    )
    cache.lookup(KEY)
    server.freeze()
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(cache.lookup, KEY) for _ in range(2)]
        faults = {type(call.exception()) for call in calls}
    server.thaw()
    assert faults == {CacheBusyError, CacheFaultError}
    cache.close()


def test_credentials_are_used_and_never_shown(available: None, tmp_path: Path) -> None:
    with running_redis(tmp_path, "--requirepass", "correct") as server:
        right = cache_of(server, password="correct")
        right.insert(KEY, entry())
        assert right.lookup(KEY) is not None
        wrong = cache_of(server, password="mistaken")
        with pytest.raises(CacheFaultError, match=r"Auth|WRONGPASS") as caught:
            wrong.lookup(KEY)
        assert "mistaken" not in str(caught.value)
        with pytest.raises(CacheFaultError, match=r"Auth|NOAUTH"):
            cache_of(server).lookup(KEY)
        named = cache_of(server, user="default", password="correct")
        assert named.lookup(KEY) is not None
        other = cache_of(server, password="correct", db=3)
        assert other.lookup(KEY) is None
        for each in (right, wrong, named, other):
            each.close()


def test_a_host_that_does_not_exist_is_a_fault(available: None) -> None:
    cache = RedisCache(RedisConfig(host="no-such-host.invalid"))
    with pytest.raises(CacheFaultError, match=r"redis at no-such-host\.invalid:6379"):
        cache.lookup(KEY)


def test_the_command_line_makes_a_redis_cache(server: RedisProcess) -> None:
    items = [f"redis,host={HOST}", f"redis,port={server.port}"]
    config = parse_cache_config(items, environment={})
    assert config is not None
    cache = make_cache(config)
    cache.insert(KEY, entry())
    assert cache.lookup(KEY) is not None
    cache.close()


def test_tls_asks_for_the_name_and_trusts_what_it_is_told_to(
    available: None, tmp_path: Path
) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=cache.test", "-addext", "subjectAltName=DNS:cache.test"]
    try:
        subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    flags = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert]
    with running_redis(tmp_path, *flags, "--tls-port", "0") as plain:
        tls = RedisProcess(tmp_path)
        client = client_of(plain)
        client.config_set("tls-port", tls.port)
        client.close()
        good = cache_of(tls, tls=True, cert=cert, key=key, cacert=cert, sni="cache.test")
        good.insert(KEY, entry())
        assert good.lookup(KEY) is not None
        good.close()
        for settings in (
            {"sni": "other.test", "cacert": cert},
            {"cacert": cert},
            {"sni": "cache.test"},
        ):
            bad = cache_of(tls, tls=True, cert=cert, key=key, **settings)
            with pytest.raises(CacheFaultError, match=r"(?i)certificate"):
                bad.lookup(KEY)
            bad.close()
