"""Which response cache the command line asks for: `--cache-config` and its predecessor.

Source: Triton's `--cache-config <cache>,<key>=<value>`, the keys of its local and redis caches with
their defaults, and the deprecated `--response-cache-byte-size`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ..protocol.errors import invalid_argument
from ..protocol.wording import names_text, quoted
from .response_cache import LocalCache, ResponseCache

POOL_SIZE_MAX: Final = 64
"""Connections to redis, each with a thread while it is used; more would be threads that wait."""

_INTEGER_MAX: Final = 2**63 - 1
_MILLISECONDS_MAX: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """A cache in the server's memory.

    Attributes:
      size_bytes: Most bytes of all entries.
    """

    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """A cache in a redis server; files are PEM, the password is never shown.

    Attributes:
      host: Where redis is.
      port: Its port.
      user: Whom to log in as; None for redis's default user.
      password: With what; None for no login.
      db: Number of the database.
      connect_timeout_ms: How long a connection may take to be made; 0 is no limit.
      socket_timeout_ms: How long redis may take to answer; 0 is no limit.
      wait_timeout_ms: How long to wait for a free connection.
      pool_size: Most connections.
      tls: Whether to use TLS.
      cert: File of the client's certificate.
      key: File of its key.
      cacert: File of the certificates that are trusted.
      cacert_dir: Directory of such, with hashed names.
      sni: Name to ask for, and to find in the certificate, where it is not `host`.
    """

    host: str
    port: int = 6379
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    connect_timeout_ms: int = 0
    socket_timeout_ms: int = 0
    wait_timeout_ms: int = 100
    pool_size: int = 1
    tls: bool = False
    cert: str | None = None
    key: str | None = None
    cacert: str | None = None
    cacert_dir: str | None = None
    sni: str | None = None


CacheConfig: TypeAlias = LocalConfig | RedisConfig


def parse_cache_config(
    items: Sequence[str],
    *,
    response_cache_byte_size: int | None = None,
    environment: Mapping[str, str],
) -> CacheConfig | None:
    """Return the cache that a command line asks for, or None for no cache.

    Args:
      items: Each "<cache>,<key>=<value>", as in `--cache-config`; a later one of a key wins.
      response_cache_byte_size: The deprecated flag; 0 is no cache.
      environment: Where redis's host, port and credentials are looked for if no item gives them.

    Raises:
      RequestError: INVALID_ARG; names the item or the key at fault, never a password.
    """
    if response_cache_byte_size is not None:
        if items:
            raise invalid_argument(
                "--response-cache-byte-size and --cache-config exclude each other; use the latter"
            )
        if response_cache_byte_size < 0:
            raise invalid_argument(
                "expected a --response-cache-byte-size of 0 or more, "
                f"got {response_cache_byte_size}"
            )
        return LocalConfig(response_cache_byte_size) if response_cache_byte_size else None
    if not items:
        return None
    settings: dict[str, dict[str, str]] = {}
    for item in items:
        cache, key, value = _split(item)
        settings.setdefault(cache, {})[key] = value
    if len(settings) > 1:
        raise invalid_argument(
            f"--cache-config names {names_text(settings)}, but a server has one cache"
        )
    ((cache, given),) = settings.items()
    make = _CACHES.get(cache)
    if make is None:
        raise invalid_argument(
            f"--cache-config names the cache {quoted(cache)}, expected one of {names_text(_CACHES)}"
        )
    return make(given, environment)


def make_cache(config: CacheConfig) -> ResponseCache:
    """Return the cache a configuration describes; one in redis is connected when it is used.

    Raises:
      RequestError: INVALID_ARG; the package `redis` is missing.
    """
    if isinstance(config, LocalConfig):
        return LocalCache(config.size_bytes)
    try:
        from .redis_cache import RedisCache  # noqa: PLC0415 - only this needs the package
    except ModuleNotFoundError as fault:
        if fault.name != "redis":
            raise
        raise invalid_argument(
            "the redis cache needs the Python package 'redis', which is not installed"
        ) from None
    return RedisCache(config)


def _split(item: str) -> tuple[str, str, str]:
    name, equals, value = item.partition("=")
    cache, _, key = name.partition(",")
    if not (equals and cache and key):
        raise invalid_argument(
            f"expected --cache-config <cache>,<key>=<value>, got {quoted(name + equals)}"
            + (" and a value" if value else "")
        )
    return cache, key, value


def _local(given: Mapping[str, str], _: Mapping[str, str]) -> LocalConfig:
    _refuse_unknown("local", given, {"size"})
    if "size" not in given:
        raise invalid_argument("the local cache needs --cache-config local,size=<bytes>")
    return LocalConfig(_integer("local", "size", given["size"], 1, _INTEGER_MAX))


def _redis(given: Mapping[str, str], environment: Mapping[str, str]) -> RedisConfig:
    settings = {
        key: environment[name] for key, name in _REDIS_ENVIRONMENT.items() if environment.get(name)
    }
    _refuse_unknown("redis", given, _REDIS_KEYS)
    settings.update(given)
    for key in ("host", "port"):
        if not settings.get(key):
            raise invalid_argument(
                f"the redis cache needs --cache-config redis,{key}=<{key}>, "
                f"or the environment variable {_REDIS_ENVIRONMENT[key]}"
            )
    values = {
        name: read(key, settings[key])
        for key, (name, read) in _REDIS_KEYS.items()
        if key in settings
    }
    if (values.get("cert") is None) != (values.get("key") is None):
        raise invalid_argument("the redis cache needs both of the keys 'cert' and 'key', or none")
    return RedisConfig(**values)


def _refuse_unknown(
    cache: str, given: Mapping[str, str], known: Mapping[str, object] | set[str]
) -> None:
    for key in given:
        if key not in known:
            raise invalid_argument(
                f"the {cache} cache has no key {quoted(key)}, expected one of "
                f"{names_text(sorted(known))}"
            )


def _integer(cache: str, key: str, text: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)):
        value = int(text)
        if least <= value <= most:
            return value
    raise invalid_argument(
        f"key '{key}' of the {cache} cache must be a number from {least} to {most}, "
        f"got {quoted(text)}"
    )


def _number(least: int, most: int) -> Callable[[str, str], int]:
    return lambda key, text: _integer("redis", key, text, least, most)


def _text(_: str, text: str) -> str | None:
    return text or None


def _boolean(key: str, text: str) -> bool:
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise invalid_argument(
            f"key '{key}' of the redis cache must be true or false, got {quoted(text)}"
        )
    return value


_REDIS_KEYS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "host": ("host", _text),
    "port": ("port", _number(1, 65535)),
    "user": ("user", _text),
    "password": ("password", _text),
    "db": ("db", _number(0, 2**31 - 1)),
    "connect_timeout": ("connect_timeout_ms", _number(0, _MILLISECONDS_MAX)),
    "socket_timeout": ("socket_timeout_ms", _number(0, _MILLISECONDS_MAX)),
    "wait_timeout": ("wait_timeout_ms", _number(0, _MILLISECONDS_MAX)),
    "pool_size": ("pool_size", _number(1, POOL_SIZE_MAX)),
    "tls_enabled": ("tls", _boolean),
    "cert": ("cert", _text),
    "key": ("key", _text),
    "cacert": ("cacert", _text),
    "cacert_dir": ("cacert_dir", _text),
    "sni": ("sni", _text),
}

_REDIS_ENVIRONMENT: Final = {
    "host": "TRITON_REDIS_HOST",
    "port": "TRITON_REDIS_PORT",
    "user": "TRITONCACHE_REDIS_USERNAME",
    "password": "TRITONCACHE_REDIS_PASSWORD",
}

_CACHES: Final[Mapping[str, Callable[[Mapping[str, str], Mapping[str, str]], CacheConfig]]] = {
    "local": _local,
    "redis": _redis,
}
