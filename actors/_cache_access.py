"""How the models' fronts use the server's response cache: in bounded time, and without faults.

A cache that cannot be used is no reason to fail a request: it is as if nothing were in it.
"""

from __future__ import annotations

import logging
from math import inf
from typing import Final, final

import trio

from ..memory.cache_config import CacheConfig, LocalConfig, RedisConfig, make_cache
from ..memory.response_cache import (
    ENTRY_BYTES_MIN,
    CacheBusyError,
    CacheFaultError,
    CacheKey,
    Entry,
    LocalCache,
    ResponseCache,
    request_key,
)
from ..protocol.requests import InferRequest
from ._completion import nanoseconds
from ._worker_threads import RunInThread, WorkerThreads

LOOKUP_MAX_S: Final = 0.25
"""Seconds a request waits for a cache in a network; then it is executed. A cache that takes longer
than that is no help to a model of interactive use, and one that hangs must not hold requests."""

INSERT_MAX_S: Final = 2.0
"""Seconds an insertion may take; nobody waits for it, but the entry stays in memory meanwhile."""

REST_S: Final = 1.0
"""Seconds for which a cache is left alone after a fault, so that one that hangs delays at most the
requests of one `LOOKUP_MAX_S` a second, and one line a second is logged."""

HASHING_THREADS_MAX: Final = 2
"""Large requests hashed at a time; hashing lets the event loop run beside it."""

WAITING_THREADS_MAX: Final = 4
"""Threads beyond those that have a connection; they wait for one, no longer than `wait_timeout`."""

BUSY_LOG_S: Final = 60.0
"""Seconds between lines about calls for which a cache that works had too much to do; that is load,
and no fault."""

_logger = logging.getLogger(__name__)


@final
class CacheAccess:
    """The server's response cache, for the fronts of all its models.

    Args:
      cache: Where the entries are.
      call_in_thread: Runs the calls of a cache that blocks.
      hash_in_thread: Hashes large requests.

    Attributes:
      cache: As given.
    """

    def __init__(
        self, cache: ResponseCache, *, call_in_thread: RunInThread, hash_in_thread: RunInThread
    ) -> None:
        self.cache = cache
        self._call_in_thread = call_in_thread
        self._hash_in_thread = hash_in_thread
        self._rest_until_s = -1.0
        self._works = True
        self._loads = 0
        self._answered_s = -inf
        self._busy = 0
        self._busy_logged_s = -inf

    def __repr__(self) -> str:
        return f"<CacheAccess to {self.cache!r}>"

    @property
    def blocking(self) -> bool:
        """Whether `lookup` and `insert` are to be used, instead of those that end in `_now`."""
        return self.cache.blocking

    def load_name(self) -> str:
        """Return what tells this load of a model from earlier ones, in the keys of its requests.

        A local cache thus forgets a model that is loaded again, which may have changed; servers
        that share a cache find each other's entries.
        """
        self._loads += 1
        return "" if self.blocking else str(self._loads)

    def lookup_now(self, key: CacheKey) -> tuple[Entry | None, int]:
        """Return the entry of a key, if there is one, and how long that took in nanoseconds."""
        cache = self.cache
        assert isinstance(cache, LocalCache)
        start_s = trio.current_time()
        entry = cache.lookup(key)
        taken_ns = nanoseconds(trio.current_time() - start_s)
        cache.statistics.lookup_ns += taken_ns
        return entry, taken_ns

    def insert_now(self, key: CacheKey, entry: Entry) -> int:
        """Keep an entry; return how long that took in nanoseconds."""
        cache = self.cache
        assert isinstance(cache, LocalCache)
        start_s = trio.current_time()
        cache.insert(key, entry)
        taken_ns = nanoseconds(trio.current_time() - start_s)
        cache.statistics.insertion_ns += taken_ns
        return taken_ns

    async def lookup(self, key: CacheKey) -> tuple[Entry | None, int]:
        """As `lookup_now`, of a cache that blocks.

        A fault counts as nothing found, and so does too much load.
        """
        start_s = trio.current_time()
        entry: Entry | None = None
        if start_s >= self._rest_until_s:
            try:
                with trio.fail_after(LOOKUP_MAX_S):
                    entry = await self._call_in_thread(self.cache.lookup, key)
                self._note_success()
            except Exception as fault:  # a cache is no reason to fail  # noqa: BLE001
                self._note_failure(fault, start_s, f"a look-up took more than {LOOKUP_MAX_S} s")
        return entry, nanoseconds(trio.current_time() - start_s)

    async def insert(self, key: CacheKey, entry: Entry) -> int:
        """As `insert_now`, of a cache that blocks.

        A fault means that the entry is not kept, and so does too much load.
        """
        start_s = trio.current_time()
        if start_s >= self._rest_until_s:
            try:
                with trio.fail_after(INSERT_MAX_S):
                    await self._call_in_thread(self.cache.insert, key, entry)
            except Exception as fault:  # a cache is no reason to fail  # noqa: BLE001
                self._note_failure(fault, start_s, f"an insertion took more than {INSERT_MAX_S} s")
        return nanoseconds(trio.current_time() - start_s)

    async def key(self, name: str, version: str, load: str, request: InferRequest) -> CacheKey:
        """Return the key of a large request, without holding up the event loop."""
        return await self._hash_in_thread(request_key, name, version, load, request)

    def _note_failure(self, fault: Exception, start_s: float, too_slow: str) -> None:
        """Tell load from a fault: a cache that has answered others meanwhile only has much to do.

        Once there was a fault, connections that are in use may be those that hang.
        """
        busy = isinstance(fault, CacheBusyError) or (
            isinstance(fault, trio.TooSlowError) and self._answered_s > start_s
        )
        if busy and self._works:
            self._note_busy()
        else:
            self._note_fault(fault, too_slow)

    def _note_fault(self, fault: Exception, too_slow: str) -> None:
        now_s = trio.current_time()
        if now_s < self._rest_until_s:
            return  # of a call that began before the rest
        self._rest_until_s = now_s + REST_S
        self._works = False
        if isinstance(fault, trio.TooSlowError):
            reason = too_slow
        elif isinstance(fault, CacheFaultError | CacheBusyError):
            reason = str(fault)
        else:
            reason = f"unexpected {type(fault).__name__}: {fault}"
        _logger.error("the response cache is not used for %g s: %s", REST_S, reason)

    def _note_busy(self) -> None:
        self._busy += 1
        now_s = trio.current_time()
        if now_s >= self._busy_logged_s + BUSY_LOG_S:
            _logger.info("the response cache was too busy for %d calls", self._busy)
            self._busy = 0
            self._busy_logged_s = now_s

    def _note_success(self) -> None:
        self._answered_s = trio.current_time()
        if not self._works:
            self._works = True
            _logger.info("the response cache is used again")


def open_cache(config: CacheConfig) -> CacheAccess:
    """Return access to the cache a configuration describes, on real threads.

    Warns of a local cache in which nothing has room.

    Raises:
      RequestError: INVALID_ARG; the package it needs is missing.
    """
    if isinstance(config, LocalConfig) and config.size_bytes < ENTRY_BYTES_MIN:
        _logger.warning(
            "the response cache of %d bytes keeps nothing, since an entry takes at least %d bytes",
            config.size_bytes,
            ENTRY_BYTES_MIN,
        )
    connections = config.pool_size if isinstance(config, RedisConfig) else 0
    return CacheAccess(
        make_cache(config),
        call_in_thread=WorkerThreads(connections + WAITING_THREADS_MAX),
        hash_in_thread=WorkerThreads(HASHING_THREADS_MAX),
    )
