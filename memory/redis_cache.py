"""The response cache in a redis server, which several servers may share.

An entry is one redis string (see `encode_entry`) without an expiry time: redis's own `maxmemory`
policy decides what goes. Triton stores a hash an entry; the two do not read each other's.
"""

from __future__ import annotations

from queue import Empty, LifoQueue
from typing import Any, Final, final

import redis
from redis.backoff import NoBackoff
from redis.connection import BlockingConnectionPool, Connection, SSLConnection
from redis.retry import Retry

from .cache_config import RedisConfig
from .response_cache import (
    CacheBusyError,
    CacheFaultError,
    CacheKey,
    Entry,
    decode_entry,
    encode_entry,
)

ENTRY_BYTES_MAX: Final = 64 * 1024**2
"""Larger entries are neither stored nor read: over a network they take longer than most models,
and whatever else lies under a key of ours must not fill the memory."""

UNLIMITED_S: Final = 10.0
"""What a timeout of 0, "no limit", comes to: nobody waits for a look-up as long as that, and the
thread that does must come back some day."""

BAD_KEYS_MAX: Final = 4096
"""Keys without a good entry that wait to be overwritten. With one more all are forgotten, until
they are looked up again; each is inserted soon after, so that only a flood comes to this."""

KEY_PREFIX: Final = b"tritrio:response:"
"""In front of the key of each entry, so that a redis server may be shared with others."""


@final
class RedisCache:
    """Keeps entries in redis. Its calls block and may come from several threads at once.

    Args:
      config: Where redis is and how to talk to it.
    """

    blocking: Final = True

    def __init__(self, config: RedisConfig) -> None:
        self._where = f"{config.host}:{config.port}"
        self._pool: Any = BlockingConnectionPool(  # type: ignore[no-untyped-call]
            max_connections=config.pool_size,
            timeout=config.wait_timeout_ms / 1000,
            queue_class=_FreeConnections,
            connection_class=_connection_class(config),
            **_connection_settings(config),
        )
        self._client = redis.Redis(connection_pool=self._pool)
        self._bad: set[CacheKey] = set()

    def __repr__(self) -> str:
        return f"<RedisCache at {self._where}>"

    def lookup(self, key: CacheKey) -> Entry | None:
        """Return the entry of a key; whatever else lies there is no entry.

        Raises:
          CacheFaultError: redis cannot be used.
          CacheBusyError: no connection was free in time.
        """
        try:
            found = self._client.getrange(_name(key), 0, ENTRY_BYTES_MAX)
            return decode_entry(found) if found else None  # type: ignore[arg-type]
        except (redis.exceptions.RedisError, OSError) as fault:
            if not _is_about_a_value(fault):
                raise self._fault(fault) from None
        except ValueError:
            pass
        if len(self._bad) >= BAD_KEYS_MAX:
            self._bad.clear()
        self._bad.add(key)
        return None

    def insert(self, key: CacheKey, entry: Entry) -> None:
        """Keep an entry unless its key has a good one already, or it is too large.

        What the last look-up of its key found to be no entry is overwritten.

        Raises:
          CacheFaultError: redis cannot be used, or does not take it.
          CacheBusyError: no connection was free in time.
        """
        if entry.byte_size > ENTRY_BYTES_MAX:
            return
        try:
            self._client.set(_name(key), encode_entry(entry), nx=key not in self._bad)
        except (redis.exceptions.RedisError, OSError) as fault:
            raise self._fault(fault) from None
        self._bad.discard(key)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.disconnect(inuse_connections=False)

    def _fault(self, fault: Exception) -> CacheFaultError:
        return CacheFaultError(f"redis at {self._where}: {type(fault).__name__}: {fault}")


class _FreeConnections(LifoQueue[Any]):
    """The pool's queue, where the library itself takes a wait in vain for a lost connection."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return super().get(block, timeout)
        except Empty:
            if not block:
                raise
            raise CacheBusyError("no connection to redis was free in time") from None


def _name(key: CacheKey) -> bytes:
    return KEY_PREFIX + key.hex().encode()


def _is_about_a_value(fault: Exception) -> bool:
    return isinstance(fault, redis.exceptions.ResponseError) and str(fault).startswith("WRONGTYPE")


def _connection_settings(config: RedisConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "username": config.user,
        "password": config.password,
        "db": config.db,
        "socket_connect_timeout": config.connect_timeout_ms / 1000 or UNLIMITED_S,
        "socket_timeout": config.socket_timeout_ms / 1000 or UNLIMITED_S,
        "retry": Retry(NoBackoff(), 0),  # a fault is a miss; what is executed is not late
    }
    if config.tls:
        settings |= {
            "ssl_certfile": config.cert,
            "ssl_keyfile": config.key,
            "ssl_ca_certs": config.cacert,
            "ssl_ca_path": config.cacert_dir,
        }
    return settings


def _connection_class(config: RedisConfig) -> type[Connection]:
    if not config.tls:
        return Connection
    if config.sni is None:
        return SSLConnection
    return type("SniConnection", (_SniConnection,), {"server_name": config.sni})


class _SniConnection(SSLConnection):
    """Asks for a name other than the host's, which the library itself cannot."""

    server_name: str

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        host, self.host = self.host, self.server_name
        try:
            return super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
        finally:
            self.host = host
