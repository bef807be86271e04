"""The command line's words for a cache."""

from __future__ import annotations

import pytest

from tritrio.memory.cache_config import (
    CacheConfig,
    LocalConfig,
    RedisConfig,
    make_cache,
    parse_cache_config,
)
from tritrio.memory.response_cache import LocalCache
from tritrio.protocol.errors import ErrorCode, RequestError


def parse(*items: str, **environment: str) -> CacheConfig | None:
    return parse_cache_config(items, environment=environment)


def message(*items: str, **environment: str) -> str:
    with pytest.raises(RequestError) as caught:
        parse(*items, **environment)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_without_a_word_of_it_there_is_no_cache() -> None:
    assert parse() is None
    assert parse_cache_config((), response_cache_byte_size=0, environment={}) is None


def test_the_local_cache_has_a_size() -> None:
    assert parse("local,size=1048576") == LocalConfig(1048576)
    assert parse("local,size=1", "local,size=2") == LocalConfig(2)


def test_the_deprecated_flag_is_a_local_cache() -> None:
    assert parse_cache_config((), response_cache_byte_size=5, environment={}) == LocalConfig(5)
    with pytest.raises(RequestError, match="exclude each other"):
        parse_cache_config(("local,size=1",), response_cache_byte_size=5, environment={})
    with pytest.raises(RequestError, match="of 0 or more, got -1"):
        parse_cache_config((), response_cache_byte_size=-1, environment={})


def test_redis_has_the_defaults_of_triton() -> None:
    assert parse("redis,host=cache", "redis,port=6380") == RedisConfig(
        host="cache",
        port=6380,
        user=None,
        password=None,
        db=0,
        connect_timeout_ms=0,
        socket_timeout_ms=0,
        wait_timeout_ms=100,
        pool_size=1,
        tls=False,
        cert=None,
        key=None,
        cacert=None,
        cacert_dir=None,
        sni=None,
    )


def test_redis_takes_every_key() -> None:
    items = {
        "host": "cache",
        "port": "1",
        "user": "u",
        "password": "p=,q",
        "db": "2",
        "connect_timeout": "3",
        "socket_timeout": "4",
        "wait_timeout": "5",
        "pool_size": "6",
        "tls_enabled": "true",
        "cert": "c",
        "key": "k",
        "cacert": "a",
        "cacert_dir": "d",
        "sni": "s",
    }
    assert parse(*(f"redis,{key}={value}" for key, value in items.items())) == RedisConfig(
        host="cache",
        port=1,
        user="u",
        password="p=,q",
        db=2,
        connect_timeout_ms=3,
        socket_timeout_ms=4,
        wait_timeout_ms=5,
        pool_size=6,
        tls=True,
        cert="c",
        key="k",
        cacert="a",
        cacert_dir="d",
        sni="s",
    )


def test_the_environment_says_what_the_command_line_does_not() -> None:
    environment = {
        "TRITON_REDIS_HOST": "env",
        "TRITON_REDIS_PORT": "1",
        "TRITONCACHE_REDIS_USERNAME": "u",
        "TRITONCACHE_REDIS_PASSWORD": "p",
    }
    assert parse("redis,db=0", **environment) == RedisConfig(
        host="env", port=1, user="u", password="p"
    )
    assert parse("redis,host=here", "redis,password=q", **environment) == RedisConfig(
        host="here", port=1, user="u", password="q"
    )


def test_a_password_is_not_shown() -> None:
    config = parse("redis,host=h", "redis,port=1", "redis,password=secret")
    assert "secret" not in repr(config)
    for item in ("redis,word=secret", "other,password=secret", ",password=secret"):
        assert "secret" not in message(item)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (("local",), "expected --cache-config <cache>,<key>=<value>, got 'local'"),
        (("local=5",), "expected --cache-config <cache>,<key>=<value>, got 'local=' and a value"),
        (("local,=5",), "expected --cache-config <cache>,<key>=<value>, got 'local,=' and a value"),
        (
            ("local,size=1", "redis,host=h"),
            "--cache-config names ['local', 'redis'], but a server has one cache",
        ),
        (
            ("other,size=1",),
            "--cache-config names the cache 'other', expected one of ['local', 'redis']",
        ),
        (("local,sise=1",), "the local cache has no key 'sise', expected one of ['size']"),
        (("redis,host=h",), "redis,port=<port>, or the environment variable TRITON_REDIS_PORT"),
        (("redis,port=1",), "redis,host=<host>, or the environment variable TRITON_REDIS_HOST"),
        (("redis,host=h", "redis,port=0"), "must be a number from 1 to 65535, got '0'"),
        (("redis,host=h", "redis,port=1", "redis,tls_enabled=2"), "must be true or false, got '2'"),
        (("redis,host=h", "redis,port=1", "redis,cert=c"), "both of the keys 'cert' and 'key'"),
        (("redis,host=h", "redis,port=1", "redis,pool_size=65"), "from 1 to 64, got '65'"),
        *(
            ((f"local,size={size}",), "key 'size' of the local cache must be a number from 1 to")
            for size in ("", "0", "-1", "1e3", "\u0661", "9" * 20)
        ),
    ],
)
def test_a_fault_is_named(items: tuple[str, ...], expected: str) -> None:
    assert expected in message(*items)


def test_a_local_cache_is_made_with_its_size() -> None:
    cache = make_cache(LocalConfig(7))
    assert isinstance(cache, LocalCache)
    assert cache.size_bytes == 7
